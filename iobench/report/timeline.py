"""The steps of the repetition with the median rate: along its time, and how their times are spread.

Below the timeline, on the same axis, is what the host did meanwhile. All of it is for pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..judge.cache import MAX_RESIDENT
from ..judge.figures.events import Events, select
from ..judge.figures.timeline import (
    KINDS,
    LEVELS,
    QUANTILES,
    RankSteps,
    StepTimes,
    TimeSpread,
    Use,
    host_use,
    spreads,
    step_times,
)
from ..record.metrics import Unit
from ..record.run import TrainingRecord
from ..record.training import Repetition
from .figures import TableOf, figure, word
from .sections import Cell, Chart, ChartTrack, Mark, Pane, Section, Table, Timeline
from .time import middle_repetition

MAX_RANKS = 8
"""Ranks that are drawn: the slowest ones by their p99."""

MAX_MARKS = 40


def event_sections(
    doc: TrainingRecord, events: Events, samples: Events | None = None
) -> tuple[list[Section], list[str]]:
    """What the steps of the repetition with the median rate tell, and why some of it is missing.

    ``events`` and ``samples`` (of the host) are those of the whole run.
    """
    chosen = middle_repetition(doc)
    if chosen is None:
        return [], []
    rows, of = select(events, "measure", chosen.number), chosen.of
    steps, kinds, found = step_times(rows), spreads(rows), list[Section]()
    if steps is not None:
        uses: dict[str, Use] = {}
        if samples is not None:
            uses = shown_uses(host_use(select(samples, "measure", chosen.number), steps.epochs_s))
        found += [_timeline(steps, chosen.repetition, uses, of), _waits(steps, of)]
        found += [use_table(uses, of)] if uses else []
    drawn = any(len(each.quantiles) > 1 for each in kinds.values())
    found += [_curve(kinds, of), _spread_table(kinds, of)] if drawn else []
    reasons = []
    if kinds and not drawn:
        many = counted(next(iter(kinds.values())).steps, "step")
        reasons = [f"How the times of the steps are spread: {many} do not tell it."]
    elif kinds and not kinds.keys() & {"read", "prep"}:
        why = f"loader '{doc.job.subject.kind}' does not tell these times"
        why = why if doc.job.subject.reads_itself else "they were not recorded"
        reasons = [f"Read and decode of a batch: {why}."]
    return found, reasons


def _timeline(
    found: StepTimes, repetition: Repetition, uses: Mapping[str, Use], of: str
) -> Timeline:
    """Wait and busy time of each step, and below it what the host did."""
    drawn = sorted(found.ranks, key=lambda each: -each.quantiles["p99"])[:MAX_RANKS]
    drawn.sort(key=lambda each: each.rank)
    several = len(found.ranks) > 1
    tracks = [
        ChartTrack(label=f"{what}{f', rank {each.rank}' if several else ''}", **bins)
        for each in drawn
        for what, bins in (("wait", _track(each, "wait")), ("busy", _track(each, "busy")))
    ]
    notes = ["Wait: from asking for a batch to having it. Busy: the accelerator's step."]
    if found.merged:
        notes.append(
            "There are more steps than points: a point shows the least and the largest of several."
        )
    if len(drawn) < len(found.ranks):
        notes.append(f"The {len(drawn)} ranks with the longest waits of {len(found.ranks)}.")
    marks = _marks(found, repetition)
    if len(marks) > MAX_MARKS:
        notes.append(f"{MAX_MARKS} of {len(marks):,} epochs, saves and retries are marked.")
    return Timeline(
        id="timeline",
        title=f"Each step over time{of}",
        unit="s",
        tracks=tuple(tracks),
        marks=marks[:MAX_MARKS],
        notes=tuple(notes),
        panes=panes(uses),
    )


def _track(rank: RankSteps, what: str) -> dict[str, tuple[float, ...]]:
    bins = rank.wait if what == "wait" else rank.busy
    return {"at": bins.at_s, "low": bins.low, "high": bins.high}


def _marks(found: StepTimes, repetition: Repetition) -> tuple[Mark, ...]:
    """The start of each epoch, with what the page cache held then, and saves and retries."""
    cached = {each.epoch: each.residency_before for each in repetition.epochs}
    marks = [
        Mark(at=at, label=f"epoch {number + 1}{_cached(cached.get(number))}")
        for number, at in found.epochs_s.items()
    ]
    marks += [Mark(at=at, label="save") for at in found.saves_s]
    marks += [Mark(at=at, label="retry") for at in found.retries_s]
    return tuple(marks)


def _cached(residency: float | None) -> str:
    if residency is None:
        return ""
    return " cold" if residency <= MAX_RESIDENT else f" {format_percent(residency)} cached"


def _waits(found: StepTimes, of: str) -> Table:
    rows = TableOf(found.ranks)
    rows.add("rank", "rank")
    rows.add("steps", "steps", "count")
    names = {f"wait_{name}_s": name for name in QUANTILES}
    rows.add_each(names, "s", lambda each, name: each.quantiles[names[name]])
    rows.add("wait_longest_s", "longest", "s", lambda each: each.longest_wait_s)
    rows.add("retries", "retries", "count")
    title = f"How long the steps of each rank waited for their batch{of}"
    return rows.made("waits", title, where="pages")


MIN_LOOPBACK = 1 << 20
"""Bytes/s over loopback below which no storage is read in this way: it is not shown_uses."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    title: str
    unit: Unit
    show: Callable[[float], str]
    labels: Mapping[str, str]  # by the names of ``host_use``


def _per_second(count: float) -> str:
    return f"{format_count(count)}/s"


PANES = (
    _Shown(
        title="Bytes per second of the data's device and of the network",
        unit="bytes/s",
        show=format_rate,
        labels={
            "device_read": "device, read",
            "device_write": "device, written",
            "received": "network, received",
            "sent": "network, sent",
            "loopback": "loopback",
        },
    ),
    _Shown(
        title="Share of the time: busy, or a task that waits (pressure)",
        unit="share",
        show=format_percent,
        labels={
            "cpu": "all cores busy",
            "device_busy": "device busy",
            "gpu_busy": "GPUs busy",
            "io_pressure": "waiting for IO",
            "cpu_pressure": "waiting for a core",
            "memory_pressure": "waiting for memory",
        },
    ),
    _Shown(
        title="Memory of the host",
        unit="bytes",
        show=format_bytes,
        labels={
            "memory": "memory in use",
            "page_cache": "page cache",
            "gpu_memory": "GPU memory",
        },
    ),
    _Shown(
        title="NFS operations per second",
        unit="count",
        show=_per_second,
        labels={"nfs_reads": "NFS READ", "nfs_others": "NFS, all others"},
    ),
    _Shown(
        title="Mean round trip of the NFS READ operations",
        unit="s",
        show=format_duration,
        labels={"nfs_read_rtt": "round trip of READ"},
    ),
)


def shown_uses(uses: Mapping[str, Use]) -> dict[str, Use]:
    """Those of ``host_use`` that a report shows."""
    return {
        name: use for name, use in uses.items() if name != "loopback" or use.largest >= MIN_LOOPBACK
    }


def panes(uses: Mapping[str, Use]) -> tuple[Pane, ...]:
    """A pane for each group of figures of which some were measured."""
    found = []
    for pane in PANES:
        tracks = tuple(
            ChartTrack(label=label, at=use.at_s, low=use.values, high=use.values)
            for name, label in pane.labels.items()
            if (use := uses.get(name)) is not None
        )
        if tracks:
            found.append(Pane(title=pane.title, unit=pane.unit, tracks=tracks))
    return tuple(found)


def use_table(uses: Mapping[str, Use], of: str) -> Table:
    """Mean and largest value of each figure. ``of`` names the repetition in the title."""
    known = [
        (pane, name, label, use)
        for pane in PANES
        for name, label in pane.labels.items()
        if (use := uses.get(name)) is not None
    ]
    rows = TableOf(known)
    rows.add("figure", "figure", of=lambda each: word(each[2], each[1]))
    rows.add("mean", "mean", of=lambda each: figure(each[3].mean, each[0].show))
    rows.add("largest", "largest sample", of=lambda each: figure(each[3].largest, each[0].show))
    title = f"What the whole host did meanwhile{of}, other processes included"
    return rows.made("host-use", title, where="pages")


TIMES = {
    "wait": "wait for a batch",
    "read": "read of a batch",
    "prep": "decode of a batch",
    "step": "whole step",
}
SHOWN_QUANTILES = {0.5: "p50", 0.9: "p90", 0.99: "p99", 0.999: "p99.9"}


def _curve(found: dict[str, TimeSpread], of: str) -> Table:
    """Seconds over 1 / (1 - quantile), so that each nine takes the same room."""
    kinds = [kind for kind in KINDS if kind in found and len(found[kind].quantiles) > 1]
    levels = [level for level in LEVELS if any(level in found[kind].quantiles for kind in kinds)]
    rows = TableOf(levels)
    rows.add(
        "quantile",
        "quantile",
        "ratio",
        lambda level: Cell(value=1 / (1 - level), text=f"p{100 * level:g}"),
    )
    labels = {kind: TIMES[kind] for kind in kinds}
    rows.add_each(labels, "s", lambda level, kind: found[kind].quantiles.get(level))
    chart = Chart(
        kind="lines",
        x="quantile",
        y=tuple(kinds),
        x_label="share of the steps that take at most so long",
        y_label="time",
        log="xy",
        named=True,
    )
    title = f"Quantiles of the times of the steps{of}"
    return rows.made("spread", title, charts=[chart], where="page")


def _spread_table(found: dict[str, TimeSpread], of: str) -> Table:
    title = f"How the times of the steps are spread over all ranks{of}"
    told = [each.quantiles for each in found.values()]
    notes = [
        "Wait: from asking for a batch to having it. Read and decode: a worker's time for the "
        "batch. Whole step: wait, copy, busy, waiting for other ranks, and saves."
    ]
    untold = [name for level, name in SHOWN_QUANTILES.items() if all(level not in q for q in told)]
    if untold:
        steps = counted(next(iter(found.values())).steps, "step")
        notes.append(f"Too few steps ({steps}) for {', '.join(untold)}.")
    if any(each.merged for each in found.values()):
        notes.append(
            "There were more steps than rows of events: a row is the mean of neighbouring steps, "
            "so that the largest values are higher than shown."
        )
    rows = TableOf(found)
    rows.add("time", "time of", of=lambda kind: word(TIMES[kind], kind))
    rows.add("steps", "steps", "count", lambda kind: found[kind].steps)
    at = {f"{name}_s": level for level, name in SHOWN_QUANTILES.items()}
    labels = {f"{name}_s": name for name in SHOWN_QUANTILES.values()}
    rows.add_each(labels, "s", lambda kind, name: found[kind].quantiles.get(at[name]))
    rows.add("longest_s", "longest", "s", lambda kind: found[kind].longest_s)
    return rows.made("spreads", title, notes=notes, where="pages")
