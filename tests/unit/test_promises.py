"""docs/promises.md names the tests that hold each promise: pytest must accept every name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import mutations

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"

_NAMED = re.compile(r"`(tests/[^`]+)`")
_FILE = re.compile(r"tests/[\w/]+\.py")
_QUOTED = re.compile(r"`([^`]+)`")


def named(text: str) -> list[str]:
    """The node ids of a text: ``FILE``, ``FILE::test`` or ``FILE::Class::test``, also with an id.

    An id (``test[local]``) is that of one set of a test's parameters.
    """
    return _NAMED.findall(text)


def unknown(text: str) -> list[str]:
    """The node ids that pytest would refuse: no file, class or test of theirs is there."""
    return [name for name in named(text) if not _is_known(name)]


def _is_known(name: str) -> bool:
    file, *parts = name.split("::")
    path = ROOT / file
    if not _FILE.fullmatch(file) or not path.is_file():
        return False
    if not parts:
        return True
    test, bracket, _ = parts.pop().partition("[")
    found = collected(path).get("::".join([*parts, test]))
    return found is not None and (not bracket or _has_parameters(found, path))


def collected(path: Path) -> dict[str, ast.FunctionDef]:
    """All tests of a file, as ``test`` or ``Class::test``; inherited ones are their classes', too.

    pytest collects functions that begin with ``test_``, of the module and of ``Test`` classes.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    found = {node.name: node for node in _functions(tree.body)}
    for name, node in classes.items():
        if name.startswith("Test"):
            for function in _methods(node, classes):
                found.setdefault(f"{name}::{function.name}", function)
    return found


def _functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node


def _methods(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[ast.FunctionDef]:
    yield from _functions(node.body)
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _methods(classes[base.id], classes)


def _has_parameters(test: ast.FunctionDef, path: Path) -> bool:
    """Whether a test has ids: by parameters of its own, or of a fixture of its file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    decorators = [
        ast.unparse(one)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        for one in node.decorator_list
    ]
    own = any(".parametrize(" in ast.unparse(one) for one in test.decorator_list)
    return own or any("fixture(" in one and "params=" in one for one in decorators)


def rows(text: str) -> list[list[str]]:
    """The cells of each row of promises: the promise, its tests, its mutations."""
    lines = [
        line
        for line in text.partition("## Figures")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.slow
def test_pytest_accepts_every_name() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(named(text)) > 100
    assert unknown(text) == []


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


HERE = "tests/unit/test_promises.py"
SUITE = "tests/contract/test_storage_suite.py"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        (HERE, True),
        (f"{HERE}::test_names_that_pytest_refuses_are_found", True),
        (f"{HERE}::test_names_that_pytest_refuses_are_found[x]", True),
        (f"{HERE}::test_pytest_accepts_every_name[x]", False),
        (f"{HERE}::test_that_is_not_there", False),
        (f"{HERE}::named", False),
        (f"{SUITE}::TestLocal::test_nothing_is_overwritten", True),  # from its base
        (f"{SUITE}::TestLocal::test_that_is_not_there", False),
        (f"{SUITE}::TestNoClass::test_nothing_is_overwritten", False),
        (f"{SUITE}::StorageContract::test_nothing_is_overwritten", False),  # is not collected
        (f"{SUITE}::test_nothing_is_overwritten", False),  # its class is left out
        ("tests/unit/no_such_file.py", False),
        ("tests/unit", False),
    ],
)
def test_names_that_pytest_refuses_are_found(name: str, known: bool) -> None:
    assert unknown(f"see `{name}`") == ([] if known else [name])
