"""The points of a sweep by their settings, and the figures that its charts and table show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, median

from ..analyse.tuning.points import number
from ..schema.sweep import Sweep, SweepPoint, setting_text

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """The points of a sweep by the texts of their settings, in the order of ``keys``."""

    keys: Texts
    points: Mapping[Texts, SweepPoint]
    default: Texts | None

    @cached_property
    def values(self) -> dict[str, list[str]]:
        """The values of each setting: numbers by their size, others as they were given."""
        found = {}
        for at, key in enumerate(self.keys):
            texts = list(dict.fromkeys(where[at] for where in self.points))
            known = {text: number(text) for text in texts}
            if None not in known.values():
                texts.sort(key=lambda text: known[text] or 0.0)
            found[key] = texts
        return found

    @cached_property
    def fastest(self) -> Texts:
        return max(self.points, key=lambda where: rate_of(self.points[where]) or 0.0)

    @cached_property
    def base(self) -> Texts:
        """The point through which slices go: the fastest, or today's settings if they have more."""
        choices = [self.fastest]
        if self.default is not None and self.default in self.points:
            choices.append(self.default)
        return max(choices, key=lambda where: sum(len(self.along(key, where)) for key in self.keys))

    def at(self, where: Texts, changes: Mapping[str, str]) -> SweepPoint | None:
        """The point whose settings are those of ``where``, but for the changes."""
        texts = (changes.get(key, text) for key, text in zip(self.keys, where, strict=True))
        return self.points.get(tuple(texts))

    def along(self, key: str, where: Texts) -> list[tuple[str, SweepPoint]]:
        """The measured points that differ from ``where`` in ``key`` alone, and itself."""
        found = ((text, self.at(where, {key: text})) for text in self.values[key])
        return [(text, point) for text, point in found if point and rate_of(point) is not None]

    def effect(self, key: str) -> float:
        """The logarithm of the highest over the lowest samples/s of points that differ in ``key``.

        They are alike in all else; the mean over all such groups.
        """
        logs: dict[Texts, list[float]] = {}
        at = self.keys.index(key)
        for where, point in self.points.items():
            if (rate := rate_of(point)) is not None:
                logs.setdefault((*where[:at], *where[at + 1 :]), []).append(math.log(rate))
        spans = [max(each) - min(each) for each in logs.values() if len(each) > 1]
        return fmean(spans) if spans else 0.0


def rates_of(point: SweepPoint) -> list[float]:
    """Samples/s of the visits that measured some."""
    return [rate for rate in point.samples_per_s if math.isfinite(rate) and rate > 0]


def rate_of(point: SweepPoint) -> float | None:
    rates = rates_of(point)
    return median(rates) if rates else None


def middle_of(values: Sequence[float | None]) -> float | None:
    """The median of those that were measured."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else None


def grid_of(sweep: Sweep) -> Grid:
    """The points by their settings; a combination that means the same is the same point."""
    keys = tuple(dict.fromkeys(key for point in sweep.points for key in point.settings))
    points: dict[Texts, SweepPoint] = {}
    for point in sweep.points:
        for settings in (point.settings, *point.also):
            points[tuple(setting_text(settings.get(key)) for key in keys)] = point
    default = sweep.default
    now = None if default is None else tuple(setting_text(default.get(key)) for key in keys)
    return Grid(keys, points, now)
