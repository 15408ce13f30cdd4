"""The engine over io_uring: it reads what the threads' engine reads, and fails as it does."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import threading
import time
import weakref
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.base import buffers
from iobench.base.errors import MissingObjectError, StorageError, UsageError
from iobench.base.pagecache import evict
from iobench.load.choose import make_reader
from iobench.load.engines import uring as uring_engine
from iobench.load.engines.base import Columns, Extent
from iobench.load.engines.uring import UringEngine
from iobench.settings.workload import ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local import uring
from iobench.storage.local.storage import LocalStorage
from tests.servers.process import missing

CONTENT = np.random.default_rng(5).bytes(200_000)


@pytest.fixture(scope="module", autouse=True)
def allowed() -> None:
    if why := uring.refused():
        missing(f"io_uring: {why}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "x").write_bytes(CONTENT)
    (root / "many").mkdir()
    for number in range(600):
        (root / "many" / f"{number}").write_bytes(CONTENT[number : number + 1000])
    return root


def engine(
    root: Path, *, concurrency: int = 4, block: int = 4096, once: bool = False, direct: bool = False
) -> UringEngine:
    storage = LocalStorage(root, direct=direct)
    return UringEngine(storage, concurrency=concurrency, block_size=block, once=once)


def files(numbers: range) -> list[Extent]:
    return [Extent(f"many/{number}", 0, 1000, 1000 * at, 1000) for at, number in enumerate(numbers)]


def descriptors() -> int:
    gc.collect()  # those of earlier tests may go at any time
    return len(os.listdir("/proc/self/fd"))


@given(
    ranges=st.lists(
        st.tuples(st.integers(0, 150_000), st.integers(1, 50_000)), min_size=1, max_size=8
    ),
    block=st.integers(500, 20_000),
    direct=st.booleans(),
    concurrency=st.sampled_from([1, 3, 17]),
    once=st.booleans(),
    large=st.sampled_from([1, 256 << 10]),
    registered=st.sampled_from([None, 4096, 12_288, 1 << 30]),
    start=st.integers(0, 9),
)
def test_every_byte_lands_once(
    root: Path,
    ranges: list[tuple[int, int]],
    block: int,
    direct: bool,
    concurrency: int,
    once: bool,
    large: int,
    registered: int | None,
    start: int,
) -> None:
    """Also where reads follow one another in the kernel, as those of ``large`` bytes do.

    And where the memory, or all of it but its ``start``, is registered in pieces of so many bytes.
    """
    step = 4096 if direct else 1
    extents, expected = [], b""
    for offset, length in ranges:
        first = offset // step * step
        length = -(-length // step) * step
        part = CONTENT[first : first + length]
        extents.append(Extent("x", first, length, len(expected), len(part)))
        expected += part.ljust(length, b"\0")
    memory = buffers.private(len(expected)).array
    memory[:] = 0
    reading = engine(root, concurrency=concurrency, block=block, once=once, direct=direct)
    with (
        patch.object(uring_engine, "_LARGE", large),
        patch.object(uring_engine, "LARGEST_BUFFER", registered or 1),
    ):
        if registered:
            reading.register(memory.data[4096 * start :])
        total = reading.read(extents, memory.data[: len(expected)])
    reading.close()
    assert bytes(memory[: len(expected)]) == expected
    assert total == sum(extent.needed for extent in extents)


@given(lengths=st.lists(st.integers(0, 20_000), max_size=6), block=st.integers(1, 9000))
def test_blocks_as_arrays_are_those_of_the_threads(lengths: list[int], block: int) -> None:
    extents = [Extent("x", 7, n, 100 * n, n // 2) for n in lengths]
    columns = Columns.of(extents).blocks(block)
    found = [extent[:5] for extent in columns.extents()]
    reading = UringEngine(LocalStorage("/"), concurrency=1, block_size=block)
    assert found == [extent[:5] for extent in reading.blocks(extents)]


@pytest.mark.parametrize("once", [True, False])
def test_more_files_than_descriptors(root: Path, once: bool) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = descriptors()
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 60, before[1]))
    try:
        reading = engine(root, concurrency=32, once=once)
        memory = bytearray(600_000)
        for _ in range(2):
            assert reading.read(files(range(600)), memoryview(memory)) == 600_000
        for number in range(600):
            assert memory[1000 * number :][:1000] == CONTENT[number : number + 1000]
        reading.close()
        reading.storage.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert descriptors() == held


def test_where_no_descriptor_is_left_the_line_says_so(root: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reading = engine(root)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot make a ring of io_uring for 4 reads"):
            reading.read(files(range(3)), memoryview(bytearray(3000)))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert reading.read(files(range(3)), memoryview(bytearray(3000))) == 3000
    reading.close()


def test_linked_reads_take_one_place_in_the_window(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more are begun at a time than without links, and the first one of a chain that fails
    leaves none behind.
    """
    monkeypatch.setattr(uring_engine, "_LARGE", 1)
    begun: list[int] = []

    class Counted(uring.Ring):
        def put(self, requests: Any) -> None:
            reads = requests[requests["opcode"] == uring.READ]
            begun.append(int(np.count_nonzero(~(reads["flags"] & uring.HARDLINK).astype(bool))))
            begun.append(-len(reads))
            super().put(requests)

    monkeypatch.setattr(uring_engine, "Ring", Counted)
    reading = engine(root, concurrency=3, block=1000)
    memory = bytearray(len(CONTENT))
    whole = [Extent("x", 0, len(CONTENT), 0, len(CONTENT))]
    assert reading.read(whole, memoryview(memory)) == len(CONTENT)
    assert memory == CONTENT
    chains, reads = sum(n for n in begun if n > 0), -sum(n for n in begun if n < 0)
    assert reads == len(CONTENT) // 1000
    assert chains < reads / 2
    assert max(begun) <= 3
    beyond = [Extent("x", 0, len(CONTENT) + 9000, 0, len(CONTENT) + 9000)]
    with pytest.raises(StorageError, match="ends at byte"):
        reading.read(beyond, memoryview(bytearray(len(CONTENT) + 9000)))
    assert reading.read(whole, memoryview(memory)) == len(CONTENT)
    reading.close()


@pytest.mark.parametrize("once", [True, False])
def test_failures_are_told_as_by_threads(root: Path, tmp_path: Path, once: bool) -> None:
    (tmp_path / "short").write_bytes(b"12345")
    (tmp_path / "out").symlink_to(root / "x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    held = descriptors()
    reading = engine(tmp_path, once=once)
    memory = memoryview(bytearray(2000))
    for key, error, text in (
        ("none", MissingObjectError, "cannot open .*none"),
        ("short", StorageError, "short ends at byte 5, but 1000 bytes were expected"),
        ("out", StorageError, "cannot open .*out"),
        ("folder", StorageError, "folder"),
        ("pipe", StorageError, "pipe"),
        ("short/below", StorageError, "cannot open"),
    ):
        for batch in ([key], ["short", key, key]):
            extents = [Extent(name, 0, 1000, 0, 1000) for name in batch[-1:]]
            with pytest.raises(error, match=text):
                reading.read(extents, memory)
    # The engine works on.
    assert reading.read([Extent("short", 1, 4, 0, 4)], memory) == 4
    assert bytes(memory[:4]) == b"2345"
    reading.close()
    reading.storage.close()
    assert descriptors() == held


def test_a_batch_that_failed_leaves_nothing_in_flight(root: Path) -> None:
    held = descriptors()
    reading = engine(root, concurrency=4, once=True)
    memory = bytearray(600_000)
    extents = files(range(600))
    extents[5] = extents[5]._replace(key="many/none")
    with pytest.raises(MissingObjectError):
        reading.read(extents, memoryview(memory))
    memory[:] = bytes(len(memory))
    assert reading.read(files(range(3)), memoryview(bytearray(3000))) == 3000
    reading.close()
    assert memory == bytes(len(memory))
    reading.storage.close()
    assert descriptors() == held


def test_an_interrupt_leaves_no_request_behind(root: Path) -> None:
    """The signal comes while a request waits for data that never comes in time."""
    held = descriptors()
    reading = engine(root, once=True)
    memory = bytearray(600_000)
    ring = reading._own_ring()
    enter = ring.enter

    def interrupted(wait: int) -> None:
        enter(wait)
        if wait:
            signal.raise_signal(signal.SIGINT)

    ring.enter = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        reading.read(files(range(600)), memoryview(memory))
    memory[:] = bytes(len(memory))
    assert reading.read(files(range(3)), memoryview(bytearray(3000))) == 3000
    reading.close()
    assert memory == bytes(len(memory))
    reading.storage.close()
    assert descriptors() == held


@pytest.mark.parametrize("how", ["dropped", "a cycle", "by another thread"])
def test_memory_is_not_written_to_after_its_engine_is_gone(how: str, tmp_path: Path) -> None:
    """Without ``close``: whoever gets that memory next would find other bytes in it."""
    size = 64 << 20
    with (tmp_path / "x").open("wb") as file:
        for _ in range(64):
            file.write(np.full(1 << 20, 7, np.uint8).tobytes())
    evict([tmp_path / "x"])
    memory = np.full(size + 4096, 0xEE, np.uint8)
    start = -memory.ctypes.data % 4096
    landing = memory[start : start + size]
    one = engine(tmp_path, concurrency=64, block=1 << 20, direct=True)
    reading = one.begin([Extent("x", 0, size, 0, size)], landing.data)
    if how == "a cycle":
        one.itself = one  # type: ignore[attr-defined]
    if how == "by another thread":
        holder = [one]
        del one
        thread = threading.Thread(target=holder.clear)
        thread.start()
        thread.join()
        # Only its own thread can wait for it, so the memory is kept as long as it may be written.
        kept = weakref.ref(reading)
        del reading
        gc.collect()
        assert kept() is not None
        return
    del one, reading
    gc.collect()
    then = landing[::4096].copy()
    time.sleep(0.5)
    assert (landing[::4096] == then).all()


def test_a_forked_process_has_a_ring_of_its_own(root: Path) -> None:
    reading = engine(root)
    memory = bytearray(len(CONTENT))
    whole = [Extent("x", 0, len(CONTENT), 0, len(CONTENT))]
    reading.read(whole, memoryview(memory))
    child = os.fork()
    if child == 0:
        memory[:] = bytes(len(memory))
        count = reading.read(whole, memoryview(memory))
        os._exit(0 if count == len(CONTENT) and memory == CONTENT else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert reading.read(whole, memoryview(memory)) == len(CONTENT)
    reading.close()


def test_where_the_kernel_refuses_threads_read(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, path = make_dataset(format="files")
    monkeypatch.setattr("iobench.load.reader.refused", lambda: "the kernel refuses io_uring (test)")
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(engine="io_uring", decode=False))
    assert not isinstance(reader._engine, UringEngine)
    assert reader.read(np.arange(5), None).stats.bytes_read == 5 * 20_000
    reader.close()


def test_only_local_files_have_a_ring(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="files")
    with pytest.raises(UsageError, match=r"reader\.engine=io_uring reads local files"):
        make_reader(
            manifest, open_storage(f"throttled+{path}?latency=1ms"), ReaderSpec(engine="io_uring")
        )


@pytest.mark.slow
def test_a_run_reads_through_the_ring(
    make_dataset: Any, tmp_path: Path, call: Any, nothing_left: set[int]
) -> None:
    """Whole commands: workers, batches that are read ahead, and the parts that are left out."""
    _, path = make_dataset(format="files", samples=240)
    code, out, err = call(
        *("run", "demo", "--data", path, "--results", tmp_path, "--json", "--repeat", 2),
        *("--calibration", "0s", "--set", "reader.engine=io_uring", "--set", "max_steps=8"),
        *("--set", "reader.concurrency=16", "--set", "reader.decode=false"),
    )
    assert code in (0, 1), err
    job = json.loads(out)["job"]
    assert [repetition["complete"] for repetition in job["repetitions"]] == [True, True]
