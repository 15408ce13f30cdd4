"""docs/promises.md names the tests that hold each promise: every one of them must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"

_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def named(text: str) -> list[tuple[str, str]]:
    """(file, test) for each test that a page names; '' for a whole file."""
    return [(match[1], match[2] or "") for match in _TEST.finditer(text)]


def missing(text: str) -> list[str]:
    """What a page names and what is not there."""
    gone = []
    for file, test in named(text):
        path = ROOT / file
        if not path.is_file():
            gone.append(file)
        elif test and test not in functions(path):
            gone.append(f"{file}::{test}")
    return gone


def functions(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(named(text)) > 50
    assert missing(text) == []


def test_every_promise_names_a_test() -> None:
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ") and not line.startswith(("| promise", "| ---", "|---"))
    ]
    assert len(rows) > 30
    assert [row for row in rows if not named(row)] == []


def test_the_check_can_fail() -> None:
    here = "tests/unit/test_promises.py"
    assert missing(f"`{here}::test_the_check_can_fail`, `{here}`") == []
    assert missing(f"`{here}::test_that_is_not_there`") == [f"{here}::test_that_is_not_there"]
    assert missing("`tests/unit/no_such_file.py`") == ["tests/unit/no_such_file.py"]
