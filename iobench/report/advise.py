"""Output of ``iobench advise``: the settings to use, the gain, the reasons and the alternatives."""

from __future__ import annotations

from collections.abc import Mapping

from ..analyse.tuning.knee import NO_HELP
from ..analyse.tuning.recommend import Alternative, Recommendation
from ..text import printable, renders
from ..units import format_bytes, format_count
from .lines import wrapped

SHOWN = 12
"""Largest number of lines for the Pareto front, and for what was left out."""


@renders(printable)
def render_advise(found: Recommendation, width: int = 100) -> str:
    """Sections separated by blank lines, of at most ``width`` columns if settings are shorter."""
    sections = [
        _answer(found, width),
        _list("Why", found.why, width),
        _list("But", found.doubts, width),
    ]
    if found.untested is not None:
        told = (
            "Worth a run: the best of each axis together, which nobody measured: "
            f"{_settings(found.untested)}"
        )
        sections.append(wrapped(told, width, "", "  "))
    sections += [
        _front(found, width),
        _list("Left out", found.left_out[:SHOWN], width, more=len(found.left_out) - SHOWN),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines)


def _settings(settings: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key} not set" if value in ("None", "null") else f"{key}={value}"
        for key, value in settings.items()
    )


def _answer(found: Recommendation, width: int) -> list[str]:
    keep = found.gain == 1.0 and not found.changes
    what = "keep today's settings" if keep else f"take {_settings(found.changes)}"
    kept = {key: value for key, value in found.settings.items() if key not in found.changes}
    stay = f"; leave {_settings(kept)}" if kept and not keep else ""
    lines = wrapped(f"{found.workload}: {what}{stay}", width, "", "  ")
    return (
        lines
        + wrapped(
            f"gain: {_gain(found, keep=keep)}; confidence: {found.confidence}", width, "  ", "    "
        )
        + wrapped(f"based on {found.basis}", width, "  ", "    ")
    )


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


def _list(title: str, lines: tuple[str, ...], width: int, *, more: int = 0) -> list[str]:
    if not lines:
        return []
    told = [title] + [text for line in lines for text in wrapped(line, width, "  - ", "    ")]
    return told + ([f"  and {format_count(more)} more"] if more > 0 else [])


def _front(found: Recommendation, width: int) -> list[str]:
    lines = [
        "Pareto front: no other point is at once faster, cheaper in CPU and smaller",
        f"  {'samples/s':>10} {'[min, max]':>18} {'n':>3} {'CPU s/GB':>9} {'stored':>9}  settings",
    ]
    for point in found.alternatives[:SHOWN]:
        mark = "  <- recommended" if dict(point.settings) == dict(found.settings) else ""
        lines += wrapped(f"{_settings(point.settings)}{mark}", width, _figures(point), " " * 56)
    if len(found.alternatives) > SHOWN:
        lines.append(f"  and {len(found.alternatives) - SHOWN} more")
    return lines


def _figures(point: Alternative) -> str:
    interval = f"[{format_count(point.low)}, {format_count(point.high)}]"
    cpu = "-" if point.cpu_s_per_gb is None else f"{point.cpu_s_per_gb:.3g}"
    stored = "-" if point.stored_bytes is None else format_bytes(point.stored_bytes)
    return (
        f"  {format_count(point.samples_per_s):>10} {interval:>18} {point.repetitions:>3} "
        f"{cpu:>9} {stored:>9}  "
    )
