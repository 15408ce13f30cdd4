"""The engine over io_uring: it reads what the threads' engine reads, and fails as it does."""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import MissingObjectError, StorageError
from iobench.base.pagecache import evict
from iobench.load.choose import make_reader
from iobench.load.engines import uring as uring_engine
from iobench.load.engines.base import Extent
from iobench.load.engines.uring import UringEngine
from iobench.settings.workload import ReaderSpec
from iobench.storage.local import uring
from iobench.storage.local.storage import LocalStorage
from tests.processes import descriptors
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


@pytest.mark.timeout(60)
def test_a_wait_ends_though_nothing_completes_and_no_signal_ends_it() -> None:
    ring, memory = uring.Ring(4), bytearray(8)
    reading, writing = os.pipe()
    request = np.zeros(1, uring.REQUEST)
    request["opcode"], request["fd"], request["length"] = uring.READ, reading, len(memory)
    request["offset"], request["user"] = 2**64 - 1, 7  # a pipe has no offsets
    request["address"] = np.frombuffer(memory, np.uint8).ctypes.data
    ring.put(request)
    ring.enter(1)
    assert (ring.awaited, ring.completed) == (1, 0)
    os.write(writing, b"arrived.")
    while not ring.completed:
        ring.enter(1)
    assert ring.few_completions() == [(7, 8)]
    assert memory == b"arrived."
    ring.drop()
    ring.close()
    os.close(reading)
    os.close(writing)


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
    assert descriptors() <= held


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


def test_where_the_kernel_refuses_threads_read(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, path = make_dataset(format="files")
    monkeypatch.setattr("iobench.load.reader.refused", lambda: "the kernel refuses io_uring (test)")
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(engine="io_uring", decode=False))
    assert not isinstance(reader._engine, UringEngine)
    assert reader.read(np.arange(5), None).stats.bytes_read == 5 * 20_000
    reader.close()
