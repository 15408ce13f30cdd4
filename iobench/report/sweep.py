"""What ``iobench sweep`` prints: the points, the best first."""

from __future__ import annotations

from statistics import median

from ..spec.sweep import Sweep, describe
from ..units import format_count


def render_sweep(sweep: Sweep) -> str:
    """One line for each point: median [min, max] of samples/s over its visits."""
    lines = [f"{sweep.workload}: {len(sweep.points)} points, {sweep.repetitions} visits each, samples/s as median [min, max]"]
    measured = sorted((p for p in sweep.points if p.samples_per_s), key=lambda p: -median(p.samples_per_s))
    width = max((len(describe(point.settings)) for point in sweep.points), default=0)
    for point in measured:
        rates = point.samples_per_s
        spread = f"{format_count(median(rates)):>9} [{format_count(min(rates))}, {format_count(max(rates))}]"
        marks = [f"{len(rates)} visits"] if len(rates) != sweep.repetitions else []
        marks += ["today's settings"] if point.settings == sweep.default else []
        marks += [f"dropped: {point.dropped}"] if point.dropped and len(rates) < sweep.repetitions else []
        lines.append(f"  {describe(point.settings):<{width}}  {spread}{'  (' + '; '.join(marks) + ')' if marks else ''}")
    lines += [f"  {describe(point.settings):<{width}}  failed: {point.failed}" for point in sweep.points if point.failed]
    lines += [f"note: {text}" for text in sweep.left_out]
    return "\n".join(lines)
