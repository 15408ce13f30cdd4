"""The steps of the repetition with the median rate: along its time, and how their times are spread.

Below the timeline, on the same axis, is what the host did meanwhile. All of it is for pages.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.units import counted, format_percent
from ..judge.cache import MAX_RESIDENT
from ..judge.figures.events import Events, select
from ..judge.figures.timeline import (
    LEVELS,
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
from .figures import BY_UNIT, TableOf, listed, told, word
from .sections import Cell, Chart, ChartTrack, Mark, Pane, Section, Table, Timeline, joined
from .time import middle_repetition, worker_section

MAX_RANKS = 8
"""Ranks that are drawn: the slowest ones by their p99."""

MAX_MARKS = 40


def event_sections(
    doc: TrainingRecord, events: Events, samples: Events | None = None
) -> list[Section]:
    """What the steps of the repetition with the median rate tell, and why some of it is missing.

    ``events`` and ``samples`` (of the host) are those of the whole run.
    """
    chosen = middle_repetition(doc)
    if chosen is None:
        return []
    rows, of = select(events, "measure", chosen.number), chosen.of
    steps, kinds, found = step_times(rows), spreads(rows), list[Section]()
    if steps is not None:
        uses: dict[str, Use] = {}
        if samples is not None:
            uses = shown_uses(host_use(select(samples, "measure", chosen.number), steps.epochs_s))
        found.append(_timeline(steps, chosen.repetition, uses, of))
        found += [use_table(uses, of)] if uses else []
    drawn = any(len(each.quantiles) > 1 for each in kinds.values())
    found += [_spread(kinds, of)] if drawn else []
    reasons, workers = list[str](), worker_section(doc)
    if kinds and not drawn:
        many = counted(next(iter(kinds.values())).steps, "step")
        reasons = [f"How the times of the steps are spread: {many} do not tell it."]
    elif kinds and not kinds.keys() & {"read", "prep"}:
        why = f"loader '{doc.job.subject.kind}' does not tell these times"
        why = why if doc.job.subject.reads_itself else "they were not recorded"
        reasons = [f"Read and decode of a batch: {why}."]
    if isinstance(workers, str):
        return joined(found, listed("not-drawn", "Not shown", [*reasons, workers]))
    return joined(found, workers, listed("not-drawn", "Not shown", reasons))


def _timeline(
    found: StepTimes, repetition: Repetition, uses: Mapping[str, Use], of: str
) -> Timeline:
    """Wait and busy time of each step, and below it what the host did."""
    drawn = sorted(found.ranks, key=lambda each: -each.wait_p99_s)[:MAX_RANKS]
    drawn.sort(key=lambda each: each.rank)
    several = len(found.ranks) > 1
    named = [(f", rank {each.rank}" * several, each) for each in drawn]
    tracks = [
        ChartTrack(label=f"{what}{rank}", at=bins.at_s, low=bins.low, high=bins.high)
        for rank, each in named
        for what, bins in (("wait", each.wait), ("busy", each.busy))
    ]
    marks = _marks(found, repetition)
    fewer = f"The {len(drawn)} ranks with the longest waits of {len(found.ranks)}."
    notes = told(
        "Wait: from asking for a batch to having it. Busy: the accelerator's step.",
        found.merged
        and "There are more steps than points: a point shows the least and the largest of several.",
        len(drawn) < len(found.ranks) and fewer,
        len(marks) > MAX_MARKS
        and f"{MAX_MARKS} of {len(marks):,} epochs, saves and retries are marked.",
    )
    return Timeline(
        id="timeline",
        title=f"Each step over time{of}",
        unit="s",
        tracks=tuple(tracks),
        marks=marks[:MAX_MARKS],
        notes=notes,
        panes=panes(uses),
    )


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


MIN_LOOPBACK = 1 << 20
"""Bytes/s over loopback below which no storage is read in this way: it is not shown."""


PANES: dict[Unit, str] = {
    "bytes/s": "Bytes per second of the data's device and of the network",
    "share": "Share of the time: busy, or a task that waits (pressure)",
    "bytes": "Memory of the host",
    "count": "NFS operations per second",
    "s": "Mean round trip of the NFS READ operations",
}
"""The figures of the host with one unit share a pane, which has this title."""

USES: dict[str, tuple[str, Unit]] = {
    "device_read": ("device, read", "bytes/s"),
    "device_write": ("device, written", "bytes/s"),
    "received": ("network, received", "bytes/s"),
    "sent": ("network, sent", "bytes/s"),
    "loopback": ("loopback", "bytes/s"),
    "cpu": ("all cores busy", "share"),
    "device_busy": ("device busy", "share"),
    "gpu_busy": ("GPUs busy", "share"),
    "io_pressure": ("waiting for IO", "share"),
    "cpu_pressure": ("waiting for a core", "share"),
    "memory_pressure": ("waiting for memory", "share"),
    "memory": ("memory in use", "bytes"),
    "page_cache": ("page cache", "bytes"),
    "gpu_memory": ("GPU memory", "bytes"),
    "nfs_reads": ("NFS READ", "count"),
    "nfs_others": ("NFS, all others", "count"),
    "nfs_read_rtt": ("round trip of READ", "s"),
}
"""The figures of ``host_use``: how each is called, and its unit."""


def shown_uses(uses: Mapping[str, Use]) -> dict[str, Use]:
    """Those of ``host_use`` that a report shows."""
    return {
        name: use for name, use in uses.items() if name != "loopback" or use.largest >= MIN_LOOPBACK
    }


def panes(uses: Mapping[str, Use]) -> tuple[Pane, ...]:
    """A pane for each unit in which some figures were measured."""
    tracks: dict[Unit, list[ChartTrack]] = {unit: [] for unit in PANES}
    for name, (label, unit) in USES.items():
        if (use := uses.get(name)) is not None:
            track = ChartTrack(label=label, at=use.at_s, low=use.values, high=use.values)
            tracks[unit].append(track)
    return tuple(
        Pane(title=PANES[unit], unit=unit, tracks=tuple(found))
        for unit, found in tracks.items()
        if found
    )


def use_table(uses: Mapping[str, Use], of: str) -> Table:
    """Mean and largest value of each figure. ``of`` names the repetition in the title."""

    def cell(name: str, key: str) -> Cell:
        value, unit = getattr(uses[name], key), USES[name][1]
        return Cell(value=value, text=BY_UNIT[unit](value) + "/s" * (unit == "count"))

    rows = TableOf(name for name in USES if name in uses)
    rows.add("figure", "figure", of=lambda name: word(USES[name][0], name))
    rows.add_each({"mean": "mean", "largest": "largest sample"}, of=cell)
    title = f"What the whole host did meanwhile{of}, other processes included"
    return rows.made("host-use", title, where="pages")


TIMES = {
    "wait": "wait for a batch",
    "read": "read of a batch",
    "prep": "decode of a batch",
    "step": "whole step",
}


def _spread(found: Mapping[str, TimeSpread], of: str) -> Table:
    """Seconds over 1 / (1 - quantile), so that each nine takes the same room; last the longest."""
    any_kind = next(iter(found.values()))  # all have the same steps
    untold = [_percentile(level) for level in LEVELS if level not in any_kind.quantiles]
    rows = TableOf[float | None]([*any_kind.quantiles, None])

    def quantile(level: float | None) -> Cell:
        if level is None:
            return word("longest")
        return Cell(value=1 / (1 - level), text=_percentile(level))

    def seconds(level: float | None, kind: str) -> float | None:
        return found[kind].longest_s if level is None else found[kind].quantiles.get(level)

    rows.add("quantile", "quantile", "ratio", quantile)
    rows.add_each({kind: TIMES[kind] for kind in found}, "s", seconds)
    chart = Chart(
        kind="lines",
        x="quantile",
        y=tuple(found),
        x_label="share of the steps that take at most so long",
        y_label="time",
        log="xy",
        named=True,
    )
    notes = told(
        "Wait: from asking for a batch to having it. Read and decode: a worker's time for the "
        "batch. Whole step: wait, copy, busy, waiting for other ranks, and saves.",
        untold and f"Too few steps for {', '.join(untold)}.",
        any_kind.merged
        and "There were more steps than rows of events: a row is the mean of neighbouring steps, "
        "so that the largest values are higher than shown.",
    )
    title = f"How the times of {counted(any_kind.steps, 'step')} are spread over all ranks{of}"
    return rows.made("spreads", title, charts=[chart], notes=notes, where="pages")


def _percentile(level: float) -> str:
    return f"p{100 * level:g}"
