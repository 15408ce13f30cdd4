"""What a verification finds: what is damaged, and what could not be read and may be good."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_DAMAGES = 100
MAX_UNREADABLE = 20
"""Fewer, since each may have cost all the retries and time-outs of a storage that is silent."""


class Damage(NamedTuple):
    """One thing that is not what the manifest says.

    ``sample`` is None where it is the shard's own: it is missing, longer, or its end differs.
    """

    shard: str
    sample: int | None
    what: str

    def __str__(self) -> str:
        where = self.shard if self.sample is None else f"{self.shard}: sample {self.sample}"
        return f"{where}: {self.what}"


class Unreadable(NamedTuple):
    """A shard of which at least a part could not be read, so that nothing is known about it."""

    shard: str
    what: str

    def __str__(self) -> str:
        return f"{self.shard}: not read: {self.what}"


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyReport:
    """``damages`` and ``unreadable`` hold the first MAX_DAMAGES and MAX_UNREADABLE at most.

    Where there were more of either, ``stopped`` is true and the rest was not looked at.
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
        """Everything was read, and is what the manifest says."""
        return not self.damages and not self.unreadable


@dataclass(kw_only=True, slots=True)
class Part:
    """What was found in some of the shards. ``missing``: damage, if the storage shows anything."""

    shards: int = 0
    samples: int = 0
    bytes_read: int = 0
    damages: list[Damage] = field(default_factory=list)
    missing: list[Damage] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def add(self, other: Part) -> None:
        self.shards += other.shards
        self.samples += other.samples
        self.bytes_read += other.bytes_read
        self.damages += other.damages
        self.missing += other.missing
        self.unreadable += other.unreadable
