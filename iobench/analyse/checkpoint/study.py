"""A checkpoint study's figures from its saves and restores, and what they mean: pure functions of the recorded document."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

from ...schema.checkpoint import (
    Restore,
    Save,
    Spread,
    Study,
)
from ...schema.metrics import Metric, metrics_of
from ...schema.result import Summary

MEASURED = metrics_of("save", "restore")
WRITE_BANDWIDTH, RESTORE_BANDWIDTH = (each for each in MEASURED if each.unit == "bytes/s")


def spread(values: Sequence[float]) -> Spread:
    """The p95 is the value at or above which 5 % lie (nearest rank), so that of few values it is the largest."""
    ordered = sorted(values)
    return Spread(
        median=median(ordered),
        p95=ordered[-(-95 * len(ordered) // 100) - 1],
        min=ordered[0],
        max=ordered[-1],
        n=len(ordered),
    )


def end_s(save: Save) -> float | None:
    """When the save was safe; where nobody asked for that (fsync=false), when it was accepted."""
    return save.durable_s if save.durable_s is not None else save.accepted_s


def duration_s(save: Save) -> float:
    """How long storage had to take the save: from the copy, where there was one, to its end."""
    return (end_s(save) or 0.0) - (save.staged_s or 0.0)


def value_of(done: Save | Restore, metric: Metric) -> float | None:
    """A metric of saves or restores for one of them; None where it is of the other, or not measured.

    A bandwidth is that of MLPerf's rule: a job is as fast as its slowest process.
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
        return took if metric.name == own else None
    value: float | None = getattr(done, metric.name, None)
    return value


def values_of_study(study: Study, metric: Metric) -> list[float]:
    """One value of the metric for each save, or restore, that has one."""
    done: Sequence[Save | Restore] = study.saves if metric.of == "save" else study.restores
    return [float(value) for one in done if (value := value_of(one, metric)) is not None]


def with_figures(study: Study) -> Study:
    """``study`` with the spread of its times, and its bandwidths."""
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
            "no restore was asked for" if study.spec.restores == 0 else "no restore was finished"
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

    ``cpu_s`` is left out: in a run's metrics that is the name of a repetition's.
    """
    found = {}
    for metric in MEASURED:
        values = values_of_study(study, metric)
        if values and metric.name != "cpu_s":
            found[metric.name] = Summary(
                median=median(values), min=min(values), max=max(values), n=len(values)
            )
    return found


def cpu_s_per_gb(done: Sequence[Save] | Sequence[Restore]) -> float | None:
    """CPU seconds of all ranks for 1e9 bytes, over all operations; None where a writer's own cannot be told apart."""
    spent = [one.cpu_s for one in done]
    total = sum(one.bytes for one in done)
    return (
        sum(value for value in spent if value is not None) / (total / 1e9)
        if total and None not in spent
        else None
    )


def slowdown(study: Study) -> float | None:
    """How much longer a training step is while a save goes on behind it, 1.0 = not at all; None without such steps."""
    overlapped = [
        save.step_overlapped_s for save in study.saves if save.step_overlapped_s is not None
    ]
    alone = [save.step_alone_s for save in study.saves if save.step_alone_s is not None]
    return fmean(overlapped) / fmean(alone) if overlapped and alone else None
