"""The wording of iobench is what tests/snapshots holds: helps, errors of users, reports,
verdicts.
"""

from __future__ import annotations

import difflib
import re

import pytest

from tests.snapshots.texts import HERE, SNAPSHOTS, texts
from tests.words import long_sentences


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_the_words_are_those_that_were_reviewed(name: str) -> None:
    file = HERE / name
    reviewed, today = file.read_text(encoding="utf-8"), texts(name)
    lines = difflib.unified_diff(reviewed.splitlines(), today.splitlines(), name, "today", n=1)
    assert today == reviewed, "\n".join(
        ["read the differences; if they are meant: python -m tests.snapshots", *lines]
    )


def test_every_mistake_is_one_line_on_standard_error() -> None:
    reviewed = (HERE / "errors.txt").read_text(encoding="utf-8")
    for shown in re.split(r"\n\n(?=\$ )", reviewed):
        told = [line for line in shown.splitlines() if line.startswith("iobench: ")]
        assert len(told) == 1, shown
        assert "internal error" not in shown
        assert shown.rstrip().splitlines()[-1] in ("exit 1", "exit 2"), shown


def test_the_sentences_of_first_screens_are_short() -> None:
    """Those of reports without details. What is set in, and the line above it, are no sentences."""
    reviewed = (HERE / "reports.txt").read_text(encoding="utf-8")
    for shown in re.split(r"\n(?=\$ )", reviewed):
        command, _, *lines = shown.splitlines()
        told = re.sub(r"(?m)^\S.*\n(?: .*\n?)+", "", "\n".join(lines))
        if not command.endswith(("--details", "--print mlpstorage")):
            assert long_sentences(each.replace("\n", " ") for each in told.split("\n\n")) == []


def test_the_examples_of_help_fit_on_a_terminal() -> None:
    """A line that is broken by the terminal's width can't be copied as one command."""
    reviewed = (HERE / "help.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in reviewed if line.startswith("  iobench ") and len(line) > 80] == []
