"""A reader that leaves (``| head -1``) changes no exit code and keeps no verb from its work."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs/calibrated"
LIMIT_S = 240

INVALID = ("--rules", "mlperf")
CROSSED = ("--fail-on", "samples_per_s>0")


def closed_pipe() -> int:
    """The end of a pipe for writing, when nobody reads from the other end any more."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "iobench", *map(str, arguments)]


def ended(*arguments: object, errors_too: bool = False) -> tuple[int, bytes]:
    """(exit code, standard error) of a command whose standard output nobody reads."""
    pipe = closed_pipe()
    try:
        told = subprocess.run(
            command(*arguments),
            stdout=pipe,
            stderr=pipe if errors_too else subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
    finally:
        os.close(pipe)
    return told.returncode, told.stderr or b""


@pytest.mark.parametrize("kind", ["text", "json"])
def test_a_report_of_an_invalid_run_ends_as_it_does_otherwise(kind: str) -> None:
    assert ended("report", RUN, "--format", kind, *INVALID) == (3, b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_crossed_threshold_is_still_told(
    unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    code, errors = ended("report", RUN, *CROSSED)
    assert (code, errors.count(b"\n")) == (4, 1)


def test_nobody_reads_the_errors_either() -> None:
    assert ended("report", RUN, *CROSSED, errors_too=True)[0] == 4
    assert ended("report", RUN / "nothing", errors_too=True)[0] == 1
    assert ended("no-such-verb", errors_too=True)[0] == 2


@pytest.mark.parametrize("errors", ["pipe", "full disk"])
def test_errors_that_nobody_reads_leave_the_document_whole(errors: str) -> None:
    with open("/dev/full", "wb") as full:
        stream = full.fileno() if errors == "full disk" else closed_pipe()
        told = subprocess.run(
            command("report", RUN, "--json", *CROSSED),
            stdout=subprocess.PIPE,
            stderr=stream,
            timeout=LIMIT_S,
            check=False,
        )
    if errors == "pipe":
        os.close(stream)
    assert told.returncode == 4
    assert json.loads(told.stdout)["run_id"]


def test_a_run_is_recorded_and_invalid_all_the_same(make_dataset: Any, tmp_path: Path) -> None:
    """Nobody reads the verb's output or its errors, and it works on to its end."""
    _, data = make_dataset()
    words = ("run", "demo", "--data", data, "--repeat", 1, "--calibration", 0)
    quick = ("--set", "loader.workers=0", "--set", "batch_size=10", "--set", "reader.decode=false")
    more = ("--set", "reader.crop=null", "--set", "epochs=1", "--results", tmp_path / "r")
    code, _ = ended(*words, *quick, *more, *INVALID, errors_too=True)
    assert code == 3
    (record,) = (tmp_path / "r").rglob("run.json")
    document = json.loads(record.read_text())
    assert (document["status"], document["validity"]) == ("ok", "invalid")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_streams_that_were_never_open(closed: str, make_dataset: Any) -> None:
    """No file that is opened later gets the number of standard output or of standard error."""
    _, data = make_dataset()
    words = " ".join(f"'{word}'" for word in command("verify", data, "--workers", "1"))
    told = subprocess.run(
        ["bash", "-c", f"{words} {closed}"], capture_output=True, timeout=LIMIT_S, check=False
    )
    assert told.returncode == 0
    assert told.stderr == b""
