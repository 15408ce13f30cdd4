"""The barrier of ranks in step: it opens when all are there, and nobody waits for ever."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest

from iobench.runner.barrier import StepBarrier
from iobench.storage.shared import SharedNumber
from tests.processes import PATIENCE_S

fork = multiprocessing.get_context("fork")


def flag() -> Any:
    """As that of a link: nobody was told to stop."""
    return fork.RawValue(ctypes.c_bool, False)


@pytest.fixture
def start() -> Iterator[Callable[..., BaseProcess]]:
    """Start a process that is ended with the test."""
    started: list[BaseProcess] = []

    def go(target: Callable[..., None], *args: object) -> BaseProcess:
        process = fork.Process(target=target, args=args, daemon=True)
        process.start()
        started.append(process)
        return process

    yield go
    for process in started:
        process.kill()
        process.join()


def ended_well(processes: list[BaseProcess]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        assert process.exitcode == 0


def test_it_opens_at_the_latest_end_for_all(start: Any) -> None:
    """Four ranks, 200 steps: all of them get the same opening, which is the latest end."""
    barrier, stopped, ranks, steps = StepBarrier(), flag(), 4, 200
    ends = [[random.Random(rank).randrange(10**9) for _ in range(steps)] for rank in range(ranks)]
    found = fork.RawArray("q", ranks * steps)
    numbers = fork.RawArray("q", ranks * steps)
    for _ in range(ranks):
        barrier.join(0, stopped)

    def rank(number: int) -> None:
        for step in range(steps):
            opening = barrier.wait(0, ends[number][step], stopped)
            assert opening is not None
            found[number * steps + step], numbers[number * steps + step] = opening
        barrier.leave(0, stopped)

    ended_well([start(rank, number) for number in range(ranks)])
    latest = [max(end[step] for end in ends) for step in range(steps)]
    assert list(found) == latest * ranks
    assert list(numbers) == list(range(1, steps + 1)) * ranks


def test_nobody_waits_for_a_rank_that_has_left(start: Any) -> None:
    """Shares of 5, 6 and 6 steps in each of three epochs. A rank joins the next epoch at once."""
    barrier, stopped, shares, epochs = StepBarrier(), flag(), (5, 6, 6), 3
    meet = fork.Barrier(len(shares))

    def rank(share: int) -> None:
        for epoch in range(epochs):
            barrier.join(epoch, stopped)
            meet.wait(PATIENCE_S)  # as the parent has it: all have joined before anybody steps
            for step in range(share):
                opening = barrier.wait(epoch, step, stopped)
                assert opening.at_ns == step
                assert opening.number == epoch * max(shares) + step + 1
            barrier.leave(epoch, stopped)

    ended_well([start(rank, share) for share in shares])


@pytest.mark.parametrize("held", [True, False])
def test_a_rank_that_was_killed_holds_up_nobody_after_the_stop(start: Any, held: bool) -> None:
    """Also if it was killed while it held the lock."""
    barrier, stopped = StepBarrier(), flag()
    ready = fork.Semaphore(0)

    def killed() -> None:
        barrier.join(0, stopped)
        if held:
            barrier._lock.acquire()
        ready.release()
        signal.pause()

    def rank() -> None:
        barrier.join(0, stopped)
        barrier.wait(0, 1, stopped)
        barrier.leave(0, stopped)

    victim = start(killed)
    assert ready.acquire(timeout=PATIENCE_S)
    others = [start(rank), start(rank)]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(PATIENCE_S)
    stopped.value = True
    ended_well(others)


# Numbers in shared memory


def test_threads_of_several_processes_lose_no_change() -> None:
    number = SharedNumber(ctypes.c_int64)

    def add() -> None:
        for _ in range(200):
            with number.alone():
                number.value = int(number.value) + 1

    def process() -> None:
        threads = [threading.Thread(target=add) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    children = [fork.Process(target=process) for _ in range(3)]
    for child in children:
        child.start()
    process()
    for child in children:
        child.join()
    assert number.value == 4 * 4 * 200


def test_a_process_that_ends_in_the_middle_of_a_change_blocks_nobody() -> None:
    number = SharedNumber(ctypes.c_double)
    inside = fork.Event()

    def hold() -> None:
        with number.alone():
            inside.set()
            time.sleep(600)

    child = fork.Process(target=hold)
    child.start()
    assert inside.wait(PATIENCE_S)
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    with number.alone():
        number.value = 1.5
    assert number.value == 1.5


def test_a_fork_while_a_thread_is_inside_blocks_nobody() -> None:
    """The forked process waits for the process that is inside, and for nothing else."""
    number = SharedNumber(ctypes.c_double)
    inside, go = threading.Event(), threading.Event()

    def hold() -> None:
        with number.alone():
            inside.set()
            go.wait(PATIENCE_S)

    def change() -> None:
        with number.alone():
            number.value = 2.5

    thread = threading.Thread(target=hold)
    thread.start()
    assert inside.wait(PATIENCE_S)
    child = fork.Process(target=change)
    child.start()
    go.set()
    thread.join()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    assert number.value == 2.5


def test_two_processes_that_wait_for_each_other_by_other_threads_are_no_deadlock() -> None:
    """Each holds a number in one thread and waits for the other's in another one."""
    numbers = SharedNumber(ctypes.c_int64), SharedNumber(ctypes.c_int64)
    held, go = fork.Barrier(4), fork.Event()

    def process(mine: int) -> None:
        failed: list[BaseException] = []

        def hold() -> None:
            with numbers[mine].alone():
                held.wait(PATIENCE_S)
                go.wait(PATIENCE_S)
                numbers[mine].value = 1

        def ask() -> None:
            held.wait(PATIENCE_S)
            try:
                with numbers[1 - mine].alone():
                    assert numbers[1 - mine].value == 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=each) for each in (hold, ask)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.exit(bool(failed))

    children = [fork.Process(target=process, args=(mine,)) for mine in (0, 1)]
    for child in children:
        child.start()
    time.sleep(0.2)  # both have asked, unless the machine is busy: then nothing is tried
    go.set()
    for child in children:
        child.join(PATIENCE_S)
    assert [child.exitcode for child in children] == [0, 0]
