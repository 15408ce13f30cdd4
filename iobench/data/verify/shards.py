"""Compare the shards of a dataset with its manifest: contents, framing, what is in between.

The result says what is damaged, and what could not be read.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import xxhash

from ...base.buffers import Buffer, private
from ...base.errors import DatasetError, MissingObjectError, ShortObjectError, StorageError
from ...record.manifest import Manifest
from ...storage.base import Storage
from ...storage.files import WINDOW_BYTES, ReadWindow
from ..dataset import ResolvedSpec
from ..formats.base import BlockRows, Blocks, Framed
from ..generator.pool import working_on

MAX_DAMAGES = 100
MAX_UNREADABLE = 20
"""Fewer, since each may have cost all retries and time-outs of a storage that does not answer."""


class Damage(NamedTuple):
    """One difference from the manifest.

    ``sample`` is None if it is of the whole shard: it is missing or longer, or its end differs.
    """

    shard: str
    sample: int | None
    what: str

    def __str__(self) -> str:
        where = self.shard if self.sample is None else f"{self.shard}: sample {self.sample}"
        return f"{where}: {self.what}"


class Unreadable(NamedTuple):
    """A shard that could not be read, at least in part, so that its state is unknown."""

    shard: str
    what: str

    def __str__(self) -> str:
        return f"{self.shard}: not read: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """The result for a dataset.

    ``damages`` and ``unreadable`` hold at most MAX_DAMAGES and MAX_UNREADABLE entries. If there
    were more of either, ``stopped`` is true and the rest of the dataset was not examined.
    """

    shards: int
    samples: int
    bytes_read: int
    damages: tuple[Damage, ...]
    unreadable: tuple[Unreadable, ...]
    stopped: bool
    wall_s: float

    @property
    def ok(self) -> bool:
        """Whether everything was read and is as the manifest says."""
        return not self.damages and not self.unreadable


@dataclass(kw_only=True, slots=True)
class PartialReport:
    """What was found in some shards. ``missing`` is damage if the storage shows any object."""

    shards: int = 0
    samples: int = 0
    bytes_read: int = 0
    damages: list[Damage] = field(default_factory=list)
    missing: list[Damage] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def seen_by(self, host: str) -> PartialReport:
        """The same, with the name of the host that has read it in each finding."""

        def told(what: str) -> str:
            return f"{what} (seen by {host})"

        return replace(
            self,
            damages=[each._replace(what=told(each.what)) for each in self.damages],
            missing=[each._replace(what=told(each.what)) for each in self.missing],
            unreadable=[each._replace(what=told(each.what)) for each in self.unreadable],
        )

    def add(self, other: PartialReport) -> None:
        self.shards += other.shards
        self.samples += other.samples
        self.bytes_read += other.bytes_read
        self.damages += other.damages
        self.missing += other.missing
        self.unreadable += other.unreadable


class _SampleMemory:
    """Memory for one sample at a time, faulted in only as far as it is filled."""

    def __init__(self) -> None:
        self._held: Buffer = memoryview(b"")

    def of(self, size: int) -> Buffer:
        """The first ``size`` bytes. Raises DatasetError if the host has not so many."""
        if len(self._held) < size:
            try:
                self._held = private(size, prefault=False).array.data
            except (OSError, OverflowError, ValueError, MemoryError):
                raise DatasetError(
                    f"a sample of {size} bytes does not fit into memory",
                    remedy="use a host with more memory, if the sample really has that size",
                ) from None
        return self._held[:size]


class ShardChecker:
    """Compares shards in one process.

    Samples of scanned data are also decoded: what they are was concluded from a few of them.
    """

    def __init__(self, storage: Storage, manifest: Manifest) -> None:
        dataset = ResolvedSpec.of(manifest)
        self.storage = storage
        self.manifest = manifest
        self.format = dataset.format
        self.codec = dataset.codec
        self.suffix = dataset.suffix
        self.plain = self.codec.plain
        # For scanned data the manifest says nothing about the bytes between samples.
        self.foreign = bool(manifest.header.origin)
        self.hashed = manifest.header.checksums
        self.content = dataset.content
        self._content, self._decoded = _SampleMemory(), _SampleMemory()
        self._window = ReadWindow(storage, int(manifest.samples["stored"].max()))

    def check(self, shards: range) -> PartialReport:
        """Compare these shards as far as they can be read; errors are in the result."""
        part = PartialReport(shards=len(shards))
        before = self._window.bytes_read
        for shard in shards:
            key = self.manifest.key(shard)
            working_on(key)
            try:
                samples, damages = self._shard(shard, key)
                part.samples += samples
                part.damages += damages
            except MissingObjectError as error:
                part.missing.append(Damage(key, None, error.what))
            except (DatasetError, ShortObjectError, StorageError) as error:
                damage = self._damage_behind(error, shard, key)
                if damage is None:
                    part.unreadable.append(Unreadable(key, str(error)))
                else:
                    part.damages.append(damage)
            if len(part.damages) > MAX_DAMAGES or len(part.unreadable) > MAX_UNREADABLE:
                break
        part.bytes_read = self._window.bytes_read - before
        return part

    def _damage_behind(
        self, error: DatasetError | StorageError, shard: int, key: str
    ) -> Damage | None:
        """The damage that the error shows; None if the shard could only not be read.

        A read that ends early is damage if the object really is too short.
        """
        if isinstance(error, DatasetError):
            return Damage(key, None, error.what)
        if isinstance(error, ShortObjectError):
            try:
                if self.storage.size(key) < int(self.manifest.shards["size"][shard]):
                    return Damage(key, None, error.what)
            except StorageError:
                pass
        return None

    def _shard(self, shard: int, key: str) -> tuple[int, list[Damage]]:
        """(samples compared, damages) of one shard."""
        table = self.manifest.samples
        expected = int(self.manifest.shards["size"][shard])
        first = int(self.manifest.shards["first"][shard])
        last = first + int(self.manifest.shards["samples"][shard])
        damages: list[Damage] = []
        actual = self._window.open(key)
        if actual != expected:
            what = "truncated" if actual < expected else "too long"
            damages.append(Damage(key, None, f"{what}: {actual} bytes, not {expected}"))
        if isinstance(self.format, Blocks):
            return self._blocks(self.format, shard, key, min(actual, expected), damages)
        whole = xxhash.xxh3_64()
        position = 0
        framed = self.format if isinstance(self.format, Framed) else None
        # What should lie before the next sample's framing; None: unknown.
        between: bytes | None = b"" if framed is not None else None
        # A format that builds whole shards may place samples in any order.
        order = (
            range(first, last)
            if framed is not None
            else (first + np.argsort(table["offset"][first:last], kind="stable")).tolist()
        )
        for checked, index in enumerate(order):
            offset, stored_bytes = int(table["offset"][index]), int(table["stored"][index])
            if offset + stored_bytes > actual:
                damages.append(
                    Damage(
                        key,
                        index,
                        f"missing: it ends at byte {offset + stored_bytes}, but the shard ends "
                        f"at {actual}",
                    )
                )
                return checked, damages
            if self.foreign:  # labels and headers of any length may be in between
                position = offset
            elif framed is None:
                position = self._hash(whole, position, offset)
            piece = self._window.read(position, offset + stored_bytes)
            stored = piece[offset - position :]
            whole.update(piece)
            problem = self._compare(stored, int(table["size"][index]), int(table["xxh3"][index]))
            if problem:
                damages.append(Damage(key, index, problem))
                between = None
            elif framed is not None:
                # Framing may hold a checksum of the sample, so only a good sample's is known.
                frame = framed.frame(index, self.suffix, stored)
                if (
                    not self.foreign
                    and between is not None
                    and piece[: offset - position] != between + frame.head
                ):
                    damages.append(Damage(key, index, "the framing before it differs"))
                between = frame.tail
            position = offset + stored_bytes
            if len(damages) > MAX_DAMAGES:
                return checked, damages
        if not self.foreign:
            self._hash(whole, position, min(actual, expected))
        self._check_whole(whole, shard, key, damages)
        return last - first, damages

    def _check_whole(
        self, whole: xxhash.xxh3_64, shard: int, key: str, damages: list[Damage]
    ) -> None:
        """Compare the checksum of the shard, which tells no more where a sample is damaged."""
        if damages or self.foreign:
            return
        if whole.intdigest() != int(self.manifest.shards["xxh3"][shard]):
            damages.append(
                Damage(key, None, "bytes outside of its samples differ (shard checksum)")
            )

    def _hash(self, whole: xxhash.xxh3_64, position: int, end: int) -> int:
        """Add the bytes from ``position`` to ``end`` to the shard's checksum.

        Returns ``end``, or ``position`` if that is larger.
        """
        while position < end:
            step = min(end, position + WINDOW_BYTES)
            whole.update(self._window.read(position, step))
            position = step
        return position

    def _blocks(
        self, form: Blocks, shard: int, key: str, end: int, damages: list[Damage]
    ) -> tuple[int, list[Damage]]:
        """``_shard`` for a format that is read by blocks; each block is decoded once."""
        first, samples = (
            int(self.manifest.shards["first"][shard]),
            int(self.manifest.shards["samples"][shard]),
        )
        table = {
            name: self.manifest.samples[name][first : first + samples]
            for name in ("offset", "stored", "size", "xxh3")
        }
        data_end = int((table["offset"] + table["stored"]).max())
        if data_end >= end:
            return 0, damages or [
                Damage(
                    key,
                    None,
                    f"its blocks would end at byte {data_end}, but the shard ends at {end}",
                )
            ]
        whole = xxhash.xxh3_64()
        try:
            start = data_end
            if self.foreign:  # other columns may be in between
                last = self._window.apart(max(0, end - 8), end)
                start = max(start, end - form.footer_bytes(last, end))
            tail = self._window.apart(start, end)
            opened = form.open(tail, end)
            bounds = [0, *(np.flatnonzero(np.diff(table["offset"])) + 1).tolist(), samples]
            if opened.groups != len(bounds) - 1:
                raise ValueError(
                    f"its footer lists {opened.groups} blocks, the manifest {len(bounds) - 1}"
                )
        except ValueError as error:
            return 0, [*damages, Damage(key, None, str(error))]
        position = checked = 0
        for group, rows in enumerate(itertools.starmap(slice, itertools.pairwise(bounds))):
            offset, stored = int(table["offset"][rows.start]), int(table["stored"][rows.start])
            if not self.foreign:
                self._hash(whole, position, offset)
            piece = self._window.read(offset, offset + stored)
            try:
                most = int(table["size"][rows].sum())
                found = opened.decode(group, None, [(offset, piece)], check=True, most=most)
                if found.count != rows.stop - rows.start:
                    raise ValueError(
                        f"row group {group} has {found.count} rows, not {rows.stop - rows.start}"
                    )
                damages += self._rows(
                    key, found, first + rows.start, table["size"][rows], table["xxh3"][rows]
                )
            except ValueError as error:
                damages.append(
                    Damage(key, first + rows.start, f"and the rest of its block: {error}")
                )
            whole.update(piece)
            position, checked = offset + stored, rows.stop
            if len(damages) > MAX_DAMAGES:
                return checked, damages
        if not self.foreign:
            self._hash(whole, position, data_end)
        whole.update(tail)
        self._check_whole(whole, shard, key, damages)
        return checked, damages

    def _rows(
        self, key: str, found: BlockRows, first: int, sizes: Any, digests: Any
    ) -> list[Damage]:
        damages = []
        for row, (size, digest) in enumerate(zip(sizes.tolist(), digests.tolist(), strict=True)):
            content = found.content(row)
            if len(content) != size:
                damages.append(Damage(key, first + row, f"{len(content)} bytes, not {size}"))
            elif problem := self._problem(content, digest):
                damages.append(Damage(key, first + row, problem))
        return damages

    def _compare(self, stored: Buffer, size: int, digest: int) -> str:
        """What is wrong with a sample's stored bytes; '' if nothing is."""
        content = stored
        if not self.plain:
            content = self._content.of(size)
            try:
                got = self.codec.decompress(stored, content)
            except ValueError as error:
                return str(error)
            if got != size:
                return f"{got} bytes after decompression, not {size}"
        elif len(stored) != size:
            return f"{len(stored)} bytes, not {size}"
        return self._problem(content, digest)

    def _problem(self, content: Buffer, digest: int) -> str:
        """What is wrong with a sample's content; '' if nothing is."""
        if self.hashed and (actual := xxhash.xxh3_64_intdigest(content)) != digest:
            return f"its bytes differ (xxh3 {actual:016x}, not {digest:016x})"
        if not self.foreign or self.content.plain:
            return ""
        try:
            if self.content.in_place:
                self.content.locate(content)
            else:
                self.content.decode(content, self._decoded.of(self.content.decoded_bytes(content)))
        except ValueError as error:
            return f"it can't be decoded as {self.content.name}: {error}"
        return ""
