"""The read engine: blocks that cover every byte once, one failure for all threads, and no write
after the memory was handed back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base.errors import StorageError
from iobench.load.choose import make_reader
from iobench.load.engines.base import Extent
from iobench.load.engines.threads import ThreadEngine
from iobench.load.reader import BatchReader
from iobench.settings.workload import ReaderSpec
from iobench.storage.base import Buffer
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.memory import MemoryStorage
from tests.pairs import pairs
from tests.processes import PATIENCE_S

CONTENT = np.random.default_rng(5).bytes(200_000)


class Recording(MemoryStorage):
    """Remembers each request; ``before`` may fail or wait."""

    def __init__(
        self, *, alignment: int = 1, before: Callable[[int], None] | None = None, **objects: bytes
    ) -> None:
        super().__init__(
            objects={key: memoryview(data) for key, data in (objects or {"x": CONTENT}).items()}
        )
        self.alignment = alignment
        self.before = before
        self.requests: list[tuple[str, int, int, bool]] = []
        self._counter = threading.Lock()

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        with self._counter:
            self.requests.append((key, offset, len(buffer), once))
            number = len(self.requests)
        if self.before is not None:
            self.before(number)
        return super().read_into(key, offset, buffer, once=once)


def engine(
    storage: Any, *, concurrency: int = 1, block_size: int = 4096, once: bool = False
) -> ThreadEngine:
    return ThreadEngine(storage, concurrency=concurrency, block_size=block_size, once=once)


def whole(length: int, landing: int = 0) -> Extent:
    return Extent("x", 0, length, landing, length)


@pytest.mark.parametrize(
    ("error", "victim", "concurrency"),
    pairs((StorageError("read x"), OSError(5, "Input"), ValueError("not a")), (1, 9), (1, 6)),
)
def test_after_a_failure_no_thread_writes(error: Exception, victim: int, concurrency: int) -> None:
    """The failing thread fails at once, while the others are held back until long after: read()
    must wait for every one of them.
    """
    held = threading.Event()

    def before(number: int) -> None:
        if number == victim:
            threading.Timer(0.1, held.set).start()
            raise error
        if number > victim - concurrency:
            held.wait(PATIENCE_S)

    storage = Recording(before=before)
    memory = bytearray(len(CONTENT))
    reading = engine(storage, concurrency=concurrency)
    with pytest.raises(type(error), match=r"read x|Input|not a"):
        reading.read([whole(len(CONTENT))], memoryview(memory))
    asked = len(storage.requests)
    memory[:] = bytes(len(memory))  # it is ours again
    held.set()
    reading.close()  # every thread has ended
    assert memory == bytes(len(memory))
    assert len(storage.requests) == asked < victim + concurrency  # nor was any new read begun


# Which requests a batch becomes


def requests_of(
    make_dataset: Any, indices: list[int], *, direct: bool = False, **spec: Any
) -> tuple[Any, list[tuple[str, int, int, bool]]]:
    manifest, path = make_dataset(**spec)
    storage = Recording(
        alignment=4096 if direct else 1,
        **{key: (path / key).read_bytes() for key in manifest.keys()},  # noqa: SIM118
    )
    reader = BatchReader(manifest, storage, ReaderSpec(concurrency=1))
    chosen = np.array(indices)
    memory = bytearray(int(reader.room(chosen).sum()))
    delivered = reader.read(chosen, memoryview(memory))
    for index, offset, length in zip(
        indices, delivered.offsets.tolist(), delivered.lengths.tolist(), strict=True
    ):
        shard, start = int(manifest.samples["shard"][index]), int(manifest.samples["offset"][index])
        assert (
            memory[offset : offset + length]
            == (path / manifest.key(shard)).read_bytes()[start : start + length]
        )
        assert length == int(manifest.samples["stored"][index])
    return delivered, storage.requests


@pytest.mark.parametrize("form", ["tar", "tfrecord"])
@pytest.mark.parametrize("direct", [True, False])
def test_neighbours_are_read_in_one_request(make_dataset: Any, form: str, direct: bool) -> None:
    shape = {"format": form, "samples_per_shard": 20}
    _, together = requests_of(make_dataset, list(range(5, 15)), direct=direct, **shape)
    assert len(together) == 1
    _, across = requests_of(make_dataset, list(range(15, 25)), direct=direct, **shape)
    assert [key for key, *_ in across] == sorted({key for key, *_ in across})
    assert len(across) == 2  # one for each shard
    _, apart = requests_of(make_dataset, [2, 9, 4], direct=direct, **shape)
    assert len(apart) == 3


def test_bytes_read_are_the_bytes_asked_of_the_storage(make_dataset: Any) -> None:
    delivered, requests = requests_of(
        make_dataset, list(range(3, 9)), format="tar", samples_per_shard=20
    )
    assert delivered.stats.bytes_read == sum(length for *_, length, _ in requests)
    assert delivered.stats.requests == len(requests) == 1
    assert (
        delivered.stats.sample_bytes == 6 * 20_000 < delivered.stats.bytes_read
    )  # framing is read along


def test_a_file_of_one_sample_is_opened_and_read(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="files")
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(), bytes_only=True)
    try:
        for batch, asked in (([3, 8, 5], 6), ([1], 2)):
            assert reader.read(np.array(batch), None).stats.requests == asked
    finally:
        reader.close()


@given(data=st.data())
def test_any_selection_of_tiny_samples_fits_its_room(
    make_dataset: Any, data: st.DataObject
) -> None:
    """What lies between two samples that are read at once takes room, too."""
    indices = data.draw(st.lists(st.integers(0, 59), min_size=1, max_size=12, unique=True))
    requests_of(
        make_dataset,
        indices,
        direct=data.draw(st.booleans()),
        format="tar",
        sample_size={"mean": 700},
    )
