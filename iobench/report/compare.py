"""``iobench compare``: metrics of both sides, their ratio, and whether they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..analyse.compare.runs import Comparison, Group, Row
from ..analyse.compare.statistics import SIGNIFICANT
from ..schema.metrics import COMPARED
from ..units import counted
from .figures import figure, format_of, raw, spread_of, word
from .sections import Cell, Column, Fact, Facts, Headline, Item, Items, Section, Table
from .sections import Row as TableRow

WORDS = {"better": "better", "worse": "WORSE", "same": "~", "too few": "too few runs"}
NOTHING = "no metric was measured on both sides"

_COLUMNS = (
    *(Column(name=name, where="data") for name in ("workload", "baseline", "candidate")),
    Column(name="metric"),
    Column(name="baseline_median", label="baseline"),
    Column(name="candidate_median", label="candidate"),
    Column(name="ratio", label="ratio"),
    Column(name="low", where="data"),
    Column(name="high", where="data"),
    Column(name="p", label="p"),
    Column(name="effect", label="A12"),
    Column(name="difference"),
)


def sections(compared: Sequence[Comparison], left_out: Sequence[str]) -> list[Section]:
    """For each comparison a headline, what is compared, and a table of metrics."""
    found = [
        section
        for number, each in enumerate(compared, start=1)
        for section in _comparison(each, f"comparison-{number}")
    ]
    return found + left_out_sections(left_out)


def left_out_sections(left_out: Sequence[str]) -> list[Section]:
    """The runs that were left out, with the reasons; nothing if there are none."""
    items = tuple(Item(text=why) for why in left_out)
    return [Items(id="left-out", title="Left out", items=items)] if items else []


def _comparison(each: Comparison, name: str) -> list[Section]:
    facts = [("baseline", _group(each.baseline)), ("candidate", _group(each.candidate))]
    facts += [("not comparable", line) for line in each.obstacles]
    facts += [("differs", "; ".join(each.changes))] if each.changes else []
    better = each.difference == "better" and not each.obstacles
    found: list[Section] = [
        Headline(
            id=name,
            title=f"{each.workload}: {_verdict(each)}",
            tone="good" if better else "plain",
        ),
        Facts(
            id=f"{name}-sides", facts=tuple(Fact(label=label, text=text) for label, text in facts)
        ),
    ]
    if each.rows:
        rows = tuple(_row(each, row) for row in each.rows)
        found.append(Table(id=f"{name}-metrics", columns=_COLUMNS, rows=rows))
    return found


def _row(each: Comparison, row: Row) -> TableRow:
    judged, metric = row.judgement, COMPARED[row.metric]
    show = format_of(metric)
    ratio = "-"
    if judged.ratio is not None:
        ratio = f"{judged.ratio:.3g} x [{judged.low:.3g}, {judged.high:.3g}]"
    return TableRow(
        cells=(
            *(raw(text) for text in (each.workload, each.baseline.label, each.candidate.label)),
            word(metric.short, row.metric),
            Cell(value=median(row.baseline), text=spread_of(row.baseline, show)),
            Cell(value=median(row.candidate), text=spread_of(row.candidate, show)),
            Cell(value=judged.ratio, text=ratio),
            raw(judged.low),
            raw(judged.high),
            figure(judged.p, _p),
            # A12: probability that a value of the candidate is larger; 0.5 means no effect.
            figure(judged.effect, lambda effect: f"{effect:.2f}"),
            word(WORDS[judged.difference], judged.difference),
        )
    )


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
    return f"{group.label} ({counted(len(group.runs), 'run')}, {counted(repetitions, 'value')})"


def _p(p: float) -> str:
    shown = f"{p:.2g}"
    # 0.0498 must not be shown as 0.05, which is not significant.
    return f"<{SIGNIFICANT:g}" if p < SIGNIFICANT <= float(shown) else shown


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonRecord:
    """One comparison in the JSON document."""

    workload: str
    baseline: str
    candidate: str
    baseline_runs: tuple[str, ...]
    candidate_runs: tuple[str, ...]
    comparable: bool
    obstacles: tuple[str, ...]
    changes: tuple[str, ...]
    difference: str | None
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The JSON document of ``iobench compare``."""

    comparisons: tuple[ComparisonRecord, ...]
    left_out: tuple[str, ...]


def document(compared: Sequence[Comparison], left_out: Sequence[str]) -> Document:
    """The comparisons with the runs of both sides by their ids."""
    records = tuple(
        ComparisonRecord(
            workload=each.workload,
            baseline=each.baseline.label,
            candidate=each.candidate.label,
            baseline_runs=tuple(doc.run_id for doc in each.baseline.runs),
            candidate_runs=tuple(doc.run_id for doc in each.candidate.runs),
            comparable=not each.obstacles,
            obstacles=tuple(each.obstacles),
            changes=tuple(each.changes),
            difference=each.difference or None,
            rows=tuple(each.rows),
        )
        for each in compared
    )
    return Document(comparisons=records, left_out=tuple(left_out))
