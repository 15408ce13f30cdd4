"""Batches that offer fewer requests than ``reader.concurrency``: the requests of later batches are
issued, and nothing else about the batches changes.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import CorruptSampleError, IobenchError, StorageError, UsageError
from iobench.load.loader import Batch, BatchLoader
from iobench.storage.base import Buffer
from iobench.storage.local.storage import LocalStorage
from iobench.storage.wrapper import Wrapper
from tests.conftest import ENGINES, MakeDataset
from tests.contract.conftest import Load
from tests.pairs import one_of, pairs
from tests.processes import PATIENCE_S, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

WAYS = [("ring", 0), ("ring", 2), ("tensor", 2), ("thread", 2), ("null", 2)]
"""(transport, workers)"""


class Counting(Wrapper):
    """Counts the reads in flight in each process; ``peak`` is the largest of all processes.

    Reads wait until ``until`` are in flight, once.
    """

    def __init__(self, path: Path, *, until: int = 1) -> None:
        super().__init__(LocalStorage(path))
        fork = multiprocessing.get_context("fork")
        self._peak = fork.RawArray(ctypes.c_int64, 1)
        self._read = fork.Value("q", 0)
        self._lock = threading.Lock()
        self._now = 0
        self._until = until
        self._deadline = time.monotonic() + PATIENCE_S

    @property
    def peak(self) -> int:
        return int(self._peak[0])

    @property
    def bytes_read(self) -> int:
        return int(self._read.value)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        with self._lock:
            self._now += 1
            self._peak[0] = max(self._peak[0], self._now)
        while self.peak < self._until and time.monotonic() < self._deadline:
            time.sleep(0.001)
        count = super().read_into(key, offset, buffer, once=once)
        with self._lock:
            self._now -= 1
        with self._read.get_lock():
            self._read.value += count
        return count


class Held(Wrapper):
    """The first read of some keys, which no request asked for yet, lasts until ``open`` is set."""

    def __init__(self, path: Path, keys: list[str]) -> None:
        super().__init__(LocalStorage(path))
        fork = multiprocessing.get_context("fork")
        self.open = fork.Event()
        self._first = {key: fork.Value("b", 1) for key in keys}
        self._waiting = fork.Value("q", 0)

    @property
    def waiting(self) -> int:
        return int(self._waiting.value)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        first = self._first.get(key)
        held = first is not None and bool(first.value)
        if first is not None and held:
            first.value = 0
            with self._waiting.get_lock():
                self._waiting.value += 1
            self.open.wait(PATIENCE_S)
        count = super().read_into(key, offset, buffer, once=once)
        if held:
            with self._waiting.get_lock():
                self._waiting.value -= 1
        return count


class Failing(Wrapper):
    """Reads of one key fail."""

    def __init__(self, path: Path, victim: str) -> None:
        super().__init__(LocalStorage(path))
        self._victim = victim

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        if key == self._victim:
            raise StorageError(f"cannot read {key}: Input/output error")
        return super().read_into(key, offset, buffer, once=once)


def copied(batch: Batch) -> tuple[list[int], list[bytes]]:
    """The batch's sample numbers and bytes."""
    samples = [] if batch.data is None else [sample.numpy().tobytes() for sample in batch]
    return batch.indices.tolist(), samples


def epoch_of(loader: BatchLoader, epoch: int) -> list[tuple[list[int], list[bytes]]]:
    loader.set_epoch(epoch)
    return [copied(batch) for batch in loader]


# Reads in flight


@pytest.mark.parametrize("way", WAYS)
def test_batches_of_one_request_have_as_many_in_flight_as_allowed(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int]
) -> None:
    content = {"content": "jpeg", "codec": "zstd:1"} if way == ("ring", 2) else {}
    _, path = make_dataset(format="files", **content)
    storage = Counting(path, until=16)
    loader = load(path, way, batch_size=1, storage=storage, reader={"concurrency": 16})
    assert len(epoch_of(loader, 0)) == 60
    # Threads share the process in which the reads are counted.
    assert storage.peak <= 16 * (way[1] if way[0] == "thread" else 1)
    assert storage.peak >= 16


@pytest.mark.parametrize(
    ("batch_size", "concurrency", "asked", "ahead"),
    [
        (4, 4, "auto", 0),  # a batch offers enough
        (1, 16, "auto", 16),
        (1, 16, False, 0),
        (60, 256, "auto", 0),  # there is no later batch
    ],
)
def test_how_far_is_read_ahead(
    make_dataset: MakeDataset, load: Load, batch_size: int, concurrency: int, asked: Any, ahead: int
) -> None:
    _, path = make_dataset(format="files")
    reading = {"concurrency": concurrency, "read_ahead": asked}
    assert load(path, ("ring", 2), batch_size=batch_size, reader=reading).ahead == ahead


def test_row_groups_are_not_read_ahead(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(format="parquet", samples_per_shard=20)
    loader = load(path, batch_size=1, reader={"concurrency": 16})
    assert loader.ahead == 0
    with pytest.raises(UsageError, match="read_ahead"):
        load(path, batch_size=1, reader={"read_ahead": True})


# The same batches


SPECS: list[dict[str, Any]] = [
    {"format": "files", "content": "npz"},
    {"format": "files", "content": "jpeg", "codec": "zstd:1"},
    {"format": "tfrecord", "samples_per_shard": 20, "codec": "lz4", "compress_ratio": 2},
]


@pytest.mark.parametrize(
    ("way", "spec", "tail", "persistent", "batch_size", "engine"),
    one_of(3, pairs(WAYS, SPECS, ["keep", "drop"], [True, False], [1, 7], ENGINES)),
    indirect=["engine"],
)
def test_the_batches_are_the_same_epoch_after_epoch(
    make_dataset: MakeDataset,
    load: Load,
    way: tuple[str, int],
    spec: dict[str, Any],
    tail: str,
    persistent: bool,
    batch_size: int,
    engine: str,
) -> None:
    _, path = make_dataset(**spec)

    def made(way: tuple[str, int], **reading: Any) -> BatchLoader:
        reader = {"concurrency": 12, "tail": tail, **reading}
        share = {"world": 2, "rank": 1, "seed": 3, "batch_size": batch_size}
        loading = {"persistent_workers": persistent}
        return load(path, way, reader=reader, loader=loading, **share)

    transport, workers = way
    # As many workers give the same order. Threads start faster. "null" delivers no bytes.
    other = ("thread", workers) if workers and transport != "null" else way
    ahead = made(way, read_ahead=True, engine=engine)
    plain = made(other, read_ahead=False, engine="threads")
    assert ahead.ahead > 0
    for epoch in range(2):
        assert epoch_of(ahead, epoch) == epoch_of(plain, epoch)


@pytest.mark.parametrize(
    ("way", "crop"),
    [
        (("ring", 2), None),
        (("ring", 0), 5000),
        pytest.param(("tensor", 2), 5000, marks=pytest.mark.slow),
        pytest.param(("thread", 2), None, marks=pytest.mark.slow),
    ],
)
def test_nothing_is_written_into_batches_after_an_epoch_was_abandoned(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], crop: int | None
) -> None:
    """Reads ahead of the abandoned epoch last until the next epoch has delivered batches; or, as it
    should be, the next epoch waits for them.
    """
    manifest, path = make_dataset(format="files")
    keys = manifest.keys()
    truth = [Path(path, key).read_bytes()[:crop] for key in keys]
    storage = Held(path, keys[6:14])  # the first requests are for 0 to 5
    reading = {"concurrency": 8, "crop": crop, "shuffle": False}
    loader = load(path, way, batch_size=1, storage=storage, reader=reading)
    delivered = threading.Event()
    opener = threading.Thread(target=lambda: (delivered.wait(0.5), storage.open.set()))
    batches = iter(loader)
    next(batches)
    wait_until(lambda: storage.waiting >= 3, "reads ahead were issued")
    opener.start()
    batches.close()
    with closing(iter(loader)) as batches:
        kept = [next(batches) for _ in range(15)]
        delivered.set()
        wait_until(lambda: storage.waiting == 0, "reads ahead have ended")
        for number, batch in enumerate(kept):
            assert copied(batch) == ([number], [truth[number]])
        del kept, batch
        rest = [copied(batch) for batch in batches]
    opener.join()
    assert rest == [([number], [truth[number]]) for number in range(15, 60)]


# What a batch cost


@pytest.mark.parametrize(
    ("way", "content"),
    [(("ring", 2), "jpeg"), (("thread", 2), "raw"), (("null", 1), "raw"), (("ring", 0), "jpeg")],
)
def test_times_of_a_worker_do_not_overlap(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], content: str
) -> None:
    _, path = make_dataset(format="files", content=content)
    storage = Counting(path)
    began = time.monotonic_ns()
    loader = load(path, way, batch_size=1, storage=storage, reader={"concurrency": 8})
    stats = [batch.stats for batch in loader]
    wall = time.monotonic_ns() - began
    loader.shutdown()
    assert sum(each.bytes_read for each in stats) == storage.bytes_read
    for worker in range(max(1, way[1])):
        mine = stats[worker :: max(1, way[1])]
        assert sum(each.read_ns + each.prep_ns for each in mine) <= wall
        for one, following in pairwise(mine):
            assert following.started_ns >= one.started_ns + one.read_ns
    assert all(each.read_ns >= 0 and each.prep_ns >= 0 for each in stats)


# Failures


def failure(loader: BatchLoader) -> tuple[IobenchError | None, list[int]]:
    """What ended an epoch, and the samples that came before."""
    seen: list[int] = []
    try:
        for batch in loader:
            seen.extend(batch.indices.tolist())
    except IobenchError as error:
        return error, seen
    return None, seen


@pytest.mark.parametrize("way", WAYS)
def test_an_error_belongs_to_its_own_batch(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int]
) -> None:
    manifest, path = make_dataset(format="files")
    storage = Failing(path, manifest.key(11))
    reading = {"concurrency": 16, "shuffle": False}
    loader = load(path, way, batch_size=1, storage=storage, reader=reading)
    error, seen = failure(loader)
    assert isinstance(error, StorageError)
    assert manifest.key(11) in str(error)
    assert seen == list(range(11))


def test_a_damaged_sample_belongs_to_its_own_batch(
    make_dataset: MakeDataset, load: Load, tmp_path: Path, engine: str
) -> None:
    manifest, path = make_dataset(format="files", content="jpeg")
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    with (copy / manifest.key(7)).open("r+b") as damaged:
        damaged.write(os.urandom(64))
    reading = {"concurrency": 8, "shuffle": False, "engine": engine}
    error, seen = failure(load(copy, ("ring", 2), batch_size=1, reader=reading))
    assert isinstance(error, CorruptSampleError)
    assert "sample 7 " in str(error)
    assert seen == list(range(7))
