"""What a checkpoint's specification may say is heeded, or refused."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.checkpoint import dcp, saving
from iobench.checkpoint.stream import Stream
from iobench.cli.main import main
from iobench.runner.tasks import checkpoint


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    place = ["--to", str(tmp_path / "ckpt"), "--results", str(tmp_path / "results")]
    return ["checkpoint", "resnet50", *place, "--scale", "1/2048", "--repeat", "2", "--json"]


@pytest.mark.parametrize("writer", ["stream", "dcp"])
@pytest.mark.parametrize("asked", [True, False])
def test_restores_are_compared_where_that_is_asked_for(
    words: list[str],
    writer: str,
    asked: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ranks are forked, so what is replaced here is replaced there."""

    def differs(*_: Any) -> None:
        raise saving.corrupt("the state", "it is not what was saved")

    monkeypatch.setattr(saving, "verify_state", differs)
    monkeypatch.setattr(dcp, "verify_state", differs)
    code = main([*words, "--writer", writer, "--set", f"verify={str(asked).lower()}"])
    told = capsys.readouterr()
    if asked:
        assert code == 1
        assert "not what was saved" in told.err
    else:
        assert code == 0
        restores = json.loads(told.out)["job"]["restores"]
        assert [restore["verified"] for restore in restores] == [None, None]


@pytest.mark.parametrize("option", ["concurrency=2", "block_size=1MiB"])
def test_options_of_one_writer_are_refused_for_others(
    words: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--writer", "torch", "--set", option]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert option.partition("=")[0] in told.err
    assert main([*words, "--writer", "stream", "--set", option]) == 0


def test_no_rank_reads_before_all_are_ready_to_restore(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One rank wipes its tensors longer than the other, which is no part of a restore."""
    log = tmp_path / "log"

    def write(what: str) -> None:
        with log.open("a") as file:
            file.write(f"{time.monotonic()} {what}\n")

    def slow_wipe(state: dict[str, Any]) -> None:
        wipe(state)
        if "step" in state:  # the state itself, and no part of it
            time.sleep(0.2 * (os.getpid() % 2))  # mostly, the pids of two ranks are neighbours
            write("wiped")

    def logged_read(*given: Any) -> None:
        write("reads")
        read(*given)

    wipe, read = checkpoint.wipe, Stream.read
    monkeypatch.setattr(checkpoint, "wipe", slow_wipe)
    monkeypatch.setattr(Stream, "read", logged_read)
    assert main([*words, "--ranks", "2"]) == 0
    restores = json.loads(capsys.readouterr().out)["job"]["restores"]
    lines = [line.split() for line in log.read_text().splitlines()]
    events = [what for _, what in sorted(lines, key=lambda line: float(line[0]))]
    assert events == ["wiped"] * 2 + ["reads"] * 2 + ["wiped"] * 2 + ["reads"] * 2
    for restore in restores:
        assert len(restore["rank_s"]) == len(restore["rank_late_s"]) == 2
        assert restore["wall_s"] == max(restore["rank_s"])
        assert all(late >= 0 for late in restore["rank_late_s"])


def test_a_rank_that_cannot_restore_keeps_no_other_waiting(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other rank waits for the common start of the restore, which does not come."""

    def inspect(writer: Stream, state: dict[str, Any], target: Any) -> None:
        if writer.job.rank == 1:
            raise saving.corrupt("rank 1's file", "it was damaged")

    monkeypatch.setattr(Stream, "inspect", inspect)
    assert main([*words, "--ranks", "2"]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
