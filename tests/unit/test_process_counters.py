"""The files that a process opens, and the counters of the kernel that are read for each batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from iobench.subject import process
from iobench.subject.process import Kept, KernelCounters


class Names:
    """Keeps the names of files called "a", since Python opens others."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.closed = False

    def opened(self, names: set[str]) -> bool:
        if not self.closed:
            self.heard += [name for name in names if os.path.basename(name) == "a"]
        return not self.closed


@pytest.fixture
def names() -> Iterator[Names]:
    made = Names()
    process.listen(made)
    yield made
    process.leave(made)


def test_a_child_tells_nobody(names: Names, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    pid = os.fork()
    if not pid:
        path.read_bytes()
        process.tell()
        os._exit(len(names.heard))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_bytes_of_reads_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(1 << 20))
    counters = KernelCounters()
    before = counters.io_bytes()
    path.read_bytes()
    after = counters.io_bytes()
    counters.close()
    if before is None or after is None:
        pytest.skip("the kernel does not tell /proc/self/io")
    assert 1 << 20 <= after.calls - before.calls < 2 << 20  # other threads read, too
    assert counters.queued_ns() >= 0
    counters.close()


def test_a_number_that_the_user_took_is_neither_read_nor_closed(tmp_path: Path) -> None:
    kept = Kept("/proc/self/schedstat")
    if kept.read(_numbers) is None:
        pytest.skip("the kernel does not tell /proc/self/schedstat")
    taken = kept.file
    (tmp_path / "a").write_bytes(b"not numbers")
    os.close(taken)
    theirs = os.open(tmp_path / "a", os.O_RDONLY)
    assert theirs == taken
    found = kept.read(_numbers)
    assert found is not None
    assert len(found) == 3
    assert kept.file != taken
    kept.close()
    assert os.read(theirs, 3) == b"not"
    os.close(theirs)


def _numbers(raw: bytes) -> list[int]:
    return [int(each) for each in raw.split()]
