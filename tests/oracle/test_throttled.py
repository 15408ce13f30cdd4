"""Storage of known speed keeps what it promises: the distribution of its latency, and caps that all
processes share.

A cap can be held from one side exactly (nothing is faster than it), and from the other as well as a
loaded machine lets it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.storage import open_storage
from iobench.storage.base import Storage
from tests.oracle.plants import MB


def in_processes(count: int, work: Callable[[int], None]) -> float:
    """Seconds that ``count`` forked processes take together."""
    started = time.monotonic()
    children = []
    for number in range(count):
        child = os.fork()
        if child == 0:
            try:
                work(number)
            except BaseException:
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * count
    return time.monotonic() - started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "x").write_bytes(bytes(MB))
    return tmp_path


def read(storage: Storage, length: int = MB) -> None:
    assert storage.read_into("x", 0, memoryview(bytearray(length))) == length


@pytest.mark.parametrize(("median", "p99"), [(0.010, 0.040), (0.001, 0.100), (0.005, 0.005)])
def test_latency_has_the_median_and_the_tail_that_were_asked_for(
    folder: Path, median: float, p99: float
) -> None:
    storage: Any = open_storage(f"throttled+{folder}?latency={median}&latency_p99={p99}")
    random.seed(11)
    drawn = np.array([storage.latency() for _ in range(40_000)])
    # 40,000 draws know the median to 1 % and the 99th percentile to 3 % (one standard error, of the
    # wider distribution).
    assert np.median(drawn) == pytest.approx(median, rel=0.05)
    assert np.quantile(drawn, 0.99) == pytest.approx(p99, rel=0.15)
    assert drawn.mean() == pytest.approx(storage.facts()["latency_mean_s"], rel=0.15)
    assert storage.facts()["latency_mean_s"] >= median


def test_each_process_draws_its_own_latencies(folder: Path) -> None:
    storage: Any = open_storage(f"throttled+{folder}?latency=1ms&latency_p99=9ms")
    ours, theirs = os.pipe()
    for _ in range(3):
        if os.fork() == 0:
            os.write(theirs, f"{storage.latency()!r}\n".encode())
            os._exit(0)
        os.wait()
    os.close(theirs)
    with os.fdopen(ours) as lines:
        assert len(set(lines.read().split())) == 3


def test_reads_take_the_latency_that_was_drawn(folder: Path) -> None:
    """Each read takes what was drawn for it, and little more."""
    storage: Any = open_storage(f"throttled+{folder}?latency=5ms&latency_p99=15ms")
    expected = []
    draw = storage.latency

    def noted() -> float:
        expected.append(draw())
        return expected[-1]

    storage.latency = noted
    taken = []
    for _ in range(60):
        started = time.monotonic()
        read(storage, 100)
        taken.append(time.monotonic() - started)
    assert all(real >= drawn for real, drawn in zip(taken, expected, strict=True))
    assert np.median(np.array(taken) - np.array(expected)) < 0.005  # what the wait itself adds


def test_the_bandwidth_is_shared_by_all_processes(folder: Path) -> None:
    """Four processes read 80 MB at 80 MB/s: a second together, not a quarter."""
    storage = open_storage(f"throttled+{folder}?bandwidth=80MB")
    seconds = in_processes(4, lambda _: [read(storage) for _ in range(20)] and None)
    assert seconds >= 1.0
    assert seconds < 2.0


def test_operations_are_counted_whatever_their_size(folder: Path) -> None:
    storage = open_storage(f"throttled+{folder}?iops=2e2")
    seconds = in_processes(2, lambda _: [read(storage, 10) for _ in range(50)] and None)
    assert seconds >= 0.5
    assert seconds < 1.5


@pytest.mark.parametrize(
    "ask",
    [
        lambda storage: storage.open_and_close("x"),
        lambda storage: storage.size("x"),
        lambda storage: list(storage.list()),
        lambda storage: storage.read_into("x", 0, memoryview(bytearray(10)), once=True),
    ],
)
def test_opens_stats_and_listings_share_one_pace(
    folder: Path, ask: Callable[[Any], object]
) -> None:
    storage = open_storage(f"throttled+{folder}?opens=200")
    seconds = in_processes(2, lambda _: [ask(storage) for _ in range(50)] and None)
    assert seconds >= 0.5
    assert seconds < 1.5


def test_a_file_that_is_open_is_not_opened_again(folder: Path) -> None:
    storage: Any = open_storage(f"throttled+{folder}?open_latency=100ms")
    started = time.monotonic()
    for _ in range(50):
        read(storage, 10)
    assert 0.1 <= time.monotonic() - started < 1.0


def test_writes_are_accepted_at_the_pace_that_all_processes_share(folder: Path) -> None:
    """Two processes write 40 MB at 40 MB/s; what was not yet accepted is not there, what was is all
    of it; reads are not held up.
    """
    storage = open_storage(f"throttled+{folder}?write_bandwidth=40MB/s")

    def write(number: int) -> None:
        with storage.create(f"k{number}", size_hint=20 * MB) as sink:
            for _ in range(20):
                sink.write(memoryview(bytes(MB)))

    seconds = in_processes(2, write)
    assert seconds >= 1.0
    assert seconds < 3.0  # the disk's own time comes on top of the last write
    assert [storage.size(f"k{number}") for number in range(2)] == [20 * MB] * 2
    started = time.monotonic()
    read(storage)
    assert time.monotonic() - started < 0.5


def test_the_fingerprint_has_every_figure(folder: Path) -> None:
    options = "bandwidth=2GB&latency=5ms&latency_p99=20ms&iops=1e4&write_bandwidth=500MB"
    figures = {
        "bandwidth_bytes_per_s": 2_000_000_000,
        "write_bandwidth_bytes_per_s": 500_000_000,
        "iops": 10_000,
        "latency_s": 0.005,
        "latency_p99_s": 0.020,
    }
    assert figures.items() <= open_storage(f"throttled+{folder}?{options}").facts().items()
