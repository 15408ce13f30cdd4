"""``docs/verdict.md`` shows the decision on the bottleneck as it stands in the code."""

from __future__ import annotations

from pathlib import Path

from iobench.analyse.verdict.bottleneck import TABLE
from iobench.analyse.verdict.evidence import Case
from iobench.analyse.verdict.judged import judge
from tests.unit.conftest import build_run

PAGE = (Path(__file__).parents[2] / "docs/verdict.md").read_text(encoding="utf-8")


def table() -> str:
    lines = ["| | if | it is | threshold, and its source |", "|---|---|---|---|"]
    number = 0
    for part in TABLE:
        lines.append(f"| | **{part.title}** | | |")
        for row in part.rows:
            number += 1
            lines.append(f"| {number} | {row.when} | {row.bottleneck} | {row.source} |")
    return "\n".join(lines)


def test_the_page_has_the_table_of_the_code() -> None:
    assert table() in PAGE


def test_the_last_row_always_has_an_answer() -> None:
    """So that no run is left without a decision."""
    case = Case(judge(build_run()).evidence)
    assert TABLE[-1].applies(case)
    assert TABLE[-1].rows[-1].check(case) is not None
