"""Where the time of ranks and workers went: the parts add up, whatever happens to the ranks.

The events are those of a simulated clock. Wake-ups are late by random times, and the step after one
makes up for it, as the emulated accelerator and the barrier have it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.judge.figures.metrics import repetition_metrics
from iobench.judge.figures.ranktime import slow_rank, slowest_rank, usual_slow_rank
from iobench.judge.validity import evaluate
from iobench.load.requests import Stats
from iobench.record.host import JobHost
from iobench.record.training import MAX_WORKERS, Epoch, Repetition, WorkerLoad
from iobench.record.verdict import RankTime
from iobench.runner.counters import Pauses, WorkerBook, lost_in_waits, slowest
from iobench.settings.workload import subject_of
from tests.processes import wait_until
from tests.unit.conftest import build_events, build_run

PARTS = ("startup", "busy", "fill", "fetch", "prep", "wait", "copy", "sync", "saves", "rest")
MAX_LATE = 2e-3


def parts_of(time: RankTime) -> float:
    return sum(getattr(time, f"{part}_s") or 0.0 for part in PARTS)


def share(rank: int, ranks: int, steps: int) -> int:
    """Steps of a rank in an epoch: the last one of several has a batch less."""
    return steps - (0 < rank == ranks - 1)


def simulated(
    *, ranks: int, epochs: int, steps: int, sync: str, seed: int, late_s: float, save: bool
) -> list[dict[str, Any]]:
    """Rows of ranks whose waits are random."""
    rng = random.Random(seed)
    rows = []
    for epoch in range(epochs):
        asked, late = [0.0] * ranks, [0.0] * ranks
        for step in range(steps):
            there = [rank for rank in range(ranks) if step < share(rank, ranks, steps)]
            now: dict[int, dict[str, Any]] = {}
            for rank in there:
                row = {"wait": rng.random() * 0.02, "copy": rng.random() * 1e-3, "busy": 0.01}
                row |= {"read": rng.choice([0.0, 0.01]), "prep": rng.choice([0.0, 0.03])}
                end = asked[rank] - late[rank] + row["wait"] + row["copy"] + row["busy"]
                now[rank] = {"rank": rank, "epoch": epoch, "step": step, "start": asked[rank]}
                now[rank] |= {**row, "end": end, "samples": 10}
            opened = max(row["end"] for row in now.values())
            for rank, row in now.items():
                end = row.pop("end")
                if sync == "step":
                    row["sync"], end = opened - end, opened
                row["late"] = late[rank] = rng.random() * late_s
                row["checkpoint"] = 0.005 if save and step % 3 == 2 else 0.0
                asked[rank] = end + late[rank] + row["checkpoint"]
                rows.append(row)
    return rows


def repetition(ranks: int, epochs: int, sync: str | None, startup_s: float = 0.0) -> Repetition:
    times = [Epoch(epoch=each, startups_s=[startup_s] * ranks) for each in range(epochs)]
    return Repetition.model_validate(
        {"seed": 1, "accelerators": ranks, "sync": sync, "epochs": times}
    )


@given(
    ranks=st.integers(1, 4),
    epochs=st.integers(1, 2),
    steps=st.integers(2, 7),
    sync=st.sampled_from(["step", "epoch", "none"]),
    seed=st.integers(0, 10**6),
    late_s=st.sampled_from([0.0, MAX_LATE]),
    save=st.booleans(),
    startup_s=st.sampled_from([0.0, 0.003, 1.0]),
)
def test_the_parts_add_up_to_the_wall_time(startup_s: float, **how: Any) -> None:
    ranks, epochs, sync = how["ranks"], how["epochs"], how["sync"]
    found = repetition_metrics(
        build_events(simulated(**how)), repetition(ranks, epochs, sync, startup_s)
    )
    assert [each.rank for each in found.ranks] == list(range(ranks))
    walls = []
    for each in found.ranks:
        assert parts_of(each) == pytest.approx(each.wall_s, rel=1e-9)
        # What is left is the lateness of the last step of each epoch, and rounding.
        assert each.rest_s <= epochs * how["late_s"] + 1e-6
        walls.append(each.wall_s)
    if sync == "none":
        assert max(walls) <= found.wall_s + 1e-7  # each column is rounded
        assert found.sync_s is None
        assert found.samples_per_s == pytest.approx(
            sum(
                10 * epochs * share(each.rank, ranks, how["steps"]) / (each.wall_s - each.startup_s)
                for each in found.ranks
            )
        )
    else:
        assert walls == pytest.approx([found.wall_s] * ranks)
    again = Repetition.model_validate_json(found.model_dump_json())
    assert again.ranks == found.ranks


@pytest.mark.parametrize(
    ("kind", "anew", "later", "busy"),
    [
        ("user", True, [3.0, 3.0], 1 / 4),
        ("user", False, [0.0, 0.0], 1.0),
        ("iobench", False, [3.0, 3.0], 1.0),
        ("user", True, [], 1 / 4),  # the next epoch would start workers, too
        ("user", False, [], 1.0),
        ("iobench", True, [], 1.0),
    ],
)
def test_what_a_loader_of_the_users_takes_before_each_epoch_counts(
    kind: str, anew: bool, later: list[float], busy: float
) -> None:
    """Workers that stay, and process creation of iobench's own loader, come once or not at all."""
    starts = [3.0, *later]
    rows = [
        {"epoch": epoch, "step": 0, "wait": start, "busy": 1} for epoch, start in enumerate(starts)
    ]
    context = Repetition(
        seed=1,
        accelerators=1,
        epochs=[
            Epoch(epoch=epoch, startup_s=start, startups_s=[start])
            for epoch, start in enumerate(starts)
        ],
    )
    subject = subject_of(kind, anew=anew)
    found = repetition_metrics(build_events(rows), context, subject=subject)
    assert found.accelerator_utilization_sustained == pytest.approx(busy)
    assert [each.startup_s for each in found.epochs] == starts


def test_a_step_with_a_barrier() -> None:
    """Two ranks with batches after 1 s and 3 s, then after 0 s and 2 s; busy 1 s each."""
    rows = [
        {"rank": 0, "step": 0, "wait": 1, "busy": 1, "sync": 2},
        {"rank": 1, "step": 0, "wait": 3, "busy": 1, "read": 1, "prep": 1},
        {"rank": 0, "step": 1, "start": 4, "wait": 0, "busy": 1, "sync": 2},
        {"rank": 1, "step": 1, "start": 4, "wait": 2, "busy": 1, "read": 3, "prep": 1},
    ]
    found = repetition_metrics(build_events(rows), repetition(2, 1, "step", 0.5), round_steps=2)
    first, second = found.ranks
    assert (first.startup_s, first.fill_s, first.sync_s) == pytest.approx((0.5, 0.5, 4.0))
    assert (second.startup_s, second.fill_s, second.sync_s) == pytest.approx((0.5, 2.5, 0.0))
    assert (second.fetch_s, second.prep_s) == pytest.approx((1.5, 0.5))
    assert first.accelerator_utilization == pytest.approx(2 / 6.5)
    assert found.wall_s == pytest.approx(7.0)
    assert found.sync_s == pytest.approx(2.0)
    # The second step of both ranks lasts from 4 s to 7 s, and is busy for 1 s.
    assert found.accelerator_utilization == pytest.approx(1 / 3)
    assert found.worker_time.read == pytest.approx(4 / 26)
    assert found.worker_time.prep == pytest.approx(2 / 26)
    assert found.worker_time.idle == pytest.approx(20 / 26)


def ranks_with(own_s: list[float], wall_s: float = 100.0, sync: str = "step") -> Repetition:
    times = [
        RankTime(rank=rank, wall_s=wall_s, busy_s=0.0, fill_s=0.0, wait_s=own, sync_s=wall_s - own)
        for rank, own in enumerate(own_s)
    ]
    return repetition(max(1, len(own_s)), 1, sync).model_copy(update={"ranks": times})


def test_a_rank_that_stands_out_is_named() -> None:
    slow = slow_rank(ranks_with([70.0, 72.0, 99.0, 71.0]))
    assert (slow.rank, slow.share) == (2, pytest.approx(0.28))
    assert (slow.wait_s, slow.others_wait_s) == (99.0, 71.0)
    assert slowest_rank(ranks_with([70.0, 72.0, 99.0, 71.0])) == 2


@pytest.mark.parametrize("own_s", [[90.0, 92.0, 94.0, 91.0], [60.0, 70.0, 80.0, 95.0], [99.0], []])
def test_no_rank_stands_out(own_s: list[float]) -> None:
    assert slowest_rank(ranks_with(own_s)) is None


def test_the_same_rank_must_be_slow_in_most_repetitions() -> None:
    first, second, even = (
        ranks_with([99.0, 70.0, 70.0]),
        ranks_with([70.0, 90.0, 70.0]),
        ranks_with([90.0, 90.0, 90.0]),
    )
    assert usual_slow_rank([first, second]) is None
    assert usual_slow_rank([first, even]) is None
    found = usual_slow_rank([first, first, second])
    assert found.rank == 0


# Workers of a rank


def batch(worker: int, process: int | None = None, *, ms: int = 10, cpu_ns: int = 5) -> Stats:
    """Batches of 8 samples, of whose time a fifth is reads."""
    return Stats(
        samples=8,
        bytes_read=1000,
        sample_bytes=800,
        started_ns=0,
        read_ns=ms * 200_000,
        prep_ns=ms * 800_000,
        cpu_ns=cpu_ns,
        process=worker if process is None else process,
        worker=worker,
    )


def test_a_worker_that_is_twice_as_slow_is_first() -> None:
    book = WorkerBook()
    book.begin(lasting=True)
    for _ in range(6):
        for worker in (101, 102, 103):
            book.add(batch(worker, ms=20 if worker == 102 else 10))
    first, *others = slowest(book.loads(4))[0]
    assert (first.rank, first.worker, first.batches, first.samples) == (4, 1, 6, 48)
    assert (first.bytes_read, first.sample_bytes) == (6000, 4800)
    assert first.s_per_batch == pytest.approx(0.020)
    assert first.read_s == pytest.approx(0.024)
    assert [each.worker for each in others] == [0, 2]


def test_a_record_keeps_the_slowest_of_many_workers() -> None:
    nothing = {"batches": 1, "samples": 1, "bytes_read": 1, "sample_bytes": 1, "prep_s": 0.0}
    many = [
        WorkerLoad(rank=number % 512, worker=number // 512, read_s=float(number), **nothing)
        for number in range(2048)
    ]
    kept, left_out = slowest(many)
    assert len(kept) == MAX_WORKERS
    assert left_out == 2048 - MAX_WORKERS
    assert [each.read_s for each in kept[:2]] == [2047.0, 2046.0]


# A rank or a host that stood still for seconds: the time counts, and who it was is told

STEP_S, STEPS = 0.5, 40


def rows(still: dict[int, float], ranks: int, at: int) -> list[dict[str, Any]]:
    """Steps of ranks that always have a batch at hand; some stand still after their step ``at``."""
    found = []
    for rank in range(ranks):
        asked = 0.0
        for step in range(STEPS):
            lost = still.get(rank, 0.0) if step == at else 0.0
            row = {"rank": rank, "epoch": 0, "step": step, "start": asked, "wait": 0.0}
            row |= {"busy": STEP_S, "read": 0.1, "prep": 0.1, "samples": 10, "lost": lost}
            found.append(row)
            asked += STEP_S + lost
    return found


@pytest.mark.parametrize("at", [5, STEPS - 1])
def test_the_time_in_which_a_rank_stood_still_counts(at: int) -> None:
    blank = Repetition(seed=1, accelerators=2, sync="none", epochs=[Epoch(epoch=0)])
    found = repetition_metrics(build_events(rows({1: 3.0}, 2, at)), blank)
    assert found.wall_s == pytest.approx(STEPS * STEP_S + 3.0)
    assert [each.lost_s for each in found.ranks] == pytest.approx([0.0, 3.0])
    assert [each.rest_s for each in found.ranks] == pytest.approx([0.0, 0.0], abs=1e-6)


def ranks_of(still: dict[int, float], ranks: int) -> list[dict[str, float]]:
    times = {"wall_s": 20.0, "busy_s": 16.0, "fill_s": 0.0}
    return [{"rank": rank, **times, "lost_s": still.get(rank, 0.0)} for rank in range(ranks)]


def told(still: dict[int, float], hosts: int = 1) -> list[Any]:
    run = build_run(repetition={"ranks": ranks_of(still, 4)}, accelerators=4)
    if hosts > 1:
        each = 4 // hosts
        run.job.hosts = [
            JobHost(name=f"node{at}", first_rank=at * each, ranks=each) for at in range(hosts)
        ]
    return [each for each in evaluate(run) if each.rule == "rank.stood-still"]


def test_who_stood_still_is_named() -> None:
    assert told({}) == []
    assert told({2: 0.1}) == []  # a delay of half a percent is none
    (rank,) = told({2: 3.0})
    assert "rank 2 " in rank.evidence
    (host,) = told({2: 3.0, 3: 2.9}, hosts=2)
    assert "host 1 (node1)" in host.evidence
    assert "rank" not in host.evidence
    (one,) = told({3: 3.0}, hosts=2)
    assert "rank 3 " in one.evidence


S = 1_000_000_000


@pytest.mark.parametrize(
    ("stop", "lost"),
    [
        ((112, 115), [0, 3, 0, 0]),  # within a wait
        ((111.8, 115), [0, 3, 0, 0]),  # the parent looked a little earlier
        ((113, 117), [0, 0, 0, 0]),  # the rank took its batch meanwhile: it did not stand still
        ((117, 119), [0, 0, 0, 0]),  # in a step, where the emulation tells it
        ((112, 112.1), [0, 0, 0, 0]),  # no longer than a wake-up may be late
        ((230, 233), [0, 0, 0, 3]),  # somewhere in steps that share a row
    ],
)
def test_what_is_lost_in_waits(stop: tuple[float, float], lost: list[float]) -> None:
    seconds = {"start_ns": [0, 12, 20, 100], "wait_ns": [2, 3, 1, 8], "lost_ns": [0, 0, 0, 0]}
    events = {name: np.array(values) * S for name, values in seconds.items()}
    events |= {"epoch": np.array([0, 0, 0, 1]), "steps": np.array([1, 1, 1, 40])}
    before = events["wait_ns"].copy()
    lost_in_waits(events, {0: 100 * S, 1: 100 * S}, [(int(stop[0] * S), int(stop[1] * S))])
    assert events["lost_ns"].tolist() == [each * S for each in lost]
    assert (events["lost_ns"] + events["wait_ns"]).tolist() == before.tolist()


def test_a_parent_sees_which_rank_stands_still() -> None:
    pauses = Pauses(2)
    child = subprocess.Popen(["sleep", "1000"])

    def seen() -> bool:
        pauses.waited({0: os.getpid(), 1: child.pid}, time.monotonic_ns(), 0.2)
        return any(ended > began for began, ended in pauses.of(1))

    try:
        child.send_signal(signal.SIGSTOP)
        wait_until(seen, "a process that is stopped was not seen")
        assert pauses.of(0) == []
    finally:
        child.kill()
        child.wait()
    now = time.monotonic_ns()
    pauses.waited({0: os.getpid()}, now - 5 * S, 0.2)  # a wait of 0.2 s that lasted for 5
    ((began, ended),) = pauses.of(0)
    assert (began, ended >= now) == (now - 5 * S, True)
