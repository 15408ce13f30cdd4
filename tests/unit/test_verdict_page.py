"""``docs/verdict.md`` shows the decision on the bottleneck as it stands in the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from iobench.judge.bottleneck import TABLE
from iobench.judge.evidence import Case
from iobench.judge.judged import judge
from iobench.judge.verdict import SITUATIONS
from iobench.record.curve import Bound
from iobench.record.verdict import AdviceId
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


@pytest.mark.parametrize("bound", get_args(Bound))
def test_the_page_names_the_first_advice_on_a_storage_that_is_limited_so(bound: Bound) -> None:
    evidence = judge(build_run()).evidence
    several = [each for each in SITUATIONS if each.stage == "storage"]
    changes = next(each.changes for each in several if each.when(evidence, bound))
    groups = (each if isinstance(each, tuple) else (each,) for each in changes)
    advised = {change.id for group in groups for change in group}
    (row,) = re.findall(rf"^\| `{bound}` \|.*\| (.*) \|$", PAGE, re.MULTILINE)
    assert set(re.findall(r"`([a-z-]+)`", row)) & set(get_args(AdviceId)) <= advised


def test_each_stage_has_changes_whatever_limits_it() -> None:
    evidence = judge(build_run()).evidence
    for stage in {each.stage for each in SITUATIONS}:
        last = [each for each in SITUATIONS if each.stage == stage][-1]
        assert last.when(evidence, None), stage
