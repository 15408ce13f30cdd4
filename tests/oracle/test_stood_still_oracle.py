"""A rank that is stopped for seconds in the middle of a run: the time counts, and it is named.

In a step, or while it waits for a batch, which takes as long as a step.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.processes import Command, completed, wait_until

STEP_S, STEPS, STOPPED_S = 0.5, 14, 3.0
MADE_UP_S = 2 * STEP_S
"""What the steps after it make up for."""

BATCH = 10
FED = {"accelerator.step_time": f"{STEP_S}s"}
STARVED: dict[str, object] = {
    "accelerator.step_time": "1ms",
    "reader.concurrency": 1,
    "reader.read_ahead": "false",
}


def children(pid: int) -> list[int]:
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize("starved", [False, True], ids=["in-a-step", "in-a-wait"])
@pytest.mark.parametrize(
    "whole",
    [
        pytest.param(False, id="rank"),
        pytest.param(True, id="all-processes", marks=pytest.mark.nightly),
    ],
)
def test_the_time_in_which_a_rank_was_stopped_is_lost(
    tmp_path: Path, whole: bool, starved: bool
) -> None:
    data = tmp_path / "data"
    made = completed("generate", "demo", "--to", data, "--samples", "200", "--set", "format=files")
    assert made.returncode == 0, made.stderr
    settings = {
        **(STARVED if starved else FED),
        "batch_size": BATCH,
        "epochs": 1,
        "max_steps": STEPS,
        "loader.workers": 1,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = ["--calibration", "0s", "--no-knockouts", *words, "--json"]
    url = f"throttled+{data}?latency={STEP_S / BATCH}s" if starved else data
    run = Command(
        ("run", "demo", "--data", url, "--results", tmp_path / "r", "--repeat", "1", *words),
        tmp_path / "run",
        lambda: None,
    )
    wait_until(lambda: any(children(rank) for rank in children(run.pid)), "no worker began")
    time.sleep(6 * STEP_S)  # into the middle of the steps, of which each is nearly all sleep
    (rank,) = [each for each in children(run.pid) if children(each)]
    stopped = [run.pid, rank, *children(rank)] if whole else [rank]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    ended = run.wait()
    doc = json.loads(ended.out)
    (repetition,) = doc["job"]["repetitions"]
    assert repetition["wall_s"] >= STEPS * STEP_S + STOPPED_S - MADE_UP_S
    assert repetition["ranks"][0]["lost_s"] >= STOPPED_S - MADE_UP_S - STEP_S
    rules = {each["rule"] for each in doc["findings"]}
    assert "rank.stood-still" in rules
    assert "emulation.error" not in rules
