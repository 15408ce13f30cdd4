"""Output of ``iobench sweep``: the points, the fastest first."""

from __future__ import annotations

from dataclasses import asdict
from statistics import median
from typing import Any

from ..analyse.tuning.confirmation import Confirmation
from ..schema.sweep import Sweep, describe
from ..text import printable, renders
from ..units import format_count
from .compare import render
from .lines import wrapped


@renders(printable)
def render_sweep(sweep: Sweep) -> str:
    """One line for each point: median [min, max] of samples/s over its repetitions."""
    lines = [
        (
            f"{sweep.workload}: {len(sweep.points)} points, {sweep.repetitions} visits each, "
            "samples/s as median [min, max]"
        )
    ]
    measured = sorted(
        (p for p in sweep.points if p.samples_per_s), key=lambda p: -median(p.samples_per_s)
    )
    width = max((len(describe(point.settings)) for point in sweep.points), default=0)
    for point in measured:
        rates = point.samples_per_s
        spread = (
            f"{format_count(median(rates)):>9} [{format_count(min(rates))}, "
            f"{format_count(max(rates))}]"
        )
        marks = (
            [f"{len(rates)} visit{'' if len(rates) == 1 else 's'}"]
            if len(rates) != sweep.repetitions
            else []
        )
        marks += ["today's settings"] if point.settings == sweep.default else []
        marks += (
            [f"dropped: {point.dropped}"]
            if point.dropped and len(rates) < sweep.repetitions
            else []
        )
        lines.append(
            f"  {describe(point.settings):<{width}}  "
            f"{spread}{'  (' + '; '.join(marks) + ')' if marks else ''}"
        )
    lines += [
        f"  {describe(point.settings):<{width}}  failed: {point.failed}"
        for point in sweep.points
        if point.failed
    ]
    lines += [f"note: {text}" for text in sweep.left_out]
    return "\n".join(lines)


@renders(printable)
def render_confirmation(found: Confirmation, width: int = 100) -> str:
    """What was advised, what fresh runs measured, and whether they confirm the advice."""
    advice, row = (
        found.advice,
        next(row for row in found.comparison.rows if row.metric == "samples_per_s"),
    )
    ratio = row.judgement
    promised = f"{advice.gain:.2f} x" if advice.gain is not None else "an unknown gain"
    if advice.gain_low is not None and advice.gain_high is not None:
        promised += f" [{advice.gain_low:.2f}, {advice.gain_high:.2f}]"
    measured = f"{ratio.ratio:.2f} x" if ratio.ratio is not None else "nothing that can be told"
    if ratio.low is not None and ratio.high is not None:
        measured += f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    answer = (
        "NOT confirmed"
        if not found.confirmed
        else "confirmed"
        if found.better
        else "confirmed as no slower"
    )
    p = "" if ratio.p is None else f", p = {ratio.p:.2g}"
    changes = ", ".join(f"{key}={value}" for key, value in advice.changes.items())
    text = (
        f"{answer}: with {changes} fresh runs with other seeds do {measured} today's "
        f"samples/s{p}; the sweep promised {promised}"
    )
    lines = wrapped(text, width, "", "  ")
    return (
        "\n".join(lines)
        + "\n\n"
        + render([found.comparison], found.notes, kind="text")
        + f"\nresults: {found.directory}\n"
    )


def confirmation_document(found: Confirmation) -> dict[str, Any]:
    """The confirmation as a JSON document."""
    rows = [{**asdict(row), "judgement": asdict(row.judgement)} for row in found.comparison.rows]
    return {
        "confirmed": found.confirmed,
        "advice": asdict(found.advice),
        "comparison": rows,
        "directory": found.directory,
        "left_out": list(found.notes),
    }
