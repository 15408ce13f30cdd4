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

from iobench.checkpoint.catalog import CheckpointRoot
from iobench.checkpoint.leaves import part_of
from iobench.checkpoint.manifest import corrupt
from iobench.checkpoint.stream import Stream
from iobench.record.checkpoint import CheckpointSpec, Training
from iobench.runner.checkpoint_plan import make_study_plan
from iobench.runner.conductor import Script
from iobench.runner.study import StudyJob
from iobench.runner.tasks import checkpoint
from iobench.settings.base import build
from tests import checkpoints
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
from tests.servers.faultproxy import FaultProxy
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


def test_weights_alone_are_saved_and_restored(tmp_path: Path, study: str) -> None:
    """With ZeRO 1 the second rank has no weights of its own, and nothing to save."""
    layout = '--set "parallelism={tensor: 1, pipeline: 1, data: 2, zero: 1}"'
    job = document(f"{study} --weights-only --ranks 2 --repeat 1 --writer dcp {layout}")["job"]
    assert [each["verified"] for each in job["restores"]] == [True]
    assert [size > 0 for size in job["bytes_per_rank"]] == [True, False]
    assert job["full_bytes"] == 16_060_522_496
    (run,) = (tmp_path / "results").iterdir()
    found = document(f"report {run} --rules mlperf", code=3)
    assert "checkpoint.scaled" in {
        each["rule"] for each in found["findings"] if each["level"] == "invalid"
    }


def test_a_study_holds_together(tmp_path: Path, study: str) -> None:
    doc = document(f"{study} --writer safetensors --ranks 2 --repeat 2")
    job = doc["job"]
    assert (doc["status"], job["kind"], len(job["saves"])) == ("ok", "checkpoint", 2)
    assert sum(job["bytes_per_rank"]) == job["bytes"]
    for save in job["saves"]:
        # The state, and names, shapes, alignment.
        assert job["bytes"] <= save["bytes"] < 1.02 * job["bytes"] + 100_000
        assert 0 < save["accepted_s"] <= save["durable_s"] <= save["committed_s"]
        assert save["first_done_s"] <= save["last_done_s"] <= save["blocked_s"] + 1e-3
        assert save["files"] >= 2
        assert len(save["ranks"]) == 2
    assert len(job["restores"]) == 2
    for restore in job["restores"]:
        assert (restore["verified"], restore["residency_before"]) == (True, 0)
        assert (restore["bytes"] >= job["bytes"], restore["step"]) == (True, 2)
    assert not (tmp_path / "ckpt").exists()  # the study's own, and away with it
    (run,) = (tmp_path / "results").iterdir()
    assert document(f"report {run}") == doc
    assert printed(f"report {run} --format csv").count("\n") == 1 + 4


@pytest.mark.parametrize(
    ("writer", "ranks", "how"),
    [
        pytest.param("stream", 2, "", marks=pytest.mark.nightly),
        ("safetensors", 1, "--weights-only --async --set steps=2"),
    ],
)
def test_saves_of_what_changes_are_restored_over_the_whole_state(
    tmp_path: Path, study: str, writer: str, ranks: int, how: str
) -> None:
    """The whole state once, then a tenth of it: in the record, on the storage, and in a state that
    is restored from what the study has left.
    """
    doc = document(
        f"{study} --changed 10% --writer {writer} --ranks {ranks} --repeat 3 --keep-data {how}"
    )
    job = doc["job"]
    assert 0.05 * job["state_bytes"] < job["bytes"] <= 0.1 * job["state_bytes"]
    assert (job["base"]["step"], [save["step"] for save in job["saves"]]) == (1, [2, 3, 4])
    for save, size in ((job["base"], "state_bytes"), *((save, "bytes") for save in job["saves"])):
        assert job[size] <= save["bytes"] < 1.02 * job[size] + 100_000  # names, shapes, alignment
    both = job["base"]["bytes"] + job["saves"][-1]["bytes"]
    assert len(job["restores"]) == 3
    for restore in job["restores"]:
        assert (restore["verified"], restore["step"], restore["residency_before"]) == (True, 4, 0)
        assert restore["bytes"] <= both < 1.02 * restore["bytes"] + 100_000
    root = CheckpointRoot.open(str(tmp_path / "ckpt"))
    assert [target.number for target in root.complete()] == [1, 4]
    for target, save in zip(root.complete(), (job["base"], job["saves"][-1]), strict=True):
        assert target.manifest().bytes == save["bytes"]
        assert sum(root.storage.size(key) for key in target.data_keys()) == save["bytes"]
    (run,) = (tmp_path / "results").iterdir()
    assert document(f"report {run}") == doc
    if ranks == 1:
        assert_newest_state(root, job["spec"], 4)


def assert_newest_state(root: CheckpointRoot, asked: Mapping[str, Any], advanced_to: int) -> None:
    """What is restored from the newest checkpoint is the state that a training of one rank had.

    ``advanced_to``: the step to which what changes was advanced.
    """
    given = {key: value for key, value in asked.items() if value is not None}
    plan = make_study_plan(build(CheckpointSpec, given, where="test"), root.url, Training())
    wanted, found = plan.builder(0)(), plan.builder(0)()
    checkpoint.advance(part_of(wanted, plan.saved[0]), advanced_to)
    wanted["step"] = advanced_to
    checkpoint.wipe(found)
    latest = root.latest()
    assert latest is not None
    for target, whole in zip(latest.sources(), (True, False), strict=True):
        part = found if whole else part_of(found, plan.saved[0])
        checkpoints.restore(asked["writer"], target, part)
        found["step"] = part["step"]
    assert checkpoints.same(found, wanted)


def test_a_run_saves_what_changes_based_on_the_whole_state_before_it(
    tmp_path: Path, make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """12 steps in each of two repetitions. What the run has saved is looked at before it goes."""
    root, left = CheckpointRoot.open(str(tmp_path / "ckpt")), list[int]()
    asked = {"model": "llama3-8b", "writer": "stream", "scale": "1/8192", "changed": "10%"}

    def looked(self: CheckpointRoot, *, above: int) -> None:
        left.extend(target.number for target in self.complete() if target.sources())
        assert_newest_state(root, asked, left[-1])
        leave(self, above=above)

    leave = CheckpointRoot.leave
    monkeypatch.setattr(CheckpointRoot, "leave", looked)
    saving = "--checkpoint llama3-8b --checkpoint-scale 1/8192 --checkpoint-changed 10%"
    small = "--set batch_size=5 --set epochs=1 --set loader.workers=1 --no-ablations"
    doc = document(
        f"run demo --data {make_dataset()[1]} --results {tmp_path}/results --calibration 0 {small}"
        f" --repeat 2 {saving} --checkpoint-every 4 --checkpoint-to {root.url}"
    )
    saves = doc["job"]["saves"]
    assert saves["base"]["bytes"] >= saves["state_bytes"]
    assert doc["job"]["quiet"]["steps"] == 12
    assert [save["step"] for save in saves["alone"]] == [2, 3, 4]
    assert len(saves["saves"]) == 6
    for save in saves["saves"] + saves["alone"]:
        assert saves["bytes"] <= save["bytes"] < 0.2 * saves["base"]["bytes"]
    assert left[0] == saves["base"]["step"] == 1
    assert left[-1] == saves["saves"][-1]["step"]
    assert not (tmp_path / "ckpt").exists()


def test_a_study_that_is_killed_leaves_what_a_restore_needs(tmp_path: Path, study: str) -> None:
    """Between two saves, or within one."""
    root = CheckpointRoot.open(str(tmp_path / "ckpt"))

    def saved() -> bool:
        return any((tmp_path / "ckpt").glob("step-*5/checkpoint.json"))

    with running(f"{study} --changed 10% --repeat 1000 --quiet", folder=tmp_path) as process:
        wait_until(saved, "no fifth save")
        ranks = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
    assert not psutil.wait_procs(ranks, timeout=PATIENCE_S)[1]
    complete = root.complete()
    assert complete[0].number == 1
    assert complete[-1].number >= 5
    assert complete[-1].sources() == [complete[0], complete[-1]]


@pytest.mark.parametrize(
    "writer",
    [
        "stream --async",
        *(
            pytest.param(each, marks=pytest.mark.nightly)
            for each in ("dcp-async", "dcp-async-process")
        ),
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


@pytest.mark.parametrize("end", ["SIGTERM", "a rank dies"])
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


# What a checkpoint's specification may say is heeded


@pytest.fixture
def small(tmp_path: Path) -> str:
    place = f"--to {tmp_path}/ckpt --results {tmp_path}/results"
    return f"checkpoint resnet50 {place} --scale 1/2048 --repeat 2"


@pytest.mark.parametrize("writer", ["stream", pytest.param("dcp", marks=pytest.mark.nightly)])
def test_restores_are_compared_where_that_is_asked_for(
    small: str, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks are forked, so what is replaced here is replaced there."""

    def differs(*_: Any) -> None:
        raise corrupt("the state", "it is not what was saved")

    for module in ("saving", "dcp_restore"):
        monkeypatch.setattr(f"iobench.checkpoint.{module}.verify_state", differs)
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


def test_a_budget_limits_saves_and_restores(small: str) -> None:
    """A save is always made."""
    job = document(f"{small} --budget 1ms")["job"]
    assert (len(job["saves"]), job["spec"]["count"], job["budget_s"]) == (1, 2, 0.001)
    assert len(job["restores"]) == 1 or job["no_restores"]


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


@pytest.mark.usefixtures("s3_environment")
def test_a_server_that_asks_to_slow_down_is_told(rclone_s3: S3Server, tmp_path: Path) -> None:
    """Its pauses are in the times of saves and restores."""
    with FaultProxy(rclone_s3.port, slow_down_every=3) as proxy:
        url = rclone_s3.url(retries=50).replace(str(rclone_s3.port), str(proxy.port))
        doc = document(
            *("checkpoint resnet50 --scale 1/2048 -n 2 --to", url),
            *("--set", "concurrency=1", "--results", tmp_path / "results"),
        )
    for done in (doc["job"]["saves"], doc["job"]["restores"]):
        again = [each["retries"] for each in done]
        assert again == [each["throttled"] for each in done]
        assert sum(again) > 0
    rules = [finding["rule"] for finding in doc["findings"]]
    assert "storage.throttled" in rules
    assert "storage.retries" not in rules


def test_a_base_that_was_damaged_is_named(
    study: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Somebody else changes a byte of it between the saves and the restores."""

    def damaged(job: StudyJob) -> Script:
        file = max(
            (tmp_path / "ckpt/step-00000001").iterdir(), key=lambda each: each.stat().st_size
        )
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        yield from restored(job)

    restored = StudyJob.restore
    monkeypatch.setattr(StudyJob, "restore", damaged)
    line = refused(f"{study} --repeat 1 --changed 10% --writer dcp", code=1)
    assert "step-00000001" in line
    assert "corrupt" in line
