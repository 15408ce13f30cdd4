"""A number that processes share survives each of them."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time

from iobench.storage.simulated.memory import SharedNumber
from tests.processes import PATIENCE_S

FORK = multiprocessing.get_context("fork")


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

    children = [FORK.Process(target=process) for _ in range(3)]
    for child in children:
        child.start()
    process()
    for child in children:
        child.join()
    assert number.value == 4 * 4 * 200


def test_a_process_that_ends_in_the_middle_of_a_change_blocks_nobody() -> None:
    number = SharedNumber(ctypes.c_double)
    inside = FORK.Event()

    def hold() -> None:
        with number.alone():
            inside.set()
            time.sleep(600)

    child = FORK.Process(target=hold)
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
    child = FORK.Process(target=change)
    child.start()
    go.set()
    thread.join()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    assert number.value == 2.5
