"""One workload over time on one machine: a line for each run, and the runs from which on it is faster or slower.

Change points by binary segmentation (A. J. Scott and M. Knott, "A cluster analysis method for grouping means in the analysis of variance",
1974), with the comparison's own test in the place of the analysis of variance: a stretch of runs is split where the difference between its
two sides is the surest, if that is a difference (p below 0.05 shared out over the places that were tried, and above the noise threshold).
INVALID runs are shown and do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ...schema.metrics import COMPARED
from ...schema.result import RunDocument
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
"""Values of each side, nearest to the place that is tried: older ones say nothing about what happened there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One run. ``changed``: what its fingerprint and settings have otherwise than the run before."""

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
    """From run number ``at`` on the metric is another; ``judgement`` compares the stretches on both sides."""

    at: int
    judgement: Judgement
    changed: tuple[str, ...]  # between the run before that counts and this one


@dataclass(frozen=True, slots=True)
class History:
    workload: str
    metric: str
    entries: tuple[Entry, ...]  # oldest first
    points: tuple[ChangePoint, ...]
    trend: (
        float | None
    )  # newest third over oldest third of the runs that count; None for fewer than 3


def history(workload: str, runs: Sequence[RunDocument], metric: str) -> History:
    """Runs of one question on one machine, in any order."""
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
    """Change points with the comparison of the stretches on their two sides.

    A point found first may be none between the shorter stretches that later ones leave: then the two are one.
    """
    splits = sorted(_segment(values, 0, len(values), higher=higher))
    while True:
        bounds = [0, *splits, len(values)]
        judged = [
            _judged(values, *bounds[index : index + 3], higher=higher)
            for index in range(len(splits))
        ]
        none = [
            index
            for index, found in enumerate(judged)
            if found.difference not in ("better", "worse")
        ]
        if not none:
            return list(zip(splits, judged, strict=True))
        del splits[max(none, key=lambda index: judged[index].p or 0.0)]


def _judged(
    values: Sequence[Sequence[float]], start: int, at: int, stop: int, *, higher: bool
) -> Judgement:
    """Runs ``[at, stop)`` over runs ``[start, at)``."""
    before = [value for run in values[start:at] for value in run][-NEWEST:]
    after = [value for run in values[at:stop] for value in run][:NEWEST]
    return judge(after, before, higher_is_better=higher, noise=NOISE)


def _segment(
    values: Sequence[Sequence[float]], start: int, stop: int, *, higher: bool
) -> list[int]:
    """The change points of runs ``[start, stop)``: the surest one, and those of the stretches on its two sides."""
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


def _facts(doc: RunDocument) -> dict[str, str]:
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
