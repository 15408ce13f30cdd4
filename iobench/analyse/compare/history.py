"""One workload over time on one machine: a line for each run, and the runs where the rate changed.

Change points are found by binary segmentation (A. J. Scott and M. Knott, "A cluster analysis method
for grouping means in the analysis of variance", 1974), with the test of ``statistics`` instead of
the analysis of variance. A sequence of runs is split where the difference between its two sides has
the lowest p, if that is significant (p below 0.05 divided by the number of positions that were
tried, and a change above the noise threshold). INVALID runs are shown, but not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ...schema.metrics import COMPARED
from ...schema.record import RunRecord
from .runs import recorded, settings_of, values_of
from .statistics import NOISE, SIGNIFICANT, Judgement, judge, ratio_interval

FINGERPRINT = (
    "node",
    "cpu_model",
    "cores",
    "effective_cores",
    "memory_bytes",
    "kernel",
    "python",
    "instance_type",
    "iobench_version",
)
PLACE = ("url", "filesystem", "mount_options", "device", "client", "client_version")
NEWEST = 60
"""Largest number of values on each side of a position: more distant ones say little about it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. ``changed`` lists how its fingerprint and settings differ from the run before."""

    run_id: str
    created: str
    values: tuple[float, ...]
    validity: str  # valid, invalid or unknown, as recorded
    changed: tuple[str, ...]

    @property
    def median(self) -> float:
        return median(self.values)


@dataclass(frozen=True, slots=True)
class ChangePoint:
    """A change of the metric at run number ``at``; ``judgement`` compares both sides."""

    at: int
    judgement: Judgement
    changed: tuple[str, ...]  # compared with the last counted run before it


@dataclass(frozen=True, slots=True)
class History:
    workload: str
    metric: str
    entries: tuple[Entry, ...]  # oldest first
    points: tuple[ChangePoint, ...]
    trend: float | None  # newest third over oldest third of the counted runs; None for fewer than 3


def history(workload: str, runs: Sequence[RunRecord], metric: str) -> History:
    """The history of runs that are comparable, on one machine, in any order."""
    ordered = sorted(
        (doc for doc in runs if values_of(doc, metric)), key=lambda doc: (doc.created, doc.run_id)
    )
    facts = [_facts(doc) for doc in ordered]
    entries = []
    for index, doc in enumerate(ordered):
        changed = _changes(facts[index - 1], facts[index]) if index else ()
        entries.append(
            Entry(doc.run_id, doc.created, tuple(values_of(doc, metric)), doc.validity, changed)
        )
    counted = [index for index, entry in enumerate(entries) if entry.validity != "invalid"]
    values = [entries[index].values for index in counted]
    points = tuple(
        ChangePoint(counted[at], judgement, _changes(facts[counted[at - 1]], facts[counted[at]]))
        for at, judgement in _changed(values, higher=COMPARED[metric].better == "more")
    )
    third = len(values) // 3
    trend = None
    if third:
        old, new = (
            [value for run in part for value in run] for part in (values[:third], values[-third:])
        )
        trend = ratio_interval(new, old)[0] if min(*old, *new) > 0 else None
    return History(workload, metric, tuple(entries), points, trend)


def _changed(values: Sequence[Sequence[float]], *, higher: bool) -> list[tuple[int, Judgement]]:
    """(position, judgement) of each change point; the judgement compares the runs on both sides.

    Later splits leave fewer runs around an earlier one. If the two sides of a split no longer
    differ, it is removed.
    """
    splits = sorted(_segment(values, 0, len(values), higher=higher))
    while True:
        bounds = [0, *splits, len(values)]
        judged = [
            _judged(values, *bounds[index : index + 3], higher=higher)
            for index in range(len(splits))
        ]
        equal = [
            index
            for index, found in enumerate(judged)
            if found.difference not in ("better", "worse")
        ]
        if not equal:
            return list(zip(splits, judged, strict=True))
        del splits[max(equal, key=lambda index: judged[index].p or 0.0)]


def _judged(
    values: Sequence[Sequence[float]], start: int, at: int, stop: int, *, higher: bool
) -> Judgement:
    """Compare runs ``[at, stop)`` with runs ``[start, at)``."""
    before = [value for run in values[start:at] for value in run][-NEWEST:]
    after = [value for run in values[at:stop] for value in run][:NEWEST]
    return judge(after, before, higher_is_better=higher, noise=NOISE)


def _segment(
    values: Sequence[Sequence[float]], start: int, stop: int, *, higher: bool
) -> list[int]:
    """The change points of runs ``[start, stop)``: the surest one, and those on its two sides."""
    best: tuple[float, int] | None = None
    tried = max(1, stop - start - 1)
    for at in range(start + 1, stop):
        found = _judged(values, start, at, stop, higher=higher)
        sure = (
            found.difference in ("better", "worse")
            and found.p is not None
            and found.p * tried < SIGNIFICANT
        )
        if sure and found.p is not None and (best is None or found.p < best[0]):
            best = (found.p, at)
    if best is None:
        return []
    at = best[1]
    return [
        at,
        *_segment(values, start, at, higher=higher),
        *_segment(values, at, stop, higher=higher),
    ]


def _facts(doc: RunRecord) -> dict[str, str]:
    host = {f"host.{key}": value for key, value in recorded(doc.host, FINGERPRINT).items()}
    packages = {f"packages.{key}": value for key, value in (doc.host.packages or {}).items()}
    storage = {f"storage.{key}": value for key, value in recorded(doc.storage, PLACE).items()}
    found = {
        key: str(value)
        for key, value in {**host, **packages, **storage}.items()
        if value is not None
    }
    return {**found, **settings_of(doc)}


def _changes(before: dict[str, str], after: dict[str, str]) -> tuple[str, ...]:
    keys = sorted(set(before) | set(after))
    return tuple(
        f"{key}: {before.get(key, '-')} -> {after.get(key, '-')}"
        for key in keys
        if before.get(key) != after.get(key)
    )
