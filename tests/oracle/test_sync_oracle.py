"""Oracles of ranks in step: one slow rank is named, and the others wait for it as long as planted;
batches that jitter cost with a barrier what the ranks' own step times say.

The storage delays single ranks, or each read by a random time. Steps and latencies are tens of
milliseconds, so that a loaded machine of 2 cores adds little to them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from iobench.host.timeline import read_events
from iobench.judge.figures.events import rank_epochs, select
from iobench.judge.figures.ranktime import slowest_rank
from iobench.record.training import Repetition
from tests.oracle.places import Place, place, wrapped
from tests.oracle.plants import findings, planted, ran
from tests.processes import Command, completed, wait_until

__all__ = ["place"]

RANKS, STEPS = 4, 60

Measure = Callable[..., tuple[Repetition, set[str], npt.NDArray[np.float64]]]


@pytest.fixture
def measure(tmp_path: Path, place: Place) -> Iterator[Measure]:
    """``measure(scheme, sync="step", **options)``: run RANKS ranks for STEPS steps of one sample
    each, over the storage in this wrapper.

    Returns the repetition, the rules of the findings, and the ranks' own step times in seconds,
    without waits for other ranks: [RANKS, STEPS].
    """
    url = place.dataset(samples=RANKS * STEPS, sample_size={"mean": 20_000}, format="files")

    def go(
        scheme: str, sync: str = "step", **options: object
    ) -> tuple[Repetition, set[str], npt.NDArray[np.float64]]:
        doc, folder = ran(
            tmp_path / sync,
            wrapped(scheme, url, **options),
            accelerators=RANKS,
            seed=5,
            batch_size=1,
            accelerator={"step_time": "40ms", "sync": sync},
            reader={"concurrency": 1},
            loader={"workers": 1, "prefetch_factor": 1},
        )
        events = select(read_events(folder / "events.parquet"), "measure", 0)
        own = [
            (part.rows["wait_ns"] + part.rows["copy_ns"] + part.rows["busy_ns"]) / 1e9
            for part in rank_epochs(events)
        ]
        (repetition,) = doc.job.repetitions
        return repetition, findings(doc), np.array(own)

    with planted():
        yield go


SLOW = {"rank": 2, "latency": "100ms"}
JITTER = {"latency": "15ms", "latency_p99": "200ms"}


def test_one_slow_rank_of_four_is_named(measure: Measure) -> None:
    """One worker reads a batch in 100 ms, so a step of 40 ms waits 60 ms for it."""
    found, rules, _ = measure("uneven", **SLOW)
    assert slowest_rank(found) == 2
    assert "ranks.uneven" in rules
    others = [each for each in found.ranks if each.rank != 2]
    planted = (STEPS - 1) * 0.06 + 0.1
    for each in others:
        assert each.sync_s == pytest.approx(planted, rel=0.1)
    slow = found.ranks[2]
    assert slow.sync_s < 0.1 * planted
    assert (slow.fetch_s or 0.0) + slow.fill_s == pytest.approx(planted, rel=0.1)
    assert found.accelerator_utilization == pytest.approx(0.4, rel=0.1)
    assert found.sync_s == pytest.approx(0.75 * planted, rel=0.1)


def test_independent_ranks_do_not_wait_for_the_slow_one(measure: Measure) -> None:
    """Three ranks are busy all the time, and one for 40 ms of 100 ms."""
    found, rules, _ = measure("uneven", "none", **SLOW)
    assert "ranks.uneven" not in rules
    assert found.accelerator_utilization == pytest.approx((3 + 0.4) / 4, rel=0.1)
    assert found.samples_per_s == pytest.approx(3 * 25 + 10, rel=0.1)


def test_jitter_costs_what_the_slowest_of_each_step_takes(measure: Measure) -> None:
    """Batches of 15 ms in the median and 200 ms in one of a hundred, for steps of 40 ms."""
    synced, _, own_s = measure("throttled", **JITTER)
    free, _, _ = measure("throttled", "none", **JITTER)
    assert own_s.shape == (RANKS, STEPS)
    # A barrier after each step: as long as its slowest rank. One at the end: the slowest rank.
    synced_s, free_s = own_s[:, 1:].max(axis=0).sum(), own_s[:, 1:].sum(axis=1).max()
    assert synced_s > 1.05 * free_s
    assert free.accelerator_utilization is not None
    said = 0.04 * (STEPS - 1) / synced_s
    assert synced.accelerator_utilization == pytest.approx(said, rel=0.03)
    assert synced.accelerator_utilization < 0.95 * free.accelerator_utilization


# A rank that is stopped for seconds


STEP_S, MANY, STOPPED_S = 0.5, 14, 3.0
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
        "max_steps": MANY,
        "loader.workers": 1,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words = ["--calibration", "0s", "--no-ablations", *words, "--json"]
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
    assert repetition["wall_s"] >= MANY * STEP_S + STOPPED_S - MADE_UP_S
    assert repetition["ranks"][0]["lost_s"] >= STOPPED_S - MADE_UP_S - STEP_S
    rules = {each["rule"] for each in doc["findings"]}
    assert "rank.stood-still" in rules
    assert "emulation.error" not in rules
