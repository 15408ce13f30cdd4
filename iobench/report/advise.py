"""``iobench advise``: the settings to use, the gain, the reasons and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping

from ..ask.tuning.knee import NO_HELP
from ..ask.tuning.recommend import Recommendation
from ..base.units import format_count
from .figures import TableOf, listed, sentence, with_interval
from .sections import FirstScreen, KeyFigure, Section, Table

MAX_SHOWN = 12
"""Largest number of rows of the Pareto front, and of entries that were left out."""


def sections(found: Recommendation) -> list[Section]:
    """The answer first, then why, what speaks against it, and the alternatives."""
    parts = [_answer(found), *listed("why", "Why", [*map(sentence, found.why)], MAX_SHOWN)]
    parts += listed("but", "But", [*map(sentence, found.doubts)], MAX_SHOWN)
    return [*parts, _front(found), *listed("left-out", "Left out", found.left_out, MAX_SHOWN)]


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key} not set" if value in ("None", "null") else f"{key}={value}"
        for key, value in settings.items()
    )


def _answer(found: Recommendation) -> FirstScreen:
    keep = found.gain == 1.0 and not found.changes
    what = "keep today's settings" if keep else f"take {_settings(found.changes)}"
    kept = {key: value for key, value in found.settings.items() if key not in found.changes}
    told = []
    if found.untested is not None:
        best = _settings(found.untested)
        told.append(f"Worth a run: the best of each axis together, which nobody measured: {best}.")
    return FirstScreen(
        id="advice",
        job=f"Settings for {found.workload}",
        state=f"{what}; leave {_settings(kept)}" if kept and not keep else what,
        sentences=tuple(told),
        gauges=(
            _gain(found, keep=keep),
            KeyFigure("confidence", found.confidence),
            KeyFigure("based on", found.basis),
        ),
    )


def _gain(found: Recommendation, *, keep: bool) -> KeyFigure:
    if keep:
        return KeyFigure("gain", "none", "(today's settings are as good as any)")
    if found.gain is None or found.gain_low is None or found.gain_high is None:
        return KeyFigure("gain", "not known", "(no point has today's settings)")
    coverage = "" if found.gain_coverage is None else f", {found.gain_coverage:.0%} interval"
    note = f"today's samples/s [{found.gain_low:.2f}, {found.gain_high:.2f}{coverage}]"
    if found.gain <= NO_HELP:
        note += "; within 5 % of the best, with smaller settings, lower costs or enough shards"
    return KeyFigure("gain", f"{found.gain:.2f} x", note)


def _front(found: Recommendation) -> Table:
    shown = found.alternatives[:MAX_SHOWN]
    rows = TableOf(shown, more=max(0, len(found.alternatives) - MAX_SHOWN))
    rows.add(
        "samples_per_s",
        "samples/s [min, max]",
        "samples/s",
        lambda each: with_interval(each.samples_per_s, each.low, each.high, format_count),
        ends=("low", "high"),
    )
    rows.add("repetitions", "n")
    rows.add("cpu_s_per_gb", "CPU s/GB", show="{:.3g}".format)
    rows.add("stored_bytes", "stored", "bytes")
    rows.add("settings", "settings", of=lambda each: _settings(each.settings))
    title = "Pareto front: no other point is at once faster, cheaper in CPU and smaller"
    best = dict(found.settings)
    return rows.made(
        "pareto-front",
        title,
        mark=lambda each: "recommended" if dict(each.settings) == best else "",
    )
