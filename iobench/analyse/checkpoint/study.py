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
from ...schema.result import Summary

TIMES = (
    "blocked_s",
    "accepted_s",
    "durable_s",
    "committed_s",
    "staged_s",
    "persist_s",
    "waited_s",
    "first_done_s",
    "cpu_s",
)


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


def bandwidth(sizes: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Bytes per second of a job by MLPerf's rule: a job is as fast as its slowest process; the mean over the operations."""
    rates = _rates(sizes, seconds)
    return fmean(rates) if rates else None


def _rates(sizes: Sequence[int], seconds: Sequence[float]) -> list[float]:
    return [size / took for size, took in zip(sizes, seconds, strict=True) if took > 0]


def _durations(saves: Sequence[Save]) -> list[float]:
    """How long storage had to take each save: from the copy, where there was one, to its end."""
    return [(end_s(save) or 0.0) - (save.staged_s or 0.0) for save in saves]


def with_figures(study: Study) -> Study:
    """``study`` with the spread of its times, and its bandwidths."""
    figures: dict[str, Spread] = {}
    missing: dict[str, str] = {}
    for name in TIMES:
        values = [value for save in study.saves if (value := getattr(save, name)) is not None]
        if values:
            figures[name] = spread(values)
    if study.restores:
        figures["restore_s"] = spread([restore.wall_s for restore in study.restores])
    memory = [
        save.extra_memory_bytes for save in study.saves if save.extra_memory_bytes is not None
    ]
    if memory:
        figures["extra_memory_bytes"] = spread(memory)
    if not study.saves:
        missing["write_bytes_per_s"] = "no save was finished"
    if not study.restores:
        missing["restore_bytes_per_s"] = (
            "no restore was asked for"
            if study.spec.get("restores") == 0
            else "no restore was finished"
        )
    return study.model_copy(
        update={
            "files": study.saves[-1].files if study.saves else 0,
            "figures": figures,
            "not_measured": missing,
            "write_bytes_per_s": bandwidth(
                [save.bytes for save in study.saves], _durations(study.saves)
            ),
            "restore_bytes_per_s": bandwidth(
                [one.bytes for one in study.restores], [one.wall_s for one in study.restores]
            ),
        }
    )


METRICS = (*TIMES, "restore_s", "extra_memory_bytes", "write_bytes_per_s", "restore_bytes_per_s")


def metrics_of(study: Study) -> dict[str, Summary]:
    """The study's figures in the form of a run's metrics, which conditions and comparisons go by; ``cpu_s`` is the run's own name."""
    found = {
        name: Summary(median=one.median, min=one.min, max=one.max, n=one.n)
        for name, one in study.figures.items()
        if name != "cpu_s"
    }
    for name, rates in (
        (
            "write_bytes_per_s",
            _rates([save.bytes for save in study.saves], _durations(study.saves)),
        ),
        (
            "restore_bytes_per_s",
            _rates([one.bytes for one in study.restores], [one.wall_s for one in study.restores]),
        ),
    ):
        if rates:
            found[name] = Summary(
                median=median(rates), min=min(rates), max=max(rates), n=len(rates)
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
