"""``make size`` counts code, and neither blank lines nor comments nor docstrings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import size

SOURCE = '''"""A module.

Two paragraphs.
"""

import os  # counts

LIMIT = 3
"""Of an attribute."""


def outer(
    name: str,
) -> str:
    """A docstring."""
    # A comment.
    def inner() -> str:
        return """text
        that is a value"""

    return name + inner()
'''


def test_what_counts_as_code() -> None:
    lines = SOURCE.splitlines()
    counted = [lines[number - 1].strip() for number in sorted(size.code_lines(SOURCE))]
    assert counted == [
        "import os  # counts",
        "LIMIT = 3",
        "def outer(",
        "name: str,",
        ") -> str:",
        "def inner() -> str:",
        'return """text',
        'that is a value"""',
        "return name + inner()",
    ]


def test_the_table_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    (package / "room").mkdir(parents=True)
    (package / "room" / "a.py").write_text(SOURCE)
    (package / "top.py").write_text("class C:\n    x = 1\n")
    monkeypatch.setattr(size, "ROOT", tmp_path)
    found = {
        name: (each.code, each.files, each.classes, each.functions)
        for name, each in size.sizes(package)
    }
    assert found == {"room": (9, 1, 0, 2), "(beside)": (2, 1, 1, 0), "all": (11, 2, 1, 2)}
