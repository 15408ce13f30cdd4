"""The client of an open loop issues each request once, in order, and at its instant or later."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from iobench.serve.client import Issued, Read, issue
from tests.processes import PATIENCE_S


def issued(read: Read, *, gap_s: float = 0.0, number: int = 20, readers: int = 4) -> Issued:
    instants = (np.arange(number) * gap_s * 1e9).astype(np.int64)
    return issue(instants, range(100, 100 + number), [read] * readers, drain_s=5)


def test_every_request_is_read_once_and_in_order() -> None:
    seen: list[int] = []

    def read(sample: int) -> int:
        seen.append(sample)
        return 7

    found = issued(read, gap_s=0.002, readers=1)
    # The first one also before the window, so that connections are open.
    assert seen == [100, *range(100, 120)]
    assert found.bytes == 140
    assert (found.issued_ns >= found.intended_ns).all()
    assert (found.ready_ns >= found.issued_ns).all()
    assert found.failed.sum() == 0


def test_a_slow_read_does_not_delay_the_arrivals_of_others() -> None:
    """Of two readers one stands still: all other requests are read meanwhile by the other one."""
    let_go = threading.Event()
    counted = threading.Semaphore(0)

    def read(sample: int) -> int:
        if sample == 105:
            let_go.wait(PATIENCE_S)
        else:
            counted.release()
        if sample == 119:
            let_go.set()
        return 1

    found = issued(read, gap_s=0.001, readers=2)
    assert (found.ready_ns >= 0).all()
    assert found.ready_ns[5] > found.ready_ns[18]


def test_what_waits_for_a_reader_was_taken_late_and_issued_at_once() -> None:
    def read(sample: int) -> int:
        time.sleep(0.002)
        return 1

    found = issued(read, number=10, readers=1)  # all arrive at once
    assert (np.diff(found.taken_ns) > 0).all()
    assert (found.taken_ns[1:] >= found.ready_ns[:-1]).all()
    assert (found.issued_ns >= found.taken_ns).all()


def test_what_is_no_failure_of_storage_ends_the_window() -> None:
    def read(sample: int) -> int:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        issued(read)
    assert not [each for each in threading.enumerate() if each.name == "iobench-request"]


def test_requests_that_no_reader_takes_in_time_are_left_out() -> None:
    def read(sample: int) -> int:
        time.sleep(0.3)  # longer than requests are waited for: each reader takes one at most
        return 1

    found = issue(np.zeros(20, np.int64), range(20), [read] * 2, drain_s=0.2)
    taken = found.ready_ns >= 0
    assert taken.sum() <= 2
    assert (found.taken_ns[~taken] == -1).all()


def test_an_interrupt_ends_all_readers() -> None:
    def prepare() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        issue(np.zeros(5, np.int64), range(5), [lambda _: 1] * 3, drain_s=1, prepare=prepare)
    assert not [each for each in threading.enumerate() if each.name == "iobench-request"]
