"""How a dataset's shards are named and divided, as far as a reader of its manifest needs it.

The dataset's format, content and codec determine this. They are plug-ins, and this package must
read manifests without loading plug-ins. So ``iobench.data.dataset``, which knows the plug-ins, asks
them once and passes their answers on as a ``Packing``.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA = "data"
"""The folder of the shards below the dataset's root."""

FOLDER_FILES = 1000
"""Files of one folder, where each sample is a file and the specification does not say how many."""


def label_of(index: int, labels: int) -> int:
    """Return the class of sample ``index`` in a generated dataset of ``labels`` classes.

    The classes take turns, so that every part of the dataset has nearly the same number of each.
    """
    return index % labels


def class_name(label: int, labels: int) -> str:
    """Return the name of a class; in sorted order, the names are those of classes 0, 1 ..."""
    return f"class-{label:0{len(str(labels - 1))}d}"


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The properties that one dataset has by its format, content and codec."""

    name: str  # of the dataset
    single: bool  # one sample in each shard
    suffix: str  # of a shard's file name, with the dot
    blocks: bool  # several samples share their stored bytes, as in Parquet
    plain: bool  # no codec: the stored bytes are the sample
    index_name: str = ""  # an index file next to the shards, for other readers; '': none
    class_folders: int | None = None  # number of classes, each with a folder of its own
    folder_files: int = FOLDER_FILES  # files of one folder, where each sample is a file

    @property
    def index_key(self) -> str | None:
        """The key of the index file below the dataset's root; None for formats without one."""
        return f"{DATA}/{self.index_name}" if self.index_name else None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How samples lie in the shards of a dataset, as far as the size of reads depends on it."""

    blocks: bool  # samples are read by whole blocks, as in Parquet
    block_bytes: int | None = None  # of samples before the codec; None: not known, or no blocks
    framing_bytes: float = 0.0  # around one sample, read with it when a shard is read in order
    prefers_random: bool = False  # ``reader.access: auto`` means random access


class Keys:
    """The key of each shard below the dataset's root: ``Keys(packing)(shard)``.

    Files of one sample each are distributed over folders of ``folder_files`` files. If each class
    has a folder of its own, these are below it, and hold its part of these files.
    """

    __slots__ = ("_classes", "_each", "_prefix", "_single", "_suffix")

    def __init__(self, packing: Packing) -> None:
        self._single = packing.single
        self._classes = packing.class_folders
        self._each = packing.folder_files
        self._suffix = packing.suffix
        self._prefix = DATA if packing.single else f"{DATA}/{packing.name}"

    def __call__(self, shard: int) -> str:
        if self._single:
            folder = f"{self._above(shard)}/{shard // self._each:06d}"
            return f"{folder}/{shard:09d}{self._suffix}"
        return f"{self._prefix}-{shard:06d}{self._suffix}"

    def _above(self, shard: int) -> str:
        """Return the folder of the folders of files of one sample each."""
        if self._classes is None:
            return self._prefix
        return f"{self._prefix}/{class_name(label_of(shard, self._classes), self._classes)}"

    def number(self, key: str) -> int | None:
        """Return the number of the shard with this key, or None if no shard can have it.

        The dataset may have fewer shards.
        """
        stem = key.removesuffix(self._suffix)
        shard = _number(stem.rpartition("/" if self._single else "-")[2])
        return shard if shard is not None and self(shard) == key else None

    def folder(self, name: str) -> int | None:
        """Return the number of the first shard in a folder below DATA, or None if it holds none."""
        above, _, last = name.rpartition("/")
        if not self._single:
            return None
        if self._classes is not None and above == self._prefix:
            label = _number(last.rpartition("-")[2])
            known = label is not None and label < self._classes and self._above(label) == name
            return label if known else None
        number = _number(last)
        if number is None:
            return None
        first = number * self._each
        if self._classes is not None:
            label = _number(above.rpartition("-")[2])
            if label is None:
                return None
            first += (label - first) % self._classes
        return first if self(first).rpartition("/")[0] == name else None


def _number(digits: str) -> int | None:
    """The whole number of at most 15 digits; None for another text."""
    known = digits.isascii() and digits.isdigit() and len(digits) < 16
    return int(digits) if known else None


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` matches ``pattern``.

    ``*`` stands for any number of characters except a slash, also for none. The first position
    where a piece between stars fits is always the best one, so that no backtracking is needed.
    Others may have written both: a regular expression with a few stars can take seconds for one
    name of 255 letters, and a record may have as many patterns as fit into a file.
    """
    wanted, parts = pattern.split("/"), name.split("/")
    return len(wanted) == len(parts) and all(map(_matches, wanted, parts))


def _matches(pattern: str, part: str) -> bool:
    first, *pieces = pattern.split("*")
    if not pieces:
        return part == first
    last = pieces.pop()
    position, end = len(first), len(part) - len(last)
    if position > end or not part.startswith(first) or not part.endswith(last):
        return False
    for piece in pieces:
        found = part.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True
