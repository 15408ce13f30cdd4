"""``iobench checkpoint`` as its users call it: figures that hold together, refusals in one line,
and nothing lost on the way.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import PATIENCE_S, completed, in_process

SMALL = ("llama3-8b", "--scale", "1/4096")  # some 25 MB


def study(
    tmp_path: Path,
    *arguments: str | Path,
    to: str | Path | None = None,
    model: tuple[str, ...] = SMALL,
) -> dict[str, Any]:
    found = completed(
        "checkpoint",
        *model,
        "--to",
        to or tmp_path / "ckpt",
        "--results",
        tmp_path / "results",
        "--json",
        *arguments,
    )
    assert (found.returncode, found.stderr) == (0, ""), found
    return dict(json.loads(found.stdout))


def refused(*arguments: str | Path, code: int = 2) -> str:
    ended, out, err = in_process(*arguments)
    assert (ended, out, err.count("\n")) == (code, "", 1), (ended, out, err)
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("writer", ["stream", "torch", "safetensors", "dcp"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_study_holds_together(tmp_path: Path, writer: str, ranks: int) -> None:
    doc = study(tmp_path, "--writer", writer, "--ranks", str(ranks), "--repeat", "3")
    found = doc["job"]
    assert (doc["status"], doc["job"]["kind"], len(found["saves"]), len(found["restores"])) == (
        "ok",
        "checkpoint",
        3,
        3,
    )
    assert sum(found["bytes_per_rank"]) == found["bytes"]
    for save in found["saves"]:
        assert (
            found["bytes"] <= save["bytes"] < 1.02 * found["bytes"] + 100_000
        )  # and names, shapes, alignment
        assert 0 < save["accepted_s"] <= save["durable_s"] <= save["committed_s"]
        assert save["first_done_s"] <= save["last_done_s"] <= save["blocked_s"] + 1e-3
        assert save["files"] >= ranks
        assert len(save["ranks"]) == ranks
    for restore in found["restores"]:
        assert (restore["verified"], restore["residency_before"]) == (True, 0)
        assert restore["bytes"] >= found["bytes"]
        assert restore["step"] == 3
    assert not (tmp_path / "ckpt").exists()  # the study's own, and away with it
    (run,) = (tmp_path / "results").iterdir()
    again = completed("report", run, "--format", "json")
    assert (again.returncode, json.loads(again.stdout)) == (0, doc)
    text = completed("report", run).stdout
    assert "save every" in text
    assert completed("report", run, "--format", "csv").stdout.count("\n") == 1 + 6
    assert found["meaning"]["sentence"] in completed(
        "report", run, "--format", "markdown"
    ).stdout.replace("**", "")


@pytest.mark.parametrize("writer", ["dcp-async", "dcp-async-process"])
def test_asynchronous_saves_go_on_behind_the_training(tmp_path: Path, writer: str) -> None:
    doc = study(
        tmp_path,
        "--writer",
        writer,
        "--repeat",
        "3",
        "--set",
        "steps=30",
        "--set",
        "step_time=30ms",
    )
    for save in doc["job"]["saves"]:
        assert save["staged_s"] <= save["blocked_s"]
        assert save["durable_s"] > save["blocked_s"] - (save["waited_s"] or 0)
        written = save["durable_s"] - save["staged_s"] - save["waited_s"]
        assert save["persist_s"] == pytest.approx(written)
        assert save["step_overlapped_s"] or save["step_alone_s"]
    assert all(
        restore["verified"] for restore in doc["job"]["restores"]
    )  # the last save was awaited


def test_the_asynchronous_version_by_flag(tmp_path: Path) -> None:
    doc = study(tmp_path, "--writer", "dcp", "--async", "--repeat", "1", "--set", "restores=0")
    assert doc["job"]["writer"] == "dcp-async"
    assert doc["job"]["not_measured"]["restore_bytes_per_s"].startswith("no restore")
    doc = study(tmp_path, "--async", "--repeat", "2", "--set", "steps=3")
    assert doc["job"]["writer"] == "stream-async"
    for save in doc["job"]["saves"]:
        assert 0 < save["staged_s"] <= save["durable_s"]
    assert [restore["verified"] for restore in doc["job"]["restores"]] == [True, True]
    place = ("--to", tmp_path / "x")
    assert "dcp" in refused("checkpoint", *SMALL, *place, "--async", "--writer", "torch-nocrc")


def test_without_fsync_nothing_is_called_durable(tmp_path: Path) -> None:
    doc = study(tmp_path, "--repeat", "2", "--set", "fsync=false", "--writer", "torch")
    assert all(save["durable_s"] is None for save in doc["job"]["saves"])
    assert "durable_s" not in doc["job"]["figures"]
    assert "checkpoint.durable" in {finding["rule"] for finding in doc["findings"]}
    strict = completed(
        "checkpoint",
        *SMALL,
        "--to",
        tmp_path / "c",
        "--repeat",
        "1",
        "--set",
        "fsync=false",
        "--rules",
        "mlperf",
        "--results",
        tmp_path / "r",
    )
    assert strict.returncode == 3


def test_mlperfs_rules_want_ten_and_the_whole_model(tmp_path: Path) -> None:
    found = completed(
        "checkpoint",
        *SMALL,
        "--to",
        tmp_path / "c",
        "--repeat",
        "2",
        "--rules",
        "mlperf",
        "--results",
        tmp_path / "r",
    )
    assert found.returncode == 3
    for rule in ("checkpoint.count", "checkpoint.scaled"):
        assert f"INVALID {rule}" in found.stdout


def test_a_condition_decides_the_exit_code(tmp_path: Path) -> None:
    args = (
        "checkpoint",
        *SMALL,
        "--to",
        tmp_path / "c",
        "--repeat",
        "1",
        "--results",
        tmp_path / "r",
    )
    assert completed(*args, "--fail-on", "blocked_s>1000").returncode == 0
    broken = completed(*args, "--fail-on", "write_bytes_per_s<1e15")
    assert broken.returncode == 4
    assert "write_bytes_per_s is" in broken.stderr
    assert "unknown metric" in refused(
        "checkpoint", *SMALL, "--to", tmp_path / "x", "--fail-on", "blokked_s>1"
    )


def test_what_can_be_refused_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    to = ("--to", tmp_path / "ckpt")
    assert "llama3-8b" in refused("checkpoint", "llama-8b", *to)
    assert "did you mean stream" in refused("checkpoint", *SMALL, *to, "--writer", "steam")
    assert "'scale'" in refused("checkpoint", "resnet50", *to, "--scale", "2")
    assert "'scale'" in refused("checkpoint", "resnet50", *to, "--scale", "x/0")
    assert "--scale 1/" in refused("checkpoint", "llama3-1t", *to, "--ranks", "1")
    assert "step_tim" in refused("checkpoint", *SMALL, *to, "--set", "step_tim=1")
    assert "--stall-budget" in refused("checkpoint", *SMALL, *to, "--stall-budget", "200%")
    assert "--stall-budget" in refused("checkpoint", *SMALL, *to, "--stall-budget", "much")
    assert "--accelerator-price-per-hour" in refused(
        "checkpoint", *SMALL, *to, "--accelerator-price-per-hour", "-1"
    )
    assert not (tmp_path / "ckpt").exists()


def test_a_target_of_others_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in refused("checkpoint", *SMALL, "--to", place, "--results", tmp_path / "r")
    assert os.listdir(place) == ["thesis.txt"]


def test_a_full_disk_leaves_the_checkpoint_before_it(tmp_path: Path) -> None:
    """The Nth write fails, for growing N, until it is one of a later save than the first."""
    place = tmp_path / "ckpt"
    message = ""
    for number in (10, 30, 40, 50, 60):
        url = f"faulty+{place}?fail_write_at={number}"
        found = completed(
            "checkpoint",
            *SMALL,
            "--to",
            url,
            "--repeat",
            "4",
            "--results",
            tmp_path / "r",
            "--set",
            "block_size=1MiB",
        )
        assert found.returncode == 1, found
        assert found.stderr.count("\n") == 1
        if "latest complete checkpoint is step-0000000" in found.stderr:
            message = found.stderr
            break
        completed("clean", place)
    assert "remove them: iobench clean" in message
    run = max((tmp_path / "r").iterdir(), key=lambda path: path.stat().st_mtime)
    kept = json.loads((run / "run.json").read_text())
    assert kept["status"] == "failed"
    assert kept["job"]["saves"]
    assert completed("clean", place).returncode == 0
    assert not place.exists() or os.listdir(place) == []


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM])
def test_what_was_measured_survives_an_interruption(tmp_path: Path, kill: signal.Signals) -> None:
    place = tmp_path / "ckpt"
    command = [
        sys.executable,
        "-m",
        "iobench",
        "checkpoint",
        *SMALL,
        "--to",
        place,
        "--repeat",
        "1000",
        "--results",
        tmp_path / "r",
    ]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not list(place.glob("step-*3/checkpoint.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(kill)
    _, stderr = process.communicate(timeout=240)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert "latest complete checkpoint is step-" in stderr
    (run,) = (tmp_path / "r").iterdir()
    kept = json.loads((run / "run.json").read_text())
    assert (kept["status"], len(kept["job"]["saves"]) >= 2) == ("interrupted", True)


def test_a_rank_that_dies_is_named_and_its_colleagues_end(tmp_path: Path) -> None:
    place = tmp_path / "ckpt"
    command = [
        sys.executable,
        "-m",
        "iobench",
        "checkpoint",
        *SMALL,
        "--to",
        place,
        "--repeat",
        "1000",
        "--ranks",
        "2",
        "--results",
        tmp_path / "r",
    ]
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 240
    while not list(place.glob("step-*2/checkpoint.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    ranks = psutil.Process(process.pid).children()
    ranks[-1].kill()
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, stderr.count("\n")) == (1, 1), stderr
    assert re.search(r"rank [01] died \(killed by SIGKILL\)", stderr)
    _, alive = psutil.wait_procs(ranks, timeout=PATIENCE_S)
    assert not alive


def test_checkpoints_can_be_kept_and_cleaned(tmp_path: Path) -> None:
    place = tmp_path / "ckpt"
    study(tmp_path, "--repeat", "3", "--keep-data", "--set", "restores=1", to=place)
    assert sorted(os.listdir(place)) == [".iobench-checkpoints", "step-00000003"]
    (place / "notes.txt").write_text("mine")
    would = completed("clean", place, "--dry-run")
    assert would.stdout.startswith("would remove")
    assert "notes.txt" in would.stdout
    assert (place / "step-00000003").exists()
    assert completed("clean", place).returncode == 0
    assert os.listdir(place) == ["notes.txt"]


# Planning


def test_a_plan_of_a_checkpoint(tmp_path: Path) -> None:
    found = completed("checkpoint", "plan", "llama3-405b", "--to", tmp_path, "--json")
    plan = json.loads(found.stdout)
    assert (plan["ranks"], plan["files"]) == (512, 512)
    assert plan["bytes"] == plan["model_bytes"] + plan["optimizer_bytes"] == 14 * plan["parameters"]
    assert plan["free_bytes"] > 0
    one, five = plan["budgets"]
    assert one["write_bytes_per_s"] == pytest.approx(
        25 * five["write_bytes_per_s"]
    )  # with the square of the budget
    text = completed(
        *("checkpoint", "plan", "llama3-8b", "--to", tmp_path / "not" / "there"),
        *("--ranks", "2", "--scale", "1/64"),
    ).stdout
    assert "layers 32 -> 2" in text
    assert not (tmp_path / "not").exists()
    assert "'scale'" in refused("checkpoint", "plan", "llama3-8b", "--scale", "3")


# While loading


def test_saves_and_reads_beside_one_another(tmp_path: Path, make_dataset: Any) -> None:
    _, data = make_dataset(samples=400, format="tar", samples_per_shard=50)
    found = completed(
        "run", "demo", "--data", data, "--accelerators", "2", "--repeat", "2",
        "--calibration", "0.2", "--results", tmp_path / "r",
        "--set", "batch_size=10", "--set", "epochs=1",
        "--set", "loader.workers=1", "--set", "reader.decode=false",
        "--checkpoint", "llama3-8b", "--checkpoint-scale", "1/4096", "--checkpoint-every", "8",
        "--checkpoint-to", tmp_path / "ckpt", "--json", "--quiet",
    )  # fmt: skip
    assert (found.returncode, found.stderr) == (0, ""), found
    doc = json.loads(found.stdout)
    steps = 20  # of each rank, so saves after 8 and 16
    saves = doc["job"]["saves"]
    assert len(saves["saves"]) == 2 * 2
    assert (saves["every"] > 0, saves["storage"]["scheme"]) == (True, "file")
    assert len(doc["job"]["saves"]["alone"]) == 3
    assert doc["job"]["quiet"]["checkpoint_s"] is None
    for repetition in doc["job"]["repetitions"]:
        assert repetition["steps"] == 2 * steps
        assert 0 < repetition["checkpoint_s"] < repetition["wall_s"]
        assert (
            repetition["accelerator_utilization_strict"]
            <= repetition["accelerator_utilization_sustained"]
        )
    blocked = sum(save["blocked_s"] for save in doc["job"]["saves"]["saves"])
    # A save's is the slowest rank's, a repetition's the mean of its two ranks.
    assert (
        blocked
        <= 2 * sum(repetition["checkpoint_s"] for repetition in doc["job"]["repetitions"]) + 0.05
    )
    assert not (tmp_path / "ckpt").exists()
    (run,) = (tmp_path / "r").iterdir()
    again = completed("report", run, "--format", "json")
    assert json.loads(again.stdout) == doc
    assert "while loading: 4 saves" in completed("report", run).stdout


def test_saving_while_loading_needs_a_place(tmp_path: Path, make_dataset: Any) -> None:
    _, data = make_dataset()
    assert "--checkpoint-to" in refused("run", "demo", "--data", data, "--checkpoint", "resnet50")
    assert "--checkpoint" in refused("run", "demo", "--data", data, "--checkpoint-to", tmp_path)
