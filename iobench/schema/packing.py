"""How a dataset's shards are named and cut, as far as a reader of its manifest has to know.

A dataset's format, content and codec decide it. They are plug-ins, and what is on disk must be
readable without loading one. So ``iobench.dataset``, which stands above the plug-ins, asks them
once, and hands their answers over.
"""

from __future__ import annotations

from dataclasses import dataclass

DATA = "data"
"""The folder of the shards, below the dataset's root."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """The answers of one dataset's format, content and codec."""

    name: str  # the dataset's
    single: bool  # one sample in each shard
    suffix: str  # of a shard's file name, with its dot
    blocks: bool  # several samples share what is stored, as in Parquet
    plain: bool  # no codec: what is stored is the sample
    index_name: str = ""  # the file beside the shards that other readers look for; '' for none

    @property
    def index_key(self) -> str | None:
        """Where that file lies, below the dataset's root; None for formats without one."""
        return f"{DATA}/{self.index_name}" if self.index_name else None


class Keys:
    """Where each shard of a dataset lies below its root: ``Keys(packing)(shard)``.

    One file per sample fans out over folders of 1000.
    """

    __slots__ = ("_prefix", "_single", "_suffix")

    def __init__(self, packing: Packing) -> None:
        self._single = packing.single
        self._suffix = packing.suffix
        self._prefix = DATA if packing.single else f"{DATA}/{packing.name}"

    def __call__(self, shard: int) -> str:
        if self._single:
            return f"{self._prefix}/{shard // 1000:06d}/{shard:09d}{self._suffix}"
        return f"{self._prefix}-{shard:06d}{self._suffix}"

    def number(self, key: str) -> int | None:
        """The shard that would have this key, whether a dataset has so many or not; else None."""
        stem = key.removesuffix(self._suffix)
        digits = stem.rpartition("/" if self._single else "-")[2]
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            return None
        shard = int(digits)
        return shard if self(shard) == key else None

    def folder(self, name: str) -> int | None:
        """The first shard that would lie in a folder of this name below DATA; else None."""
        above, _, digits = name.rpartition("/")
        if not self._single or above != self._prefix:
            return None
        if not (digits.isascii() and digits.isdigit() and len(digits) < 16):
            return None
        first = int(digits) * 1000
        return first if self(first).rpartition("/")[0] == name else None
