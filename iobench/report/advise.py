"""``iobench advise``: the settings to use, the gain, the reasons and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping

from ..ask.tuning.knee import NO_HELP
from ..ask.tuning.recommend import Recommendation
from ..base.units import format_count
from .figures import (
    figure,
    figures,
    filled,
    listed,
    raws,
    side_by_side,
    with_interval,
    words,
)
from .sections import (
    Fact,
    Facts,
    Headline,
    Prose,
    Section,
    Table,
)

MAX_SHOWN = 12
"""Largest number of rows of the Pareto front, and of entries that were left out."""


def sections(found: Recommendation) -> list[Section]:
    """The answer first, then why, what speaks against it, and the alternatives."""
    parts = _answer(found) + listed("why", "Why", found.why, MAX_SHOWN)
    parts += listed("but", "But", found.doubts, MAX_SHOWN)
    if found.untested is not None:
        told = (
            "Worth a run: the best of each axis together, which nobody measured: "
            f"{_settings(found.untested)}"
        )
        parts.append(Prose(id="untested", paragraphs=(told,)))
    return [*parts, _front(found), *listed("left-out", "Left out", found.left_out, MAX_SHOWN)]


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key} not set" if value in ("None", "null") else f"{key}={value}"
        for key, value in settings.items()
    )


def _answer(found: Recommendation) -> list[Section]:
    keep = found.gain == 1.0 and not found.changes
    what = "keep today's settings" if keep else f"take {_settings(found.changes)}"
    kept = {key: value for key, value in found.settings.items() if key not in found.changes}
    stay = f"; leave {_settings(kept)}" if kept and not keep else ""
    facts = (
        Fact(label="gain", text=_gain(found, keep=keep)),
        Fact(label="confidence", text=found.confidence),
        Fact(label="based on", text=found.basis),
    )
    return [
        Headline(id="advice", title=f"{found.workload}: {what}{stay}"),
        Facts(id="gain", facts=facts),
    ]


def _gain(found: Recommendation, *, keep: bool) -> str:
    if keep:
        return "none, today's settings are as good as any"
    if found.gain is None or found.gain_low is None or found.gain_high is None:
        return "not known, no point has today's settings"
    coverage = "" if found.gain_coverage is None else f", {found.gain_coverage:.0%} interval"
    ratio = (
        f"{found.gain:.2f} x today's samples/s [{found.gain_low:.2f}, "
        f"{found.gain_high:.2f}{coverage}]"
    )
    if found.gain > NO_HELP:
        return ratio
    return (
        "no faster, but within 5 % of the best with smaller settings, lower costs or enough "
        f"shards: {ratio}"
    )


def _front(found: Recommendation) -> Table:
    shown = found.alternatives[:MAX_SHOWN]
    rates = [with_interval(each.samples_per_s, each.low, each.high, format_count) for each in shown]
    spent = [figure(each.cpu_s_per_gb, lambda seconds: f"{seconds:.3g}") for each in shown]
    columns, rows = side_by_side(
        filled("samples_per_s", "samples/s [min, max]", rates, unit="samples/s", align="right"),
        raws("low", [each.low for each in shown]),
        raws("high", [each.high for each in shown]),
        figures("repetitions", "n", "", [each.repetitions for each in shown]),
        filled("cpu_s_per_gb", "CPU s/GB", spent, align="right"),
        figures("stored_bytes", "stored", "bytes", [each.stored_bytes for each in shown]),
        words("settings", "settings", [_settings(each.settings) for each in shown]),
        marks=[
            "recommended" if dict(each.settings) == dict(found.settings) else "" for each in shown
        ],
    )
    return Table(
        id="pareto-front",
        title="Pareto front: no other point is at once faster, cheaper in CPU and smaller",
        columns=columns,
        rows=rows,
        more=max(0, len(found.alternatives) - MAX_SHOWN),
    )
