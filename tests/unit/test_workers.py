"""The work of each loader worker is counted, and the slowest ones come first."""

from __future__ import annotations

import pytest

from iobench.load.requests import Stats
from iobench.record.training import MAX_WORKERS, WorkerLoad
from iobench.runner.counters import WorkerBook, slowest


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
    many = [
        WorkerLoad(
            rank=number % 512,
            worker=number // 512,
            batches=1,
            samples=1,
            bytes_read=1,
            sample_bytes=1,
            read_s=float(number),
            prep_s=0.0,
        )
        for number in range(2048)
    ]
    kept, left_out = slowest(many)
    assert len(kept) == MAX_WORKERS
    assert left_out == 2048 - MAX_WORKERS
    assert [each.read_s for each in kept[:2]] == [2047.0, 2046.0]
