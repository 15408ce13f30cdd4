"""Flags that all verbs share, flags that were renamed, and what a shell completes."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from cyclopts.argument import Argument

from iobench.cli.flags import WHOLE_HELP, names_of, requirements
from iobench.cli.main import VERBS, program
from tests.pairs import one_of
from tests.processes import completed, in_process, printed, refused
from tests.snapshots.texts import help_of

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


@cache
def flags_of(verb: str) -> dict[str, Argument]:
    """The flags and words of a verb by their first name."""
    app = program()
    found = app[verb].assemble_argument_collection(
        default_parameter=app.default_parameter, parse_docstring=True
    )
    return {each.name: each for each in found if each.parse}


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_flag_needs_or_can_not_be_beside_is_a_flag_of_its_verb(verb: str) -> None:
    request = program()[verb].default_command
    known = set(names_of(request))
    for name, company in requirements(request):
        assert {*company.needs, *company.without} <= known, name
        assert name not in company.without


@pytest.mark.parametrize("verb", one_of(4, VERBS))
def test_a_help_shows_what_matters_first_and_the_whole_help_every_flag(verb: str) -> None:
    short, whole = help_of(verb), printed(f"{verb} --help-all")
    for name, flag in flags_of(verb).items():
        line = re.compile(rf"^│[ *]+(\w+ )?{name}(?![\w-])", re.MULTILINE)
        assert line.search(whole), name
        assert bool(line.search(short)) != (flag.parameter.show is WHOLE_HELP), name


@pytest.mark.parametrize("form", ["text", "json"])
def test_output_goes_to_a_file_as_it_went_to_stdout(form: str, tmp_path: Path) -> None:
    words = ("report --format", form, GOLDEN / "calibrated")
    file = tmp_path / "out"
    file.write_text("what was there before")
    assert printed(*words, "-o", file) == ""
    assert file.read_text(encoding="utf-8") == printed(*words)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_output_that_cannot_be_written_is_told_before_anything_is_done(tmp_path: Path) -> None:
    made = tmp_path / "data"
    for place in (tmp_path, tmp_path / "no" / "file", "x\0y"):
        assert refused("generate demo --samples 1 --to", made, "--output", place)
        assert not made.exists()


@pytest.mark.parametrize("target", ["file", "nothing"])
def test_no_document_is_written_through_a_link(target: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("before")
    (tmp_path / "link").symlink_to(target)
    assert refused("list codecs -o", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir() if path.is_file()] == [
        ("file", "before"), *([("link", "before")] if target == "file" else [])
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        *("run/run.json", "run/events.parquet", "sweep.json", "ab.json", "run/resources.parquet"),
        *("data/manifest.json", "data/samples.arrow", "data/.iobench-dataset"),
        *("data/data/demo-000000.tar", "scanned/manifest.json", "scanned/shards.arrow"),
        *("checkpoints/step-1/model.pt", "checkpoints/.iobench-checkpoints"),
    ],
)
def test_no_document_replaces_what_iobench_has_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = ("manifest.json", "samples.arrow", "shards.arrow")
    for each in (
        *(f"{folder}/{own}" for folder in ("data", "scanned") for own in tables),
        *("data/.iobench-dataset", "checkpoints/.iobench-checkpoints", name),
    ):
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / each).write_text("precious")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.chdir((tmp_path / name).parent)
    for place in (tmp_path / name, (tmp_path / name).name):
        assert Path(name).name in refused("list codecs -o", place)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert printed("list codecs -o page.html") == ""  # not there yet, so it is nobody's


def test_a_full_disk_names_the_file() -> None:
    assert "/dev/full" in refused("list codecs -o /dev/full", code=1)


@pytest.mark.slow
def test_a_demos_document_is_alone_on_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = ("--samples", 40, "-n", 1, "--calibration", "0s")
    monkeypatch.chdir(tmp_path)
    told = completed("demo", *quick, "--format", "csv", "-o", "out.csv")
    assert (told.returncode, told.stdout) == (0, "")
    assert "generated" in told.stderr
    rows = (tmp_path / "out.csv").read_text().splitlines()
    assert len({row.count(",") for row in rows if '"' not in row}) == 1


def test_a_verb_that_fails_leaves_the_output_of_before(tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    assert refused("report", tmp_path / "nosuch", "-o", file)
    assert file.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert printed("list codecs -o /dev/null") == ""


# Completion


def test_a_file_with_a_hostile_name_is_no_completion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "x'; touch pwned; '.yaml").write_text("")
    (tmp_path / "workloads" / "mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    told = in_process("__complete", "run", "")[1].splitlines()
    assert {"mine", "resnet50-h100"} <= set(told)
    assert "pwned" not in str(told)


@pytest.fixture(scope="module")
def completing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script for bash, and a program ``iobench`` for the path."""
    place = tmp_path_factory.mktemp("completion")
    (place / "iobench.bash").write_text(in_process("--completion", "bash")[1])
    (place / "iobench").write_text(f'#!/bin/sh\nexec {sys.executable} -m iobench "$@"\n')
    (place / "iobench").chmod(0o755)
    return place


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["run", "resnet50-h"], ["resnet50-h100"]),
        (["plan", "--calibr"], []),
        (["report", "x", "--format", "m"], ["markdown", "mlperf"]),
    ],
)
def test_bash_completes(typed: list[str], expected: list[str], completing: Path) -> None:
    ask = (
        'source "$1"; shift; COMP_WORDS=(iobench "$@"); COMP_CWORD=$#; '
        'COMP_LINE="${COMP_WORDS[*]}"; _iobench; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    told = subprocess.run(
        ["bash", "-c", ask, "bash", str(completing / "iobench.bash"), *typed],
        env={**os.environ, "PATH": f"{completing}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert told.stdout.split() == expected


@pytest.mark.parametrize("shell", ["zsh", pytest.param("fish", marks=pytest.mark.nightly)])
def test_the_scripts_of_other_shells(shell: str, tmp_path: Path) -> None:
    text = in_process("--completion", shell)[1]
    assert "calibration" in text
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(text)
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "out"
    file.write_text("before")
    file.chmod(mode)
    assert printed("list codecs -o", file) == ""
    assert "zstd" in file.read_text()
    assert file.stat().st_mode & 0o7777 == mode


def test_the_commands_of_a_demo_can_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    results = "my results; $(touch x)"
    told = in_process("demo", "--samples", 0, "--results", results)[2]  # nothing is generated
    (tmp_path / "demo-data").mkdir()
    (tmp_path / "demo-data" / "manifest.json").write_text("{}")
    told += in_process("demo", "--results", results)[2]
    commands = [line.removeprefix("$ ") for line in told.splitlines() if line.startswith("$ ")]
    assert [shlex.split(command)[1] for command in commands] == ["generate", "run"]
    assert results in shlex.split(commands[1])


def test_the_time_in_which_another_program_waited_is_no_time_of_a_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = importlib.import_module("iobench.cli.main")
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(command.time, "process_time", lambda: 2.0)
    monkeypatch.setattr(command.time, "clock_gettime", lambda clock: now + 3600.0)
    assert command._age_s() == 2.0
