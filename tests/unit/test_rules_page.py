"""``docs/rules.md`` names every rule with its levels, and only rules that there are."""

from __future__ import annotations

import re
from pathlib import Path

from iobench.judge.validity import (
    CHECKPOINT_RULES,
    LEVELS,
    LOAD_RULES,
    MIXED_RULES,
    RULES,
    SERVING_RULES,
)

PAGE = (Path(__file__).parents[2] / "docs/rules.md").read_text(encoding="utf-8")
OWN, OTHERS = PAGE.split("## MLPerf Storage, line by line")
COMPARED, STRICTER = OTHERS.split("### Stricter than theirs")
ROW = re.compile(r"^\| `([a-z.-]+)` \|(.*)\|$", re.MULTILINE)
GROUPS = "|".join(sorted({rule.partition(".")[0] for rule in LEVELS}))
RULE = re.compile(rf"`((?:{GROUPS})\.[a-z-]+)`")
ALL = {
    rule.id: rule for rule in (*SERVING_RULES, *RULES, *MIXED_RULES, *CHECKPOINT_RULES, *LOAD_RULES)
}


def rows() -> dict[str, list[str]]:
    found = [
        (rule, [cell.strip() for cell in cells.split("|")]) for rule, cells in ROW.findall(OWN)
    ]
    table = {rule: cells for rule, cells in found if len(cells) == 5}
    assert len(table) == len([cells for _, cells in found if len(cells) == 5])  # named once
    return table


def test_every_rule_is_there_with_its_levels() -> None:
    levels = {rule: tuple(cells[1:3]) for rule, cells in rows().items()}
    assert levels == {
        rule: tuple(level or "—" for level in found) for rule, found in LEVELS.items()
    }


def test_every_rule_says_what_it_needs_and_what_to_do() -> None:
    assert not [rule for rule, cells in rows().items() if not all(cells)]


def test_what_is_mlperfs_alone_is_in_their_table() -> None:
    theirs = {
        rule.id for rule in ALL.values() if rule.levels.quick is None or rule.mlperf is not None
    }
    assert theirs <= set(RULE.findall(COMPARED))


def test_whatever_may_refuse_is_compared_or_called_stricter() -> None:
    refusing = {rule for rule, found in LEVELS.items() if found.mlperf == "invalid"}
    compared, stricter = set(RULE.findall(COMPARED)), set(RULE.findall(STRICTER))
    assert not compared & stricter
    assert refusing <= compared | stricter
    assert stricter <= refusing
