"""Requests that are issued ahead: their order, their failures, and their end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from iobench.errors import StorageError
from iobench.load.ahead import ReadAhead, batches_ahead
from iobench.load.engine import Extent, ReadEngine
from iobench.storage.base import Buffer
from iobench.storage.simulated.memory import MemoryStorage
from tests.processes import PATIENCE_S

CONTENT = bytes(range(256)) * 64


class Recording(MemoryStorage):
    """Remembers the offset of each read; ``before`` may fail or wait."""

    def __init__(self, before: Callable[[int], None] | None = None) -> None:
        super().__init__(objects={"x": memoryview(CONTENT)})
        self.before = before
        self.offsets: list[int] = []

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        self.offsets.append(offset)
        if self.before is not None:
            self.before(offset)
        return super().read_into(key, offset, buffer, once=once)


def ahead(storage: MemoryStorage, concurrency: int = 4) -> ReadAhead:
    return ReadAhead(ReadEngine(storage, concurrency=concurrency, block_size=4096))


def extent(offset: int, length: int = 100) -> Extent:
    return Extent("x", offset, length, 0, length)


@pytest.mark.parametrize(
    ("requests", "concurrency", "batches"),
    [(1, 1, 1), (1, 16, 16), (3, 4, 2), (4, 4, 1), (50, 4, 1), (0.2, 4, 4), (2.5, 10, 4)],
)
def test_batches_ahead(requests: float, concurrency: int, batches: int) -> None:
    assert batches_ahead(requests, concurrency) == batches


def test_requests_are_read_in_the_order_in_which_they_were_begun() -> None:
    storage = Recording()
    reads = ahead(storage, concurrency=1)
    memories = [bytearray(100) for _ in range(5)]
    begun = [
        reads.begin([extent(1000 * number)], memoryview(memory))
        for number, memory in enumerate(memories)
    ]
    assert [reads.wait(each) for each in begun] == [100] * 5
    assert storage.offsets == [0, 1000, 2000, 3000, 4000]
    for number, memory in enumerate(memories):
        assert memory == CONTENT[1000 * number : 1000 * number + 100]
    reads.settle()


def test_a_failure_is_that_of_its_batch_and_waits_for_the_other_requests() -> None:
    begun, held = threading.Event(), threading.Event()

    def before(offset: int) -> None:
        if offset == 8192:
            begun.set()
            held.wait(PATIENCE_S)
        if offset == 4096:
            begun.wait(PATIENCE_S)
            held.set()
            raise StorageError("cannot read x")

    reads = ahead(Recording(before))
    memory = memoryview(bytearray(12288))
    bad = reads.begin([extent(0, 12288)], memory)
    good = reads.begin([extent(10)], memoryview(bytearray(100)))
    with pytest.raises(StorageError):
        reads.wait(bad)
    assert held.is_set()
    assert bytes(memory[8192:]) == CONTENT[8192:12288]  # its read was not left behind
    assert reads.wait(good) == 100
    reads.settle()


def test_settling_waits_for_what_is_in_flight_and_leaves_out_the_rest() -> None:
    held, opened = threading.Event(), threading.Event()

    def before(offset: int) -> None:
        held.set()
        opened.wait(PATIENCE_S)

    storage = Recording(before)
    reads = ahead(storage, concurrency=1)
    memory = bytearray(100)
    reads.begin([extent(0)], memoryview(memory))
    for number in range(1, 20):
        reads.begin([extent(number)], memoryview(bytearray(100)))
    assert held.wait(PATIENCE_S)
    threading.Timer(0.1, opened.set).start()
    reads.settle()
    assert opened.is_set()
    assert bytes(memory) == CONTENT[:100]
    assert storage.offsets == [0]
    again = reads.begin([extent(7)], memoryview(memory))  # it can be used again
    assert reads.wait(again) == 100
    reads.settle()
