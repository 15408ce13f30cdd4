"""Find the samples of one foreign shard: byte ranges, from headers alone if the format has them.

Names within an archive are only compared with one another: nothing is extracted, so '../x' can do
no harm. Of an LMDB file each entry is one sample: its value as it is stored, found in the file's
pages alone, without the library. Entries that describe the others, and labels, are left out. Values
are often pickled objects; nothing looks into them.
"""

from __future__ import annotations

import re
import struct
import tarfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from ...base.documents import parse_json
from ...base.limits import MAX_PAX_HEADER
from ...storage.files import Pages, ReadWindow, Seekable
from ..formats import FORMATS
from ..formats.lmdb import Tree
from ..formats.tfrecord import masked_crc
from .hdf5 import EMPTY, LABELS, hdf5
from .parquet import parquet
from .samples import FoundSample, ShardSamples, damaged, listed, suffix_of
from .sandbox import Finder, Sandbox

DESCRIBED = "entries left out, whose keys say that they describe the others"
LABELLED = "entries left out, whose keys say that they are labels"
DUPLICATES = "databases left out, whose keys have several values each"

_DESCRIBE = {
    "length",  # Open Catalyst
    "num-samples",  # text recognition
    "__len__",
    "__keys__",
    "metadata",  # ASE, as the next two
    "nextid",
    "deleted_ids",
}
"""Keys that hold facts about a file, unless it has no other entries."""


def lmdb(window: ReadWindow, key: str, size: int) -> ShardSamples:
    """Find the samples of a file.

    Raises DatasetError naming a file that is damaged or no LMDB, StorageError.
    """
    notes: Counter[str] = Counter()
    samples, described, labels = _Column(), _Column(), _Column()
    pages = Pages(window, size)
    try:
        tree = Tree(pages.between, size)
        for found in tree:
            if not found.size:
                notes[EMPTY] += 1
                continue
            name = found.key.decode("utf-8", "replace").lower()
            column = samples
            if name in _DESCRIBE:
                column = described
            elif name.partition("-")[0] in LABELS:
                column = labels
            column.add(found.offset, found.size, suffix_of(name))
    except (ValueError, OSError) as error:
        if pages.failure is not None:
            raise pages.failure from None
        raise damaged(key, str(error)) from None
    notes.update({DUPLICATES: tree.duplicates} if tree.duplicates else {})
    if samples.offset:
        notes.update({DESCRIBED: len(described.offset)} if described.offset else {})
        notes.update({LABELLED: len(labels.offset)} if labels.offset else {})
    else:
        samples = labels if labels.offset else described
    stored = np.array(samples.size, np.int64)
    return ShardSamples(
        offset=np.array(samples.offset, np.int64),
        stored=stored,
        size=stored,
        suffixes=frozenset(samples.suffixes or {""}),
        nbytes=int(stored.sum()),
        notes=notes,
    )


class _Column:
    """Places of values in a file: compact, because a file may hold millions."""

    def __init__(self) -> None:
        self.offset, self.size = array("q"), array("q")
        self.suffixes: set[str] = set()

    def add(self, offset: int, size: int, suffix: str) -> None:
        self.offset.append(offset)
        self.size.append(size)
        self.suffixes.add(suffix)


_DIGITS = re.compile(rb"\d{1000}")


def tar(window: ReadWindow, key: str, size: int) -> Iterator[FoundSample]:
    """Read a tar as WebDataset does: adjacent members with the same name up to the first dot.

    The sample is the largest of these members if that is an image; else it is everything from the
    first member's data to the end of the last one's.
    """
    return map(sample_of_members, tar_groups(window, key, size))


def tar_groups(window: ReadWindow, key: str, size: int) -> Iterator[list[tarfile.TarInfo]]:
    """Yield the members of each sample of a tar, without hidden ones.

    Raises DatasetError if the tar is damaged, and StorageError.
    """
    group: list[tarfile.TarInfo] = []
    place = -1
    try:
        with tarfile.open(fileobj=_File(window, size), mode="r:") as archive:
            while (member := archive.next()) is not None:
                # tarfile accepts a negative size (CVE-2025-8194).
                if archive.offset <= place:
                    raise tarfile.ReadError(f"the member before byte {place} ends before it begins")
                place = archive.offset
                if member.isreg() and not member.sparse and not _is_hidden(member.name):
                    if group and _stem(group[0].name) != _stem(member.name):
                        yield group
                        group = []
                    group.append(member)
                # tarfile keeps every member; a million of them take a gigabyte.
                archive.members.clear()  # type: ignore[attr-defined]
            # tarfile treats an invalid header as end-of-archive. The true end is a block of zeros
            # or the end of the file.
            if any(
                window.read(archive.offset, min(archive.offset + tarfile.BLOCKSIZE, size))
                if archive.offset < size
                else b""
            ):
                raise tarfile.ReadError(f"no header at byte {archive.offset}")
    except (tarfile.TarError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise damaged(key, str(error)) from None
    if group:
        yield group


def tfrecord(window: ReadWindow, key: str, size: int) -> Iterator[FoundSample]:
    """One sample for each record.

    The checksum of each length is verified here, that of the data when it is read.
    """
    position = 0
    while position < size:
        if size - position < 16:
            raise damaged(key, f"the record at byte {position} is cut off")
        head = window.read(position, position + 12)
        (length,) = struct.unpack_from("<Q", head)
        if masked_crc(head[:8]) != struct.unpack_from("<I", head, 8)[0]:
            raise damaged(
                key, f"no TFRecord at byte {position}: the checksum of its length differs"
            )
        if position + 16 + length > size:
            raise damaged(
                key,
                f"the record at byte {position} ends at {position + 16 + length}, the file at "
                f"{size}",
            )
        yield FoundSample(position + 12, length)
        position += 16 + length


def mds(window: ReadWindow, key: str, size: int) -> Iterator[FoundSample]:
    """One sample for each row of a shard, whose offsets are at its beginning.

    It is the one column of the row whose length varies, or the whole row if there are several.
    """
    table = 4 * (struct.unpack("<I", window.read(0, 4))[0] + 2) if size >= 4 else 4
    if table > size:
        raise damaged(key, "no MDS shard: its offsets do not fit into the file")
    last, before, after, suffix = table, 0, 0, ""
    for at in range(4, table - 4, 4):
        begin, end = struct.unpack("<2I", window.read(at, at + 8))
        if at == 4:
            before, after, suffix = _column_of_mds(window, key, table, min(begin, size))
            last = begin
        if begin != last or not begin + before + after <= end <= size:
            raise damaged(key, f"the sample from byte {begin} to {end} can't be in the shard")
        yield FoundSample(begin + before, end - begin - before - after, suffix)
        last = end


def _column_of_mds(window: ReadWindow, key: str, begin: int, end: int) -> tuple[int, int, str]:
    """The bytes of a row before and after its column of varying length, and the suffix of that."""
    try:
        told = parse_json(bytes(window.read(begin, end)))
        sizes, kinds = told["column_sizes"], told["column_encodings"]
        known = [size for size in sizes if size is not None]
        if len(sizes) != len(kinds) or not all(type(size) is int and size >= 0 for size in known):
            raise ValueError("its columns have no sizes")
    except (ValueError, KeyError, TypeError) as error:
        raise damaged(key, f"no MDS shard: its description of columns is wrong ({error})") from None
    if len(sizes) != len(known) + 1:
        return 0, 0, ""
    place = sizes.index(None)
    suffix = ".jpg" if kinds[place] == "jpeg" else ""
    return 4 + sum(sizes[:place]), sum(sizes[place + 1 :]), suffix


Indexer = Callable[[ReadWindow, str, int], ShardSamples]

_WALKS: dict[str, Callable[[ReadWindow, str, int], Iterator[FoundSample]]] = {
    "tar": tar,
    "tfrecord": tfrecord,
    "mds": mds,
}
FINDERS: dict[str, Finder] = {"parquet": parquet, "hdf5": hdf5}
"""By format: what finds a shard's samples with a library, which may do so in a sandbox only."""

_PACKAGES = {"parquet": "pyarrow.parquet", "hdf5": "h5py"}


def indexer(form: str) -> Indexer:
    """Return what finds a shard's samples, given a window on it, its key and size.

    It raises DatasetError naming a shard that can't be read, and StorageError.
    """
    if form in FINDERS:
        return Sandbox(FINDERS[form]).samples
    if form == "lmdb":
        return lmdb
    walk = _WALKS[form]
    return lambda window, key, size: listed(walk(window, key, size), size)


def prepare(form: str) -> None:
    """Import the library of a format once, before processes are forked. Raises UsageError."""
    if form in _PACKAGES:
        FORMATS.require(form, _PACKAGES[form])


def _is_hidden(name: str) -> bool:
    """Whether it is a file such as ``._0001.jpg``, which macOS puts beside each one in a tar."""
    return name.rpartition("/")[2].startswith(".")


def _stem(name: str) -> str:
    folder, slash, base = name.rpartition("/")
    return folder + slash + base.partition(".")[0]


def sample_of_members(group: list[tarfile.TarInfo]) -> FoundSample:
    """Return the sample that these members of a tar are (see ``tar``)."""
    largest = max(group, key=lambda member: member.size)
    suffix = suffix_of(largest.name)
    if suffix in (".jpg", ".jpeg") or len(group) == 1:
        return FoundSample(largest.offset_data, largest.size, suffix)
    first, last = group[0], group[-1]
    return FoundSample(first.offset_data, last.offset_data + last.size - first.offset_data)


class _File(Seekable):
    """A file object for tarfile over a window: seeking over contents costs no read."""

    def __init__(self, window: ReadWindow, size: int) -> None:
        super().__init__(size)
        self.window = window

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.size, self.position + size)
        if end <= self.position:
            return b""
        if end - self.position > MAX_PAX_HEADER:
            raise tarfile.ReadError(
                f"a header of {end - self.position} bytes; the limit is {MAX_PAX_HEADER}"
            )
        data = bytes(self.window.read(self.position, end))
        if _DIGITS.search(data):  # on which tarfile's regular expressions would take hours
            raise tarfile.ReadError(f"the header at byte {self.position} is not a tar header")
        self.position = end
        return data
