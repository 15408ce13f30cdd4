"""Output of ``iobench compare``: metrics of both sides, their ratio, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from ..analyse.compare.runs import Comparison, Group, Row
from ..analyse.compare.statistics import SIGNIFICANT
from ..documents import json_text
from ..schema.metrics import COMPARED
from ..text import markdown, printable, renders
from ..units import format_count
from .figures import Format, format_of
from .lines import csv_text, wrapped

WORDS = {"better": "better", "worse": "WORSE", "same": "~", "too few": "too few runs"}
NOTHING = "no metric was measured on both sides"


def render(compared: Sequence[Comparison], left_out: Sequence[str], *, kind: str) -> str:
    """The comparisons as text, JSON, CSV or markdown."""
    return {"text": _text, "json": _json, "csv": _csv, "markdown": _markdown}[kind](
        compared, left_out
    )


@renders(printable)
def _text(compared: Sequence[Comparison], left_out: Sequence[str], width: int = 120) -> str:
    lines: list[str] = []
    for each in compared:
        lines.append(f"{each.workload}: {_verdict(each)}")
        lines += wrapped(f"baseline   {_group(each.baseline)}", width, "  ", " " * 13)
        lines += wrapped(f"candidate  {_group(each.candidate)}", width, "  ", " " * 13)
        for line in each.obstacles:
            lines += wrapped(f"not comparable: {line}", width, "  ", " " * 4)
        if each.changes:
            lines += wrapped(f"differs    {'; '.join(each.changes)}", width, "  ", " " * 13)
        table: list[tuple[str, ...]] = []
        if each.rows:
            table.append(("", "baseline", "candidate", "ratio", "p", "A12", ""))
        for row in each.rows:
            metric = COMPARED[row.metric]
            show = format_of(metric)
            cells = (
                *(_spread(row.baseline, show), _spread(row.candidate, show)),
                *(_ratio(row), _p(row), _effect(row), WORDS[row.judgement.difference]),
            )
            table.append((metric.short, *cells))
        lines += _aligned(table)
        lines.append("")
    lines += [line for why in left_out for line in wrapped(f"left out: {why}", width, "", "  ")]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _aligned(table: Sequence[tuple[str, ...]]) -> list[str]:
    """Each column is as wide as its widest cell, with two spaces between columns."""
    widths = [
        max(len(row[number]) for row in table) for number in range(len(table[0]) if table else 0)
    ]
    return [
        "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in table
    ]


def _verdict(each: Comparison) -> str:
    if each.obstacles:
        return "not comparable"
    return {
        "better": "the candidate is better",
        "worse": "the candidate is WORSE",
        "same": "no difference (~)",
        "too few": "too few runs to tell",
    }.get(each.difference, NOTHING)


def _group(group: Group) -> str:
    repetitions = max((len(group.values(metric)) for metric in COMPARED), default=0)
    return f"{group.label} ({_many(len(group.runs), 'run')}, {_many(repetitions, 'value')})"


def _many(count: int, noun: str) -> str:
    return f"{format_count(count)} {noun}{'' if count == 1 else 's'}"


def _spread(values: Sequence[float], show: Format) -> str:
    return f"{show(median(values))} [{show(min(values))}, {show(max(values))}]"


def _ratio(row: Row) -> str:
    judgement = row.judgement
    if judgement.ratio is None:
        return "-"
    return f"{judgement.ratio:.3g} x [{judgement.low:.3g}, {judgement.high:.3g}]"


def _p(row: Row) -> str:
    p = row.judgement.p
    if p is None:
        return "-"
    shown = f"{p:.2g}"
    # 0.0498 must not be shown as 0.05, which is not significant.
    return f"<{SIGNIFICANT:g}" if p < SIGNIFICANT <= float(shown) else shown


def _effect(row: Row) -> str:
    """A12: probability that a value of the candidate is larger; 0.5 means no effect."""
    return "-" if row.judgement.effect is None else f"{row.judgement.effect:.2f}"


def _records(compared: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "workload": each.workload,
            "baseline": each.baseline.label,
            "candidate": each.candidate.label,
            "baseline_runs": [doc.run_id for doc in each.baseline.runs],
            "candidate_runs": [doc.run_id for doc in each.candidate.runs],
            "comparable": not each.obstacles,
            "obstacles": list(each.obstacles),
            "changes": list(each.changes),
            "difference": each.difference or None,
            "rows": [asdict(row) for row in each.rows],
        }
        for each in compared
    ]


def _json(compared: Sequence[Comparison], left_out: Sequence[str]) -> str:
    return json_text({"comparisons": _records(compared), "left_out": list(left_out)}) + "\n"


_COLUMNS = (
    *("workload", "baseline", "candidate", "metric", "baseline_median", "candidate_median"),
    *("ratio", "low", "high", "p", "effect", "difference"),
)


@renders(printable)
def _csv(compared: Sequence[Comparison], left_out: Sequence[str]) -> str:
    rows: list[tuple[object, ...]] = []
    for each in compared:
        for row in each.rows:
            judged = row.judgement
            rows.append(
                (
                    *(each.workload, each.baseline.label, each.candidate.label, row.metric),
                    *(median(row.baseline), median(row.candidate)),
                    *(judged.ratio, judged.low, judged.high, judged.p, judged.effect),
                    judged.difference,
                )
            )
    return csv_text([_COLUMNS, *rows])


@renders(markdown)
def _markdown(compared: Sequence[Comparison], left_out: Sequence[str]) -> str:
    lines: list[str] = []
    for each in compared:
        lines += [
            (
                f"**{each.workload}: {_verdict(each)}** ({each.baseline.label} -> "
                f"{each.candidate.label})"
            ),
            "",
        ]
        lines += [f"- not comparable: {line}" for line in each.obstacles]
        if each.rows:
            lines += [
                "| metric | baseline | candidate | ratio | p | A12 | |",
                "|---|---|---|---|---:|---:|---|",
            ]
        for row in each.rows:
            metric = COMPARED[row.metric]
            name, show = metric.short, format_of(metric)
            cells = (
                name,
                _spread(row.baseline, show),
                _spread(row.candidate, show),
                _ratio(row),
                _p(row),
                _effect(row),
            )
            lines.append(f"| {' | '.join(cells)} | {WORDS[row.judgement.difference]} |")
        lines.append("")
    lines += [f"- left out: {why}" for why in left_out]
    return "\n".join(lines).rstrip() + "\n"
