"""One workload over time at one place: a line for each run, and where their level changed.

The value of a run is the median of its repetitions, which share the run's hour and tell nothing
about the next one. ``changes`` finds the change points by permutation of the runs. A change that
only the newest run shows, or that too few runs show, is inconclusive: it is ``possible``, with what
is missing. INVALID runs are shown, but not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from ...base.errors import UsageError
from ...base.units import counted
from ...judge.statistics import NOISE, SIGNIFICANT, ratio_interval, t_two_sided_p
from ...record.ab import Drift
from ...record.metrics import COMPARED, check_compared
from ...record.run import RunRecord
from ...record.verdict import Estimate
from .changes import MIN_RUNS, MIN_SIDE, can_tell, change_points
from .claims import MIN_DEGREES, Day, calendar, drift_of, spread_of
from .identity import differences, identity, settings_of, workload_of
from .identity import place as place_facts
from .runs import AFTER_FILL, any_cut, apart, collect, primary_of, question, values_of

MIN_GAP_DAYS = 7
"""A time without runs is shown if it is at least as long."""

HistoryAnswer = Literal["changed", "no change", "inconclusive"]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run. ``changed`` lists how its identity differs from that of the run before."""

    run_id: str
    created: str
    values: tuple[float, ...]  # of its repetitions
    validity: str  # valid, invalid or unknown, as recorded
    changed: tuple[str, ...]

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of the metric at run number ``at``: the level from there on over that before it.

    The levels are those of the runs up to the next change on each side. ``why`` says why the change
    is inconclusive, and ``more`` how many further runs could tell it; both are empty where it is
    told. ``more`` is None, too, where no number of runs could: one run alone was made before the
    change.
    """

    at: int
    ratio: Estimate  # n: runs of the smaller side; no interval if it would cover less than 95 %
    better: bool
    p: float | None  # in the stretch of runs where it was found
    after: str  # when the last run before it was made: it happened in between
    changed: tuple[str, ...]  # of the identity, compared with the last counted run before it
    why: str = ""
    more: int | None = None


@dataclass(frozen=True, slots=True)
class History:
    """``possible``: a change after the last of ``points`` that too few runs show to tell it."""

    workload: str
    metric: str
    entries: tuple[RunEntry, ...]  # oldest first
    answer: HistoryAnswer
    why: str  # it is inconclusive
    points: tuple[ChangePoint, ...]
    possible: ChangePoint | None
    trend: float | None  # newest third over oldest third of the counted runs; None for fewer than 3
    drift: Drift | None
    within: float | None  # its deviation without the changes; None: none, or too few runs
    days: tuple[Day, ...]
    gap_days: float | None  # the longest time without a run; None: less than MIN_GAP_DAYS
    gap_until: str  # when the first run after it was made
    medians: tuple[float, ...]  # of each entry
    after_fill: bool  # rates leave out the start of epochs, since a budget cut some of the runs


def history(workload: str, runs: Sequence[RunRecord], metric: str) -> History:
    """The history of runs of one workload at one place (``identity.place``), in any order."""
    cut = any_cut(runs)
    valued = {id(doc): tuple(values_of(doc, metric, after_fill=cut)) for doc in runs}
    ordered = sorted(
        (doc for doc in runs if valued[id(doc)]), key=lambda doc: (doc.created, doc.run_id)
    )
    facts = [identity(doc) for doc in ordered]
    entries = tuple(
        RunEntry(
            doc.run_id,
            doc.created,
            valued[id(doc)],
            doc.validity,
            differences(facts[index - 1], facts[index]) if index else (),
        )
        for index, doc in enumerate(ordered)
    )
    valid = [index for index, entry in enumerate(entries) if entry.validity != "invalid"]
    medians = [entries[index].median for index in valid]
    positive = bool(medians) and min(medians) > 0
    higher = COMPARED[metric].better == "more"

    def point(
        bounds: tuple[int, int, int], p: float | None, why: str = "", more: int | None = None
    ) -> ChangePoint:
        start, at, stop = bounds
        ratio = _estimate(medians[at:stop], medians[start:at])
        return ChangePoint(
            at=valid[at],
            ratio=ratio,
            better=(ratio.value > 1) == higher,
            p=p,
            after=entries[valid[at - 1]].created,
            changed=differences(facts[valid[at - 1]], facts[valid[at]]),
            why=why,
            more=more,
        )

    found = change_points(medians) if positive else []
    bounds = [0, *(change.at for change in found), len(medians)]
    points = tuple(
        point((bounds[number], change.at, bounds[number + 2]), change.p)
        for number, change in enumerate(found)
    )
    possible = None
    if positive and (suspect := _suspect(medians, bounds)) is not None:
        at, missing, more = suspect
        possible = point((bounds[-2], at, len(medians)), None, missing, more)
    answer, why = _answer(medians, positive=positive, told=bool(points), possible=possible)
    levels = [[math.log(value) for value in medians[low:high]] for low, high in pairwise(bounds)]
    within, degrees = spread_of(levels) if positive else (0.0, 0)
    third = len(medians) // 3
    gap_days, gap_until = _gap([entry.created for entry in entries])
    return History(
        workload=workload,
        metric=metric,
        entries=entries,
        answer=answer,
        why=why,
        points=points,
        possible=possible,
        trend=ratio_interval(medians[-third:], medians[:third])[0] if third and positive else None,
        drift=drift_of(ordered, metric),
        within=within if degrees >= MIN_DEGREES and points else None,
        days=calendar(ordered, metric),
        gap_days=gap_days,
        gap_until=gap_until,
        medians=tuple(entry.median for entry in entries),
        after_fill=cut and metric in AFTER_FILL,
    )


def _answer(
    medians: Sequence[float], *, positive: bool, told: bool, possible: ChangePoint | None
) -> tuple[HistoryAnswer, str]:
    if not medians:
        return "inconclusive", "no run counts"
    if not positive:
        return "inconclusive", "a value is 0, so that there is no ratio"
    if len(medians) < MIN_RUNS:
        return (
            "inconclusive",
            f"a change takes {MIN_RUNS} runs to show, and here are {len(medians)}",
        )
    if told:
        return "changed", ""
    return ("no change", "") if possible is None else ("inconclusive", possible.why)


def _suspect(medians: Sequence[float], bounds: Sequence[int]) -> tuple[int, str, int | None] | None:
    """(at, why, more) of a change since the last one that too few runs show to tell it.

    Tried are the newest run alone, and the positions where not even a perfect step is significant
    (``can_tell``). The difference of both sides must be above the noise threshold and significant
    by Student's t, with the variance between runs within all levels; where these are too few to
    know it, all runs of one side must be above those of the other.
    """
    logs = [math.log(value) for value in medians]
    start, stop = bounds[-2:]
    runs = stop - start
    best: tuple[float, int] | None = None
    for at in range(start + 1 if runs < MIN_RUNS else start + runs // 2, stop):
        if at < stop - 1 and can_tell(runs, stop - at):
            continue
        one, other = logs[start:at], logs[at:stop]
        size = fmean(other) - fmean(one)
        if abs(size) <= math.log1p(NOISE):
            continue
        sides = [logs[low:high] for low, high in pairwise([*bounds[:-1], at, stop])]
        sd, degrees = spread_of(sides)
        if degrees >= MIN_DEGREES:
            error = sd * math.sqrt(1 / len(one) + 1 / len(other))
            p = t_two_sided_p(size / error, degrees) if error else 0.0
            apart = p < SIGNIFICANT
        else:
            apart = max(one) < min(other) or min(one) > max(other)
            p = -abs(size)
        if apart and (best is None or p < best[0]):
            best = p, at
    if best is None:
        return None
    at = best[1]
    new = stop - at
    if runs - new < MIN_SIDE:
        return at, f"only {counted(runs - new, 'run')} was made before it", None
    more = next(more for more in count(1) if can_tell(runs + more, new + more))
    if new == more == 1:
        why = "only the newest run shows it: it is a change if the next run confirms it"
    else:
        why = (
            f"{counted(new, 'run')} after {counted(runs - new, 'run')} can't tell it: "
            f"it takes at least {more} more"
        )
    return at, why, more


def _estimate(after: Sequence[float], before: Sequence[float]) -> Estimate:
    ratio, low, high, coverage = ratio_interval(after, before)
    known = coverage >= 1 - SIGNIFICANT
    return Estimate(
        value=ratio,
        low=low if known else None,
        high=high if known else None,
        n=min(len(after), len(before)),
    )


def _gap(times: Sequence[str]) -> tuple[float | None, str]:
    """(days, until when) of the longest time without a run, if it is long enough to be shown."""
    moments = []
    for text in times:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            continue
        moments.append((moment if moment.tzinfo else moment.replace(tzinfo=UTC), text))
    gaps = [
        ((after - before).total_seconds() / 86_400, text)
        for (before, _), (after, text) in pairwise(moments)
    ]
    longest = max(gaps, default=(0.0, ""))
    return longest if longest[0] >= MIN_GAP_DAYS else (None, "")


def histories(place: Path, workload: str, wanted: str | None) -> tuple[list[History], list[str]]:
    """The histories of a workload's runs below a directory, and why others were left out.

    One for each kind of host, storage and settings. ``wanted``: the metric, if not the usual one.
    Raises UsageError if there is none, UnknownNameError for the metric.
    """
    check_compared(*([] if wanted is None else [wanted]))
    found = collect(place)
    names = {workload, f"checkpoint {workload}"}
    asked_for = {place: doc for place, doc in found.runs.items() if workload_of(doc) in names}
    known = replace(found, runs=asked_for).usable(include_invalid=True)
    left_out = known.left_out
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for doc in known.runs.values():
        settings = (f"{key}={value}" for key, value in sorted(settings_of(doc).items()))
        facts = dict.fromkeys((*question(doc), *place_facts(doc), *settings))
        groups.setdefault(tuple(facts), []).append(doc)
    shown, metrics = [], set()
    titles = _titles(groups)
    for asked, runs in groups.items():
        metric = wanted or primary_of(runs)
        metrics.add(metric)
        one = history(titles[asked], runs, metric)
        if one.entries:
            shown.append(one)
    if not shown:
        if groups:
            raise UsageError(
                f"no run of {workload} in {place} measured {' or '.join(sorted(metrics))}",
                remedy="choose another one with --metric",
            )
        if asked_for:
            raise UsageError(
                f"no run of {workload} in {place} can be used: {left_out[-1]}",
                remedy="record a run that completes",
            )
        others = sorted({workload_of(doc) for doc in found.runs.values()})
        raise UsageError(
            f"{place} holds no run of {workload}",
            remedy=f"there are runs of: {', '.join(others)}",
        )
    return shown, left_out


def _titles(groups: Mapping[tuple[str, ...], Sequence[RunRecord]]) -> dict[tuple[str, ...], str]:
    """``WORKLOAD on NODE with KEY=VALUE ...``: what sets the groups of one node apart."""
    titles = {}
    for facts in groups:
        node = _node(facts)
        rivals = [other for other in groups if other[0] == facts[0] and _node(other) == node]
        known = apart(facts, rivals)
        title = f"{facts[0]} on {node}"
        titles[facts] = f"{title} with {', '.join(known)}" if known else title
    return titles


def _node(facts: Sequence[str]) -> str:
    key = "host.node="
    return next((fact.removeprefix(key) for fact in facts if fact.startswith(key)), "?")
