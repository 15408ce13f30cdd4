"""A record is read without a plug-in: on a laptop, years later, by an iobench that lacks them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.processes import python

HERE = Path(__file__).parent.parent / "golden"
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "runs").is_dir())

PLUG_INS = (
    "torch",
    *(f"iobench.{name}" for name in ("storage", "accelerate", "checkpoint", "load", "runner")),
    "iobench.data",
)

PROGRAM = """
import contextlib, io, json, sys
from importlib.abc import MetaPathFinder

blocked = tuple(json.loads(sys.argv[1]))

class Refuse(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any(name == each or name.startswith(each + ".") for each in blocked):
            raise ImportError(f"{name} is blocked", name=name)
        return None

sys.meta_path.insert(0, Refuse())
from iobench.cli.main import main

found = []
for command in json.loads(sys.argv[2]):
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(command)
    found.append([code, len(out.getvalue()), errors.getvalue()])
print(json.dumps(found))
"""


def outcomes(commands: list[list[str]], folder: Path) -> list[tuple[int, int, str]]:
    """(exit status, characters printed, what stderr says) of each, in a process without
    plug-ins.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    told = python(PROGRAM, json.dumps(PLUG_INS), json.dumps(commands), env=environment)
    return [(code, printed, errors) for code, printed, errors in json.loads(told)]


@pytest.mark.parametrize("version", VERSIONS)
def test_what_reads_records_needs_no_plug_in(version: str, tmp_path: Path) -> None:
    runs = Path(shutil.copytree(HERE / version / "runs", tmp_path / "runs"))
    run = runs / "calibrated"
    valid = json.loads((run / "run.json").read_text())["validity"] != "invalid"
    commands = [
        ["report", str(run)],
        ["report", str(run), "--format", "markdown"],
        ["report", str(run), "--json"],
        ["compare", str(run), str(runs / "throttled")],
        ["compare", str(runs), "--over-time", "smallrun"],
        ["cost", str(run), "--host-price-per-hour", "1.20"],
        ["size", "resnet50-h100", "--accelerators", "8", "--from", str(run)],
        ["size", "unet3d-b200", "--accelerators", "64", "--hosts", "8"],
        ["whatif", str(run), "--storage-bandwidth", "2x"],
    ]
    for command, (code, printed, errors) in zip(
        commands, outcomes(commands, tmp_path), strict=True
    ):
        assert code == (0 if valid or command[0] != "report" else 3), (command, errors)
        assert "blocked" not in errors, command
        assert printed > 0, command


def test_the_plug_ins_are_blocked_indeed(tmp_path: Path) -> None:
    ((code, _, errors),) = outcomes([["verify", str(tmp_path)]], tmp_path)
    assert code != 0
    assert "blocked" in errors
