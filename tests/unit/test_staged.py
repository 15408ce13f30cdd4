"""A batch that is accepted while the accelerator still works on the one before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from iobench.accelerate.base import Samples
from iobench.base.errors import StorageError
from iobench.load.loader import Batch
from iobench.load.requests import Stats
from iobench.load.slots import DeviceFeed, Staged
from tests.processes import PATIENCE_S


class Source:
    """Batches 0 to ``count`` - 1; counts those that were asked for."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, 0
        self.more = threading.Condition()
        self.threads: list[threading.Thread] = []

    def __call__(self) -> int | None:
        with self.more:
            number, self.asked = self.asked, self.asked + 1
            self.threads.append(threading.current_thread())
            self.more.notify_all()
        return number if number < self.count else None

    def was_asked(self, times: int) -> bool:
        with self.more:
            return self.more.wait_for(lambda: self.asked >= times, timeout=PATIENCE_S)


def test_one_batch_is_fetched_ahead_and_no_more() -> None:
    source = Source(10)
    stage = Staged(source)
    for number in range(4):
        assert stage.take() == number
        assert source.was_asked(number + 2)
    stage.close()  # a further fetch would have begun by now, or never
    assert source.asked == 5
    assert source.threads[0] is threading.current_thread()  # the parent of a loader's workers
    assert threading.current_thread() not in source.threads[1:]


def test_an_error_comes_when_its_batch_is_taken() -> None:
    def fetch(given: list[int]) -> int:
        if not given:
            raise StorageError("gone")
        return given.pop()

    given = [1]
    stage = Staged(lambda: fetch(given))
    assert stage.take() == 1
    with pytest.raises(StorageError, match="gone"):
        stage.take()
    stage.close()


def batch_of(value: int) -> Batch:
    data = torch.full((8,), value, dtype=torch.uint8)
    places = np.array([0, 4], dtype=np.int64)
    return Batch(data, np.arange(2), places, places * 0 + 4, Stats(2, 8, 8, 0, 0, 0, 0, 0))


def test_a_copy_is_not_overwritten_while_a_step_uses_it() -> None:
    def values(samples: Samples) -> list[int]:
        return samples.stacked().unique().tolist()  # type: ignore[no-any-return]

    feed = DeviceFeed(torch.device("cpu"), batches=2)
    first, _ = feed.copy(batch_of(1))
    second, _ = feed.copy(batch_of(2))
    assert (values(first), values(second)) == ([1], [2])
    third, _ = feed.copy(batch_of(3))
    assert (values(second), values(third)) == ([2], [3])
    assert values(first) == [3]  # its memory has its turn again


def test_memory_for_copies_is_taken_for_their_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a copy may write to memory that a step gave back while its kernels still use it."""
    streams: list[Any] = []
    taken: list[list[Any]] = []

    class Stream:
        def synchronize(self) -> None:
            pass

    @contextmanager
    def within(stream: Stream) -> Iterator[None]:
        streams.append(stream)
        yield
        streams.pop()

    def empty(*size: int, **how: Any) -> torch.Tensor:
        taken.append(list(streams))
        return torch.zeros(*size, **how)

    feed = DeviceFeed(torch.device("cpu"))
    feed._stream = Stream()
    monkeypatch.setattr(torch.cuda, "stream", within)
    monkeypatch.setattr(torch, "empty", empty)
    feed.copy(batch_of(1))
    assert taken == [[feed._stream]]
