"""The result of a verification: what is damaged, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

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
