"""Local and simulated storage where it gets difficult: wrong hints, rivals, threads at the first
read, memory that came from elsewhere.

What holds for every storage is in test_storage_suite.py.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base import buffers
from iobench.base.errors import StorageError
from iobench.storage.local import sinks
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.pairs import pairs
from tests.processes import descriptors, signal_at_line

BLOCK = 8 << 20
DATA = np.random.default_rng(3).bytes(2 * BLOCK + 4097)


@pytest.fixture
def local(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def files(storage: LocalStorage) -> list[str]:
    return sorted(
        str(path.relative_to(storage.root)) for path in storage.root.rglob("*") if path.is_file()
    )


HINTS = [0, 1, BLOCK - 1, BLOCK + 1, 3 * BLOCK]  # below a block, around it, and far too much
LENGTHS = [0, 4096, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 4097]


@pytest.mark.parametrize(("hint", "size", "durable"), pairs(HINTS, LENGTHS, [True, False]))
def test_a_wrong_hint_changes_nothing(
    local: LocalStorage, hint: int, size: int, durable: bool
) -> None:
    with local.create("x", size_hint=hint, durable=durable) as sink:
        for start in range(0, size, 5_000_017):
            sink.write(memoryview(DATA)[start : min(size, start + 5_000_017)])
    path = local.root / "x"
    assert path.stat().st_size == size
    assert path.read_bytes() == DATA[:size]
    assert (
        path.stat().st_blocks * 512 < size + 70_000
    )  # what was set aside for the hint was given back
    assert files(local) == ["x"]


def write_parallel(storage: LocalStorage, key: str) -> None:
    with storage.create_parallel(key, size=10_000, block_size=4096) as sink:
        sink.write_at(
            0, np.frombuffer(DATA[:10_000], np.uint8) if sink.alignment == 1 else aligned(12_288)
        )


def write_in_order(storage: LocalStorage, key: str, hint: int, durable: bool) -> None:
    with storage.create(key, size_hint=hint, durable=durable) as sink:
        sink.write(DATA[:10_000])


def aligned(size: int) -> Any:
    return buffers.private(size).array.data[:size]


def interrupted_at(line: int, write: Callable[[], None]) -> bool:
    """``write`` with Ctrl-C pressed before that line of ``iobench/storage`` runs; whether it had an
    effect.
    """
    gc.disable()  # no line of a storage that another test left, and that is collected here
    try:
        with signal_at_line(line, "iobench/storage/") as left:
            write()
    except KeyboardInterrupt:
        return True
    finally:
        gc.enable()
    return left[0] <= 0


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda storage, key: write_in_order(storage, key, 0, True), id="small"),
        pytest.param(
            lambda storage, key: write_in_order(storage, key, 0, False), id="small, not durable"
        ),
        pytest.param(lambda storage, key: write_in_order(storage, key, BLOCK, True), id="large"),
        pytest.param(write_parallel, id="parallel"),
    ],
)
def test_ctrl_c_at_any_line_leaves_the_whole_or_nothing(
    local: LocalStorage, write: Callable[[LocalStorage, str], None]
) -> None:
    """Pressed at line 1, 2, ... of the storage's code, until a write ends before it is."""
    for line in range(1, 1000):
        key = f"{line}.bin"
        if not interrupted_at(line, partial(write, local, key)):
            break
        left = [name for name in files(local) if name.startswith(key)]
        assert left in ([], [key]), f"line {line}"
        assert not left or (local.root / key).stat().st_size == 10_000, f"line {line}"
    assert 20 < line < 999
    assert (local.root / key).stat().st_size == 10_000


@pytest.mark.parametrize("hint", [0, BLOCK])
def test_a_write_leaves_the_callers_memory_alone(local: LocalStorage, hint: int) -> None:
    """Data may be reused as soon as write returns, although it goes to disk later."""
    scratch = bytearray(3_000_000)
    with local.create("x", size_hint=hint) as sink:
        for number in range(6):
            scratch[:] = bytes([number]) * len(scratch)
            sink.write(memoryview(scratch))
            scratch[:] = b"\xff" * len(scratch)
    assert (local.root / "x").read_bytes() == b"".join(
        bytes([number]) * len(scratch) for number in range(6)
    )


def test_large_objects_written_at_once_stay_apart(local: LocalStorage) -> None:
    def write(number: int) -> None:
        with local.create(f"k{number}", size_hint=BLOCK) as sink:
            for start in range(0, len(DATA), 3_000_000):
                sink.write(bytes([number]) * len(DATA[start : start + 3_000_000]))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        assert (local.root / f"k{number}").read_bytes() == bytes([number]) * len(DATA)


def test_what_is_removed_during_a_listing_is_left_out(local: LocalStorage) -> None:
    for key in ("a", "b", "c", "e/x", "f"):
        with local.create(key) as sink:
            sink.write(b"data")
    listing = local.list()
    assert next(listing).key == "a"
    local.delete("b")
    local.delete("e/x")
    (local.root / "e").rmdir()
    assert [entry.key for entry in listing] == ["c", "f"]


def test_folders_may_be_nested_deeper_than_calls(local: LocalStorage) -> None:
    depth = sys.getrecursionlimit() + 100
    folders = [f"{local.root}{'/d' * level}" for level in range(depth)]
    for folder in folders:
        os.mkdir(folder)
    try:
        with local.create("x") as sink:
            sink.write(b"data")
        Path(folders[-1], "y").touch()
        assert [(entry.key, entry.size) for entry in local.list()] == [
            ("x", 4),
            (f"{'d/' * (depth - 1)}y", 0),
        ]
    finally:  # what removes the folders of tests would recurse, too
        Path(folders[-1], "y").unlink(missing_ok=True)
        for folder in reversed(folders[1:]):
            os.rmdir(folder)


@pytest.mark.parametrize("hint", [0, BLOCK])
@pytest.mark.parametrize("written", [0, 10, 2 * BLOCK + 5])
def test_a_failed_write_leaves_neither_file_nor_descriptor(
    local: LocalStorage, hint: int, written: int
) -> None:
    before = descriptors()
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), local.create("a/x", size_hint=hint) as sink:  # noqa: PT012
            sink.write(DATA[:written])
            raise KeyboardInterrupt
    assert files(local) == []
    assert descriptors() <= before
    with local.create("a/x", size_hint=hint) as sink:  # nor does it stand in the way
        sink.write(b"done")
    assert (local.root / "a/x").read_bytes() == b"done"


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were flushed to disk, by the real call."""
    found: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        found.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return found


@pytest.mark.parametrize("hint", [0, BLOCK, None])
def test_a_durable_file_has_durable_folders(
    local: LocalStorage, synced: list[str], hint: int | None
) -> None:
    """A folder that is new has a name of its own to lose."""
    if hint is None:
        with local.create_parallel("a/b/x", size=4, block_size=4096) as blocks:
            blocks.write_at(0, buffers.private(4096).array.data)
    else:
        with local.create("a/b/x", size_hint=hint) as sink:
            sink.write(b"data")
    assert {str(local.root.parent), str(local.root), f"{local.root}/a", f"{local.root}/a/b"} <= set(
        synced
    )


@pytest.mark.parametrize("hint", [0, BLOCK])
def test_a_name_that_cannot_be_made_durable_is_taken_away(
    local: LocalStorage, monkeypatch: pytest.MonkeyPatch, hint: int
) -> None:
    local.root.mkdir()

    def refuse(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(sinks, "sync", refuse)
    with (
        pytest.raises(StorageError, match="Input/output error"),
        local.create("x", size_hint=hint) as sink,
    ):
        sink.write(b"data")
    assert files(local) == []


@pytest.mark.parametrize("hint", [0, BLOCK])
def test_a_link_in_the_place_of_an_unfinished_file_is_not_followed(
    local: LocalStorage, tmp_path: Path, hint: int
) -> None:
    (tmp_path / "mine").write_bytes(b"precious")
    local.root.mkdir()
    (local.root / "x.part").symlink_to(tmp_path / "mine")
    with (
        pytest.raises(StorageError, match="cannot create"),
        local.create("x", size_hint=hint) as sink,
    ):
        sink.write(b"data")
    assert (tmp_path / "mine").read_bytes() == b"precious"


@pytest.mark.parametrize("hint", [0, BLOCK])
def test_two_writers_never_mix(local: LocalStorage, hint: int) -> None:
    """Of two writers of one key at a time, one publishes what it wrote, and the other gets an
    error.
    """
    outcomes = []
    first, second = local.create("x", size_hint=hint), local.create("x", size_hint=hint)
    first.__enter__().write(b"first writer")
    try:
        second.__enter__().write(b"second")
        outcomes.append("opened")
    except StorageError:
        outcomes.append("refused")
    first.__exit__(None, None, None)
    assert (local.root / "x").read_bytes() == b"first writer"
    if outcomes == ["opened"]:
        with pytest.raises(StorageError):
            second.__exit__(None, None, None)
    assert (local.root / "x").read_bytes() == b"first writer"


@pytest.mark.parametrize("once", [True, False])
def test_threads_that_begin_together_open_nothing_twice(
    local: LocalStorage, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    with local.create("x") as sink:
        sink.write(DATA[:10_000])
    real = os.open

    def slow(*arguments: Any, **more: Any) -> int:
        fd = real(*arguments, **more)
        time.sleep(0.05)  # long enough for every thread to arrive here
        return fd

    before = descriptors()
    monkeypatch.setattr(os, "open", slow)
    results: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(
                local.read_into("x", 0, memoryview(bytearray(20_000)), once=once)
            )
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert results == [10_000] * 8
    assert len(descriptors() - before) <= 2  # the root, and the file
    local.close()
    assert descriptors() <= before


def test_what_a_file_system_refuses_is_one_line_with_the_key(tmp_path: Path) -> None:
    storage = ThrottledStorage(LocalStorage(tmp_path))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"x")
    memory = memoryview(bytearray(10))
    refused = {
        "folder": lambda: storage.read_into("folder", 0, memory),
        "folder ": lambda: storage.delete("folder"),
        "file/below": lambda: storage.read_into("file/below", 0, memory),
        "file/beneath": lambda: storage.create("file/beneath").__enter__(),
        "n" * 300: lambda: storage.create("n" * 300).__enter__(),
        "gone": lambda: storage.read_into("gone", 0, memory, once=True),
    }
    for key, call in refused.items():
        with pytest.raises(StorageError) as caught:
            call()
        assert key.strip() in str(caught.value)
    assert (tmp_path / "file").read_bytes() == b"x"
    assert list(storage.list("absent")) == []


def test_a_storage_that_nobody_closed_keeps_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "object").write_bytes(b"x")

    before = descriptors()
    storage = LocalStorage(tmp_path)
    storage.read_into("object", 0, memoryview(bytearray(1)))
    assert len(descriptors() - before) == 2
    del storage
    assert descriptors() <= before
