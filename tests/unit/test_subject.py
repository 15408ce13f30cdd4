"""The loader under test: one table says what its kind means, and nobody else compares kinds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

NAMES = re.compile(r"OWN_LOADER|USER_LOADER|\b(loader|loading)\.kind\b|job\.watched")
PACKAGE = Path(__file__).resolve().parents[2] / "iobench"

ROOM = ("settings/workload.py", "subject/", "runner/watched_record.py")
"""Where a kind may be named: the table, the settings that name one, and what makes a record."""


def comparisons(source: str) -> list[int]:
    """The lines that name a kind of loader, or compare the kind of what is a loader."""
    found = []
    for node in ast.walk(ast.parse(source)) if NAMES.search(source) else ():
        if isinstance(node, ast.Name | ast.alias):
            name = node.id if isinstance(node, ast.Name) else node.name
            if name in ("OWN_LOADER", "USER_LOADER"):
                found.append(node.lineno)
        elif isinstance(node, ast.Compare):
            both = (node.left, *node.comparators)
            sides = [ast.unparse(side) for side in both if isinstance(side, ast.Attribute)]
            if any(side.endswith(("loader.kind", "loading.kind")) for side in sides):
                found.append(node.lineno)
            if any(side.endswith("job.watched") for side in sides):
                found.append(node.lineno)
    return found


def test_only_the_room_compares_kinds() -> None:
    found = [
        f"{name}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not (name := str(path.relative_to(PACKAGE))).startswith(ROOM)
        for line in comparisons(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "from ..schema.subject import USER_LOADER",
        "own = doc.job.loader.kind == 'iobench'",
        "if loading.kind != name: pass",
        "if doc.job.watched is not None: pass",
    ],
)
def test_a_comparison_is_seen(source: str) -> None:
    assert comparisons(source)
