"""What each host of a checkpoint study took: a host is done when its slowest rank is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ...schema.checkpoint import RankSave, Study


@dataclass(frozen=True, kw_only=True)
class HostSaves:
    """One host in all saves and restores of a study. Times are medians, in seconds.

    ``bytes``: of its ranks, in one save. None: not measured.
    """

    host: int
    ranks: int
    bytes: int | None
    blocked_s: float | None
    durable_s: float | None
    restore_s: float | None
    late_s: float | None  # the latest start of one of its ranks, over all restores

    @property
    def total_s(self) -> float:
        """For the order: the time of a save and a restore."""
        return (self.durable_s or 0.0) + (self.restore_s or 0.0)


def host_saves(study: Study) -> list[HostSaves]:
    """What each host took, the slowest first; nothing for a study of one host."""
    found = []
    for number, host in enumerate(study.hosts if len(study.hosts) > 1 else ()):
        mine = slice(host.first_rank, host.first_rank + host.ranks)
        saves = [save.ranks[mine] for save in study.saves if len(save.ranks) == study.ranks]
        restores = [each.rank_s[mine] for each in study.restores if each.rank_s]
        late = [each.rank_late_s[mine] for each in study.restores if each.rank_late_s]
        found.append(
            HostSaves(
                host=number,
                ranks=host.ranks,
                bytes=sum(part.bytes for part in saves[-1]) if saves else None,
                blocked_s=_median([part.blocked_s for part in save] for save in saves),
                durable_s=_median([_end_s(part) for part in save] for save in saves),
                restore_s=_median(restores),
                late_s=max((max(each) for each in late if each), default=None),
            )
        )
    return sorted(found, key=lambda host: -host.total_s)


def _end_s(part: RankSave) -> float:
    known = (part.durable_s, part.accepted_s)
    return next((value for value in known if value is not None), part.blocked_s)


def _median(times: Iterable[Sequence[float]]) -> float | None:
    """Of the slowest rank of each."""
    slowest = [max(each) for each in times if each]
    return median(slowest) if slowest else None
