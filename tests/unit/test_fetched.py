"""What processes made the storage deliver: real processes, and files that are cold or cached."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import subprocess
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from iobench.base import pagecache
from iobench.host import fetched
from iobench.host.fetched import fetched_by_family, probe
from iobench.storage.files import StorageFile
from iobench.storage.simulated.memory import MemoryStorage
from tests.children import in_child

FORK = multiprocessing.get_context("fork")
SIZE = 4 << 20
"""Much beside the pages of programs that a fresh machine, or one short of memory, fetches."""


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Files on a disk, and not in the page cache."""
    paths = [tmp_path / f"{number}" for number in range(4)]
    for path in paths:
        path.write_bytes(os.urandom(SIZE))
    if probe(paths):
        pytest.skip(f"reads of {tmp_path} are not counted: {probe(paths)}")
    pagecache.evict(paths)
    return paths


def read(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead
    os.pread(fd, SIZE, 0)
    os.close(fd)


def in_a_process(body: Callable[[], Any]) -> Any:
    """What ``body`` returns in a process of its own: here, others' children would count as well."""
    return in_child(body).value


def child(body: Callable[[], None]) -> int:
    """A child that runs ``body`` and ends."""
    pid = os.fork()
    if not pid:
        body()
        os._exit(0)
    return pid


def wait_for_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def grown(steps: list[Callable[[], object]]) -> list[int | None]:
    """How many files' bytes the family's count has grown by after each step; None: inconclusive.

    Rounded: a host that is short of memory may have to fetch a page of a program again.
    """
    before = fetched_by_family()
    found: list[int | None] = []
    for step in steps:
        step()
        now = fetched_by_family()
        found.append(None if now is None else round((now - before) / SIZE))
    return found


def test_own_reads_count_once_and_cached_ones_do_not(files: list[Path]) -> None:
    steps = [lambda: read(files[0]), lambda: read(files[0]), lambda: read(files[1])]
    assert in_a_process(lambda: grown(steps)) == [1, 1, 2]


def test_a_child_counts_while_it_lives_as_a_zombie_and_after_it_was_waited_for(
    files: list[Path],
) -> None:
    def family() -> list[int | None]:
        pids: list[int] = []
        begun, end = os.pipe(), os.pipe()

        def reads_and_stays() -> None:
            read(files[0])
            os.write(begun[1], b"x")
            os.read(end[0], 1)

        def start() -> None:
            pids.append(child(reads_and_stays))
            os.read(begun[0], 1)

        def leave() -> None:
            os.write(end[1], b"x")
            wait_for_zombie(pids[0])

        return grown([start, leave, lambda: os.waitpid(pids[0], 0)])

    zombie = 1 if os.geteuid() == 0 else None
    assert in_a_process(family) == [1, zombie, 1]


def test_what_others_read_does_not_count(files: list[Path]) -> None:
    """A process beside this family reads a file, so the family's own read comes from the cache."""

    def family() -> list[int | None]:
        return grown([lambda: others.send(files[0]) or others.recv(), lambda: read(files[0])])

    others, its = FORK.Pipe()
    reader = FORK.Process(target=_read_what_is_sent, args=(its,))
    reader.start()
    assert in_a_process(family) == [0, 0]
    others.send(None)
    reader.join()


def _read_what_is_sent(pipe: Connection) -> None:
    while (path := pipe.recv()) is not None:
        read(path)
        pipe.send(True)


def test_processes_that_come_and_go_are_not_lost(files: list[Path]) -> None:
    """Snapshots while children end and are waited for: the count never falls, and ends exactly."""

    def family() -> tuple[bool, int]:
        counts = [fetched_by_family()]
        for path in files:
            pid = child(lambda path=path: read(path))  # type: ignore[misc]
            while not os.waitpid(pid, os.WNOHANG)[0]:
                counts.append(fetched_by_family())
        counts.append(fetched_by_family())
        known = [count for count in counts if count is not None]
        return known == sorted(known), round((known[-1] - known[0]) / SIZE)

    assert in_a_process(family) == (True, len(files))


# Whether the counter works


def test_the_probe_tells_disks_from_memory(files: list[Path]) -> None:
    assert probe(files) == ""
    assert probe(files, direct=True) == ""
    memory = Path(f"/dev/shm/iobench-{os.getpid()}-probe")
    kind = subprocess.run(["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, check=True)
    if kind.stdout.strip() != b"tmpfs":
        pytest.skip("/dev/shm is no tmpfs")
    try:
        memory.write_bytes(files[0].read_bytes())
        assert "counted 0 B" in probe([memory])
    finally:
        memory.unlink()


def test_the_probe_never_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").touch()
    assert probe([])
    assert probe([tmp_path / "empty"])
    assert "No such file" in probe([tmp_path / "gone"])
    (tmp_path / "full").write_bytes(b"x" * 5000)
    monkeypatch.setattr(fetched, "_read_bytes", lambda path: None)
    assert "/proc/PID/io" in probe([tmp_path / "full"])
    assert fetched_by_family() is None


# Files of a storage


DATA = random.Random(4).randbytes(10_007)


@pytest.mark.parametrize("size", [None, len(DATA)])
def test_it_reads_as_a_file_of_the_same_bytes(size: int | None) -> None:
    file, truth = (
        StorageFile(MemoryStorage(objects={"a": memoryview(DATA)}), "a", size),
        io.BytesIO(DATA),
    )
    within = ((0, 0, 7), (5_000, 0, 10), (3, 1, 100), (-9, 2, 100), (-1, 1, 1))
    beyond = ((20_000, 0, 5), (-20_000, 1, 5), (0, 2, 1))
    for offset, whence, count in within + beyond:
        assert file.seek(offset, whence) == truth.seek(offset, whence)
        assert file.read(count) == truth.read(count)
        assert file.tell() == truth.tell()
