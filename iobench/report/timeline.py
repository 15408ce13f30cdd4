"""The steps of the repetition with the median rate, along its time: for pages alone.

Below them, on the same axis, is what the host did meanwhile.
"""

from __future__ import annotations

from ..analyse.figures.events import Events, select
from ..analyse.figures.timeline import QUANTILES, RankSteps, StepTimes, host_use, step_times
from ..analyse.verdict.cache import MAX_RESIDENT
from ..schema.record import TrainingRecord
from ..schema.training import Repetition
from ..units import format_count, format_duration, format_percent
from .figures import figure
from .hostuse import panes, shown, use_table
from .sections import Cell, ChartTrack, Column, Mark, Row, Section, Table, Timeline
from .time import middle_repetition

MAX_RANKS = 8
"""Ranks that are drawn: the slowest ones by their p99."""

MAX_MARKS = 40


def timeline_sections(
    doc: TrainingRecord, events: Events, samples: Events | None = None
) -> list[Section]:
    """Wait and busy time of each step, and how long the steps of each rank waited.

    ``events`` and ``samples`` (of the host) are those of the whole run.
    """
    chosen = middle_repetition(doc)
    found = step_times(select(events, "measure", chosen[0])) if chosen else None
    if chosen is None or found is None:
        return []
    of = f", repetition {chosen[0] + 1}" if len(doc.job.repetitions) > 1 else ""
    uses = (
        shown(host_use(select(samples, "measure", chosen[0]), found.epochs_s))
        if samples is not None
        else {}
    )
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
            "There are more steps than points: each point shows the least and the largest value of "
            "its steps."
        )
    if len(drawn) < len(found.ranks):
        notes.append(f"The {len(drawn)} ranks with the longest waits of {len(found.ranks)}.")
    marks = _marks(found, chosen[1])
    if len(marks) > MAX_MARKS:
        notes.append(f"{MAX_MARKS} of {len(marks):,} epochs, saves and retries are marked.")
    return [
        Timeline(
            id="timeline",
            title=f"Each step over time{of}",
            unit="s",
            tracks=tuple(tracks),
            marks=marks[:MAX_MARKS],
            notes=tuple(notes),
            panes=panes(uses),
        ),
        _waits(found, of),
        *([use_table(uses, of)] if uses else []),
    ]


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
    times = [*QUANTILES, "longest"]
    return Table(
        id="waits",
        title=f"How long the steps of each rank waited for their batch{of}",
        columns=(
            Column(name="rank", label="rank", align="right"),
            Column(name="steps", label="steps", unit="count", align="right"),
            *(Column(name=f"wait_{name}_s", label=name, unit="s", align="right") for name in times),
            Column(name="retries", label="retries", unit="count", align="right"),
        ),
        rows=tuple(
            Row(
                cells=(
                    Cell(value=each.rank, text=str(each.rank)),
                    figure(each.steps, format_count),
                    *(figure(each.quantiles[name], format_duration) for name in QUANTILES),
                    figure(each.longest_wait_s, format_duration),
                    figure(each.retries, format_count),
                )
            )
            for each in found.ranks
        ),
        where="pages",
    )
