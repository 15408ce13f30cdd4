"""A walk: settings that were varied one after the other, each from the best of those before it.

In each step, the settings that were kept before and their variants took turns. A variant is kept if
it is told to be faster than these; of several ones, that with the largest ratio. Everything here is
computed from the record of the sweep alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from ...base.documents import UNPRINTED
from ...base.units import samples_per_usd
from ...judge.statistics import SIGNIFICANT, ratio_estimate
from ...record.sweep import Setting, Settings, Sweep, SweepPoint, describe
from ...record.verdict import Estimate

BASELINE = "baseline"
ALL = "all of them"
"""The name of the last step: all kept settings against those of the beginning."""

NO_TIME = "no time left"

Answer = Literal["", "faster", "slower", "inconclusive"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedSetting:
    """A row of the walk. ``ratio``: to the settings that were kept before it, tried in turns.

    Its interval holds with 95 % for all variants of its step together (Bonferroni). ``point`` is
    None for a step that was not measured, whose reason is ``not_measured``.
    """

    step: str
    setting: str
    samples_per_s: float | None = None
    ratio: Estimate | None = None
    answer: Answer = ""
    kept: bool = False
    samples_per_usd: float | None = None
    not_measured: str = ""
    point: SweepPoint | None = field(default=None, metadata=UNPRINTED)

    @property
    def rates(self) -> list[float]:
        return [] if self.point is None else self.point.counted


def points_of(sweep: Sweep, step: int) -> list[SweepPoint]:
    """The points of a step: the settings kept before it first, and then their variants."""
    return [point for point in sweep.points if point.step == step]


def is_complete(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether no further trial of the point is to come."""
    return bool(point.failed or point.dropped) or len(point.runs) >= sweep.repetitions


def compared(points: Sequence[SweepPoint]) -> list[tuple[Estimate | None, Answer]]:
    """For each variant of a step, its ratio to the first point of the step, and what it tells."""
    before, *variants = points
    measured = [each for each in variants if each.counted]
    level = SIGNIFICANT / max(1, len(measured))
    found: list[tuple[Estimate | None, Answer]] = []
    for each in variants:
        pairs = list(zip(each.counted, before.counted, strict=False))
        ratio = ratio_estimate(pairs, level=level)
        found.append((ratio, _answer(ratio)))
    return found


def _answer(ratio: Estimate | None) -> Answer:
    if ratio is None:
        return ""
    if ratio.low is None or ratio.high is None:
        return "inconclusive"
    return "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "inconclusive"


def best_of(sweep: Sweep, points: Sequence[SweepPoint]) -> SweepPoint | None:
    """The variant of a complete step that is kept; None if it is the settings before it."""
    if len(points) < 2 or not all(is_complete(sweep, point) for point in points):
        return None
    faster = [
        (ratio.value, point)
        for point, (ratio, answer) in zip(points[1:], compared(points), strict=True)
        if ratio is not None and answer == "faster" and not point.dropped
    ]
    return max(faster, key=lambda pair: pair[0])[1] if faster else None


def kept_settings(sweep: Sweep) -> dict[str, Setting]:
    """The settings that are kept after all steps that are complete."""
    kept = dict(sweep.default or {})
    for step in range(len(sweep.walk)):
        best = best_of(sweep, points_of(sweep, step))
        if best is not None:
            kept = dict(best.settings)
    return kept


def changed(sweep: Sweep, settings: Settings) -> dict[str, Setting]:
    """Those of the settings that differ from those of the beginning."""
    begun = sweep.default or {}
    return {key: value for key, value in settings.items() if value != begun.get(key)}


def called(sweep: Sweep, point: SweepPoint) -> str:
    """A point in one line; in a walk, only what differs from its beginning."""
    if not sweep.walk:
        return describe(point.settings)
    return describe(changed(sweep, point.settings)) or BASELINE


def rows(sweep: Sweep) -> list[TriedSetting]:
    """The rows of the walk's table: the baseline, and the variants of each step."""
    found = [_baseline(sweep)]
    for number, step in enumerate(sweep.walk):
        if step.not_measured:
            found.append(
                TriedSetting(step=step.name, setting=step.name, not_measured=step.not_measured)
            )
            continue
        points = points_of(sweep, number)
        if points:
            found += _tried(sweep, step.name, [step.key], points)
            continue
        why = _not_begun(sweep) if number >= sweep.walked else "no other value to try on this host"
        found.append(TriedSetting(step=step.name, setting=step.name, not_measured=why))
    last = points_of(sweep, len(sweep.walk))
    if last:
        found += _tried(sweep, ALL, list(changed(sweep, kept_settings(sweep))), last)
    return [_with_rates(sweep, row) for row in found]


def _not_begun(sweep: Sweep) -> str:
    """Why a step has not been begun: the settings before it have failed, or there was no time."""
    before = points_of(sweep, max(0, sweep.walked - 1))
    failed = bool(before) and bool(before[0].failed)
    return "the settings before it have failed" if failed else NO_TIME


def _baseline(sweep: Sweep) -> TriedSetting:
    """The settings of the beginning, by the trials of the first step that was measured."""
    setting = describe(sweep.default or {})
    points = [each for each in sweep.points if each.settings == sweep.default]
    point = next((each for each in points if each.counted), None)
    failed = next((each.failed for each in points if each.failed), NO_TIME)
    why = "" if point is not None else failed
    return TriedSetting(step=BASELINE, setting=setting, point=point, not_measured=why)


def _with_rates(sweep: Sweep, row: TriedSetting) -> TriedSetting:
    """The row with its samples/s, and those for 1 USD if the price of the host is known."""
    if not row.rates:
        return row
    rate, price = median(row.rates), sweep.usd_per_hour
    per_usd = None if price is None else samples_per_usd(rate, price)
    return replace(row, samples_per_s=rate, samples_per_usd=per_usd)


def _tried(
    sweep: Sweep, name: str, keys: Sequence[str], points: Sequence[SweepPoint]
) -> Iterator[TriedSetting]:
    best = best_of(sweep, points)
    for point, (ratio, answer) in zip(points[1:], compared(points), strict=True):
        yield TriedSetting(
            step=name,
            setting=describe(point.settings, keys),
            point=point,
            ratio=ratio,
            answer=answer,
            kept=point is best,
            not_measured="" if point.counted else point.failed or NO_TIME,
        )
