"""``iobench advise``: the settings to use, the gain, the reasons and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping

from ..analyse.tuning.knee import NO_HELP
from ..analyse.tuning.recommend import Alternative, Recommendation
from ..units import format_bytes, format_count
from .figures import figure, raw, spread, word
from .sections import (
    Cell,
    Column,
    Fact,
    Facts,
    Headline,
    Item,
    Items,
    Prose,
    Row,
    Section,
    Table,
)

MAX_SHOWN = 12
"""Largest number of rows of the Pareto front, and of entries that were left out."""


def sections(found: Recommendation) -> list[Section]:
    """The answer first, then why, what speaks against it, and the alternatives."""
    parts = [*_answer(found), *_list("why", "Why", found.why), *_list("but", "But", found.doubts)]
    if found.untested is not None:
        told = (
            "Worth a run: the best of each axis together, which nobody measured: "
            f"{_settings(found.untested)}"
        )
        parts.append(Prose(id="untested", paragraphs=(told,)))
    return [*parts, _front(found), *_list("left-out", "Left out", found.left_out)]


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


def _list(name: str, title: str, texts: tuple[str, ...]) -> list[Section]:
    items = tuple(Item(text=text) for text in texts[:MAX_SHOWN])
    more = len(texts) - len(items)
    return [Items(id=name, title=title, items=items, more=more)] if items else []


def _front(found: Recommendation) -> Table:
    return Table(
        id="pareto-front",
        title="Pareto front: no other point is at once faster, cheaper in CPU and smaller",
        columns=(
            Column(
                name="samples_per_s",
                label="samples/s [min, max]",
                unit="samples/s",
                align="right",
            ),
            Column(name="low", unit="samples/s", where="data"),
            Column(name="high", unit="samples/s", where="data"),
            Column(name="repetitions", label="n", unit="count", align="right"),
            Column(name="cpu_s_per_gb", label="CPU s/GB", unit="s/GB", align="right"),
            Column(name="stored_bytes", label="stored", unit="bytes", align="right"),
            Column(name="settings", label="settings"),
        ),
        rows=tuple(_point(found, point) for point in found.alternatives[:MAX_SHOWN]),
        more=max(0, len(found.alternatives) - MAX_SHOWN),
    )


def _point(found: Recommendation, point: Alternative) -> Row:
    rates = spread(point.samples_per_s, point.low, point.high, format_count)
    return Row(
        cells=(
            Cell(value=point.samples_per_s, text=rates),
            raw(point.low),
            raw(point.high),
            Cell(value=point.repetitions, text=str(point.repetitions)),
            figure(point.cpu_s_per_gb, lambda seconds: f"{seconds:.3g}"),
            figure(point.stored_bytes, format_bytes),
            word(_settings(point.settings)),
        ),
        mark="recommended" if dict(point.settings) == dict(found.settings) else "",
    )
