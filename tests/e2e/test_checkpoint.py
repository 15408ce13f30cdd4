"""``iobench checkpoint`` as its users call it: figures that hold together, options that are heeded,
and nothing lost on the way.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.checkpoint import dcp_restore, saving
from iobench.checkpoint.manifest import corrupt
from iobench.checkpoint.stream import Stream
from iobench.runner.tasks import checkpoint
from tests.processes import (
    PATIENCE_S,
    completed,
    document,
    in_process,
    printed,
    refused,
    running,
    wait_until,
)
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]


@pytest.fixture
def study(tmp_path: Path) -> str:
    """The command of a study with some 25 MB, and its places: ``ckpt`` and ``results``."""
    place = f"--to {tmp_path}/ckpt --results {tmp_path}/results"
    return f"checkpoint llama3-8b --scale 1/4096 {place}"


def kept(tmp_path: Path) -> dict[str, Any]:
    """The record of the only study."""
    (run,) = (tmp_path / "results").glob("*/run.json")
    return dict(json.loads(run.read_text()))


@pytest.mark.parametrize(
    ("writer", "zero"), [("stream", 3), ("stream", 1), ("torch", 1), ("safetensors", 1), ("dcp", 1)]
)
def test_weights_alone_are_saved_and_restored(study: str, writer: str, zero: int) -> None:
    """With ZeRO 1 the second rank has no weights of its own, and nothing to save."""
    layout = f'--set "parallelism={{tensor: 1, pipeline: 1, data: 2, zero: {zero}}}"'
    alone = f"{study} --weights-only --ranks 2 --repeat 1 --writer {writer} {layout}"
    doc = document(alone)
    job = doc["job"]
    assert [each["verified"] for each in job["restores"]] == [True]
    assert [size > 0 for size in job["bytes_per_rank"]] == [True, zero == 3]
    assert job["full_bytes"] == 16_060_522_496
    found = document(f"{alone} --rules mlperf", code=3)
    assert "checkpoint.scaled" in {
        each["rule"] for each in found["findings"] if each["level"] == "invalid"
    }


@pytest.mark.parametrize(
    ("writer", "ranks"), [("stream", 2), ("torch", 1), ("safetensors", 2), ("dcp", 2)]
)
def test_a_study_holds_together(tmp_path: Path, study: str, writer: str, ranks: int) -> None:
    doc = document(f"{study} --writer {writer} --ranks {ranks} --repeat 2")
    job = doc["job"]
    assert (doc["status"], job["kind"], len(job["saves"])) == ("ok", "checkpoint", 2)
    assert sum(job["bytes_per_rank"]) == job["bytes"]
    for save in job["saves"]:
        # The state, and names, shapes, alignment.
        assert job["bytes"] <= save["bytes"] < 1.02 * job["bytes"] + 100_000
        assert 0 < save["accepted_s"] <= save["durable_s"] <= save["committed_s"]
        assert save["first_done_s"] <= save["last_done_s"] <= save["blocked_s"] + 1e-3
        assert save["files"] >= ranks
        assert len(save["ranks"]) == ranks
    assert len(job["restores"]) == 2
    for restore in job["restores"]:
        assert (restore["verified"], restore["residency_before"]) == (True, 0)
        assert (restore["bytes"] >= job["bytes"], restore["step"]) == (True, 2)
    assert not (tmp_path / "ckpt").exists()  # the study's own, and away with it
    (run,) = (tmp_path / "results").iterdir()
    assert document(f"report {run}") == doc
    assert printed(f"report {run} --format csv").count("\n") == 1 + 4


@pytest.mark.parametrize(
    "writer",
    [
        *("dcp-async", "stream --async"),
        pytest.param("dcp-async-process", marks=pytest.mark.nightly),
    ],
)
def test_asynchronous_saves_go_on_behind_the_training(study: str, writer: str) -> None:
    training = "--set steps=30 --set step_time=30ms"
    job = document(f"{study} --writer {writer} --repeat 2 {training}")["job"]
    assert job["writer"].startswith(writer.replace(" --", "-"))
    for save in job["saves"]:
        assert 0 < save["staged_s"] <= min(save["blocked_s"], save["durable_s"])
        assert save["durable_s"] > save["blocked_s"] - (save["waited_s"] or 0)
        written = save["durable_s"] - save["staged_s"] - (save["waited_s"] or 0)
        assert save["persist_s"] == pytest.approx(written)
        assert save["step_overlapped_s"] or save["step_alone_s"]
    # The last save was awaited.
    assert [restore["verified"] for restore in job["restores"]] == [True, True]


def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path: Path, study: str) -> None:
    """The Nth write fails, for growing N, until it is one of a later save than the first."""
    place = tmp_path / "ckpt"
    message = ""
    for number in (10, 30, 40, 50, 60):
        bad = f"--to faulty+{place}?fail_write_at={number} --set block_size=1MiB"
        message = refused(f"{study} {bad} --repeat 4", code=1)
        if "latest complete checkpoint is step-0000000" in message:
            break
        completed("clean", place)
    assert "remove them: iobench clean" in message
    run = max((tmp_path / "results").iterdir(), key=lambda path: path.stat().st_mtime)
    found = json.loads((run / "run.json").read_text())
    assert found["status"] == "failed"
    assert found["job"]["saves"]
    assert completed("clean", place).returncode == 0
    assert not place.exists() or os.listdir(place) == []


@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "a rank dies"])
def test_what_was_measured_survives_the_end_of_a_study(
    tmp_path: Path, study: str, end: str
) -> None:
    def saved() -> bool:
        return any((tmp_path / "ckpt").glob("step-*3/checkpoint.json"))

    with running(f"{study} --repeat 1000 --ranks 2 --quiet", folder=tmp_path) as process:
        wait_until(saved, "no third save")
        ranks = psutil.Process(process.pid).children()
        if end == "a rank dies":
            ranks[-1].kill()
        else:
            process.signal(signal.Signals[end])
        ended = process.wait()
    assert not psutil.wait_procs(ranks, timeout=PATIENCE_S)[1]
    assert "Traceback" not in ended.err
    assert len(kept(tmp_path)["job"]["saves"]) >= 2
    if end == "a rank dies":
        assert (ended.code, ended.err.count("\n")) == (1, 1), ended
        assert re.search(r"rank [01] died \(killed by SIGKILL\)", ended.err)
    else:
        assert ended.code == 130, ended
        assert "latest complete checkpoint is step-" in ended.err
        assert kept(tmp_path)["status"] == "interrupted"


def test_checkpoints_can_be_kept_and_cleaned(tmp_path: Path, study: str) -> None:
    place = tmp_path / "ckpt"
    printed(f"{study} --repeat 2 --keep-data --set restores=1")
    assert sorted(os.listdir(place)) == [".iobench-checkpoints", "step-00000002"]
    (place / "notes.txt").write_text("mine")
    assert "notes.txt" in printed(f"clean {place} --dry-run")
    assert (place / "step-00000002").exists()
    printed(f"clean {place}")
    assert os.listdir(place) == ["notes.txt"]


# What a checkpoint's specification may say is heeded


@pytest.fixture
def small(tmp_path: Path) -> str:
    place = f"--to {tmp_path}/ckpt --results {tmp_path}/results"
    return f"checkpoint resnet50 {place} --scale 1/2048 --repeat 2"


@pytest.mark.parametrize("writer", ["stream", "dcp"])
def test_restores_are_compared_where_that_is_asked_for(
    small: str, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are forked, so what is replaced here is replaced there."""

    def differs(*_: Any) -> None:
        raise corrupt("the state", "it is not what was saved")

    monkeypatch.setattr(saving, "verify_state", differs)
    monkeypatch.setattr(dcp_restore, "verify_state", differs)
    unseen = document(f"{small} --writer {writer} --set verify=false")
    assert [restore["verified"] for restore in unseen["job"]["restores"]] == [None, None]
    line = refused(f"{small} --writer {writer} --set verify=true", code=1)
    assert "not what was saved" in line


def test_no_rank_reads_before_all_are_ready_to_restore(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    restores = document(f"{small} --ranks 2")["job"]["restores"]
    lines = [line.split() for line in log.read_text().splitlines()]
    events = [what for _, what in sorted(lines, key=lambda line: float(line[0]))]
    assert events == ["wiped"] * 2 + ["reads"] * 2 + ["wiped"] * 2 + ["reads"] * 2
    for restore in restores:
        assert len(restore["rank_s"]) == len(restore["rank_late_s"]) == 2
        assert restore["wall_s"] == max(restore["rank_s"])
        assert all(late >= 0 for late in restore["rank_late_s"])


def test_a_rank_that_cannot_restore_keeps_no_other_waiting(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank waits for the common start of the restore, which does not come."""

    def inspect(writer: Stream, state: dict[str, Any], target: Any) -> None:
        if writer.job.rank == 1:
            raise corrupt("rank 1's file", "it was damaged")

    monkeypatch.setattr(Stream, "inspect", inspect)
    refused(f"{small} --ranks 2", code=1)


@pytest.mark.parametrize(("budget", "made"), [("1ms", 1), ("1h", 2)])
def test_a_budget_limits_saves_and_restores(small: str, budget: str, made: int) -> None:
    """One of each is always made, and never more than were asked for."""
    job = document(f"{small} --budget {budget}")["job"]
    assert (len(job["saves"]), len(job["restores"]), job["spec"]["count"]) == (made, made, 2)
    assert job["budget_s"] == (0.001 if budget == "1ms" else 3600)


def test_a_target_without_a_lock_is_said_in_a_warning_and_in_the_record(
    tmp_path: Path,
    rclone_s3: S3Server,
    s3_environment: Mapping[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    code, out, err = in_process(
        *("checkpoint", "resnet50", "--to", rclone_s3.url(), "--scale", "1/2048", "-n", "1"),
        *("--results", tmp_path / "results", "--quiet", "--json"),
    )
    assert code == 0, err
    assert caplog.text.count("not locked") == 1
    assert "storage.unlocked" in {finding["rule"] for finding in json.loads(out)["findings"]}
