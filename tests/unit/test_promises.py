"""docs/promises.md names the tests that hold each promise: pytest must accept every name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools import mutations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"

_NAMED = re.compile(r"`(tests/[^`]+)`")
_QUOTED = re.compile(r"`([^`]+)`")


def named(text: str) -> list[str]:
    """The node ids of a text: ``FILE``, ``FILE::test`` or ``FILE::Class::test``, also with an id.

    An id (``test[local]``) is that of one set of a test's parameters.
    """
    return _NAMED.findall(text)


def rows(text: str) -> list[list[str]]:
    """The cells of each row of promises: the promise, its tests, its mutations."""
    lines = [
        line
        for line in text.partition("## Figures")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_every_name_is_there() -> None:
    """But for ids of parameters. A class of tests may have one of a contract."""
    contracts = "".join(path.read_text() for path in (ROOT / "iobench/testing").glob("*.py"))
    names = sorted({*named(PAGE.read_text(encoding="utf-8"))})
    assert len(names) > 100
    for name in names:
        file, *parts = name.partition("[")[0].split("::")
        text = (ROOT / file).read_text(encoding="utf-8") + (contracts if parts[1:] else "")
        assert [part for part in parts if not re.search(rf"(def|class) {part}\b", text)] == [], name


@pytest.mark.nightly
def test_pytest_accepts_every_name() -> None:
    names = sorted({*named(PAGE.read_text(encoding="utf-8"))})
    words = ["-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *names]
    found = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]


def test_every_promise_names_a_test_and_a_mutation_that_it_finds() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert len(found) > 45
    assert [row for row in found if len(row) != 3 or not named(row[1])] == []
    tests_of = {mutation.name: mutation.tests for mutation in mutations.read()}
    mutations_of = {row[0]: _QUOTED.findall(row[2]) for row in found}
    assert [promise for promise, names in mutations_of.items() if not names] == []
    assert sorted(name for names in mutations_of.values() for name in names) == sorted(tests_of)
    for promise, tests, _ in found:
        for name in mutations_of[promise]:
            assert {*tests_of[name]} <= {*named(tests)}, f"other tests than in the row: {name}"


def test_every_mutation_can_be_applied() -> None:
    """``make mutations`` tells whether its tests find it."""
    for mutation in mutations.read():
        before = (ROOT / mutation.file).read_text(encoding="utf-8")
        after = mutation.apply(before)
        assert after != before
        if mutation.file.endswith(".py"):
            ast.parse(after)
