"""``make size`` counts code, and neither blank lines nor comments nor docstrings."""

from __future__ import annotations

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
