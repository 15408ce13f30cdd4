"""A command in a message is one that a shell takes as it stands."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.processes import completed, refused


@pytest.mark.parametrize("name", ["plain", "my data", "a&b", "what?", "it's"])
def test_a_place_in_a_command_is_one_word(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    place.mkdir()
    said = refused("run", "demo", "--data", place, code=1)
    command = re.search(r"iobench scan (.*) --save", said)
    assert shlex.split(command[1]) == [str(place)]


def test_a_report_is_found_by_the_command_that_is_printed(tmp_path: Path) -> None:
    record = tmp_path / "a run & more"
    shutil.copytree("results/reference/storage-bound", record)
    said = " ".join(completed("report", record).stdout.split())
    command = re.search(r"details: iobench (.*)$", said)
    assert shlex.split(command[1]) == ["report", str(record), "--details"]
