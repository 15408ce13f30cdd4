"""Output of ``iobench history``: a line with a bar for each run, and the change points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from ..analyse.compare.history import History
from ..documents import json_text
from ..schema.metrics import COMPARED
from ..text import printable, renders
from .figures import format_of
from .lines import wrapped

BAR = 30


def render(found: Sequence[History], left_out: Sequence[str], *, kind: str) -> str:
    """The histories as text or JSON."""
    if kind == "json":
        records = [
            {**asdict(one), "medians": [entry.median for entry in one.entries]} for one in found
        ]
        return json_text({"histories": records, "left_out": list(left_out)}) + "\n"
    return _text(found, left_out)


@renders(printable)
def _text(found: Sequence[History], left_out: Sequence[str]) -> str:
    lines: list[str] = []
    for one in found:
        lines += _history(one, 110)
        lines.append("")
    lines += [line for why in left_out for line in wrapped(f"left out: {why}", 110, "", "  ")]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _history(one: History, width: int) -> list[str]:
    metric = COMPARED[one.metric]
    name, show = metric.short, format_of(metric)
    trend = "" if one.trend is None else f", newest third {one.trend:.3g} x the oldest"
    runs = f"{len(one.entries)} run{'' if len(one.entries) == 1 else 's'}"
    lines = wrapped(f"{one.workload}: {name} of {runs}{trend}", width, "", "  ")
    varied = dict.fromkeys(
        change.partition(":")[0] for entry in one.entries for change in entry.changed
    )
    if varied:  # these changes, and not only the storage, may explain a trend
        lines += wrapped(f"not the same in all: {', '.join(varied)}", width, "  ", "    ")
    most = max(entry.median for entry in one.entries)
    points = {point.at: point for point in one.points}
    for number, entry in enumerate(one.entries):
        if number in points:
            judged = points[number].judgement
            ratio = "" if judged.ratio is None else f" {judged.ratio:.3g} x"
            lines.append(
                f"  -- {'WORSE' if judged.difference == 'worse' else 'better'}:{ratio}, p "
                f"{judged.p:.2g}"
            )
            why = (
                "; ".join(points[number].changed)
                or "nothing in the fingerprint or the settings changed"
            )
            lines += wrapped(f"changed: {why}", width, "     ", "       ")
        spread = f"{show(entry.median)} [{show(min(entry.values))}, {show(max(entry.values))}]"
        bar = "█" * max(1, round(BAR * entry.median / most)) if most > 0 else ""
        mark = "  INVALID, not counted" if entry.validity == "invalid" else ""
        lines.append(f"  {entry.created[:16]}  {spread:<38}{bar}{mark}")
    if not one.points:
        lines.append("  no change that counts")
    return lines
