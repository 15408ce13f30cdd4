"""Compute the figures of a checkpoint study from its recorded saves and restores.

All functions are pure functions of the recorded document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ...record.checkpoint import (
    RankSave,
    Restore,
    Save,
    Spread,
    Study,
)
from ...record.metrics import Metric, metrics_of
from ...record.run import Summary

MEASURED = metrics_of("save", "restore")
WRITE_BANDWIDTH, RESTORE_BANDWIDTH = (each for each in MEASURED if each.unit == "bytes/s")


MIN_FOR_P95 = 20
"""Fewest values whose p95 is known from them: of fewer, it is the largest or above it."""


def spread(values: Sequence[float]) -> Spread:
    """Median, mean, p95, minimum, maximum and count of ``values``.

    The p95 is the value of the nearest rank; None for fewer than ``MIN_FOR_P95`` values.
    """
    ordered = sorted(values)
    told = len(ordered) >= MIN_FOR_P95
    return Spread(
        median=median(ordered),
        mean=fmean(ordered),
        p95=ordered[-(-95 * len(ordered) // 100) - 1] if told else None,
        min=ordered[0],
        max=ordered[-1],
        n=len(ordered),
    )


def end_s(save: Save) -> float | None:
    """Time at which the save was durable, or only accepted if it was not synced (fsync=false)."""
    return save.durable_s if save.durable_s is not None else save.accepted_s


def duration_s(save: Save) -> float:
    """Time that storage took for the save: from the end of the copy, if any, to its own end.

    A copy begins when the previous save has ended, so the wait for that is left out.
    """
    return (end_s(save) or 0.0) - (save.waited_s or 0.0) - (save.staged_s or 0.0)


def _ranks(done: Restore) -> bool:
    """Whether several ranks restored, so that one of them can be the slowest."""
    return len(done.rank_s) > 1


def value_of(done: Save | Restore, metric: Metric) -> float | None:
    """The metric of one save or restore; None if it is of the other kind, or was not measured.

    Bandwidth follows MLPerf's rule: a job is as fast as its slowest process.
    """
    if metric.name == "cpu_s":
        return done.cpu_s
    if isinstance(done, Restore):
        took = done.wall_s
        own, rate = "restore_s", "restore_bytes_per_s"
    else:
        took = duration_s(done)
        own, rate = "", "write_bytes_per_s"
    if metric.name == rate:
        return done.bytes / took if took > 0 else None
    if isinstance(done, Restore):
        if metric.name == "restore_skew_s":
            return took - done.first_done_s if _ranks(done) and done.first_done_s else None
        return took if metric.name == own else None
    value: float | None = getattr(done, metric.name, None)
    return value


def values_of_study(study: Study, metric: Metric) -> list[float]:
    """All values of the metric over the study's saves or restores."""
    done: Sequence[Save | Restore] = study.saves if metric.of == "save" else study.restores
    return [float(value) for one in done if (value := value_of(one, metric)) is not None]


def with_figures(study: Study) -> Study:
    """Return ``study`` with the spread of its times, and with its bandwidths."""
    figures: dict[str, Spread] = {}
    missing: dict[str, str] = {}
    for metric in MEASURED:
        values = values_of_study(study, metric)
        if values and metric.unit != "bytes/s":
            figures[metric.name] = spread(values)
    if not study.saves:
        missing["write_bytes_per_s"] = "no save was finished"
    if not study.restores:
        missing["restore_bytes_per_s"] = (
            "no restore was requested" if study.spec.restores == 0 else "no restore was finished"
        )
    return study.model_copy(
        update={
            "files": study.saves[-1].files if study.saves else 0,
            "figures": figures,
            "not_measured": missing,
            "write_bytes_per_s": _mean(values_of_study(study, WRITE_BANDWIDTH)),
            "restore_bytes_per_s": _mean(values_of_study(study, RESTORE_BANDWIDTH)),
        }
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def summaries_of(study: Study) -> dict[str, Summary]:
    """The study's figures in the form of a run's metrics, for conditions and comparisons.

    ``cpu_s`` is left out, because in a run's metrics this name is that of a repetition's CPU time.
    """
    told = (each for each in MEASURED if each.name != "cpu_s")
    return Summary.of({each.name: values_of_study(study, each) for each in told})


def cpu_s_per_gb(done: Sequence[Save] | Sequence[Restore]) -> float | None:
    """CPU seconds of all ranks per 1e9 bytes, over all operations.

    The result is None if the CPU time of the writer alone is unknown.
    """
    spent = [one.cpu_s for one in done]
    total = sum(one.bytes for one in done)
    return (
        sum(value for value in spent if value is not None) / (total / 1e9)
        if total and None not in spent
        else None
    )


def slowdown(study: Study) -> float | None:
    """Duration of a training step during a background save over that of an undisturbed step.

    1.0 means no slowdown; the result is None if no such steps were measured.
    """
    overlapped = [
        save.step_overlapped_s for save in study.saves if save.step_overlapped_s is not None
    ]
    alone = [save.step_alone_s for save in study.saves if save.step_alone_s is not None]
    return fmean(overlapped) / fmean(alone) if overlapped and alone and fmean(alone) > 0 else None


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
