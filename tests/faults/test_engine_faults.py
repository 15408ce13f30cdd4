"""Both read engines where something goes wrong: short reads, signals, forks, files that change,
few descriptors, little locked memory, and Ctrl-C at any place.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from iobench.base import buffers
from iobench.base.errors import StorageError
from iobench.load.engines import uring as uring_engine
from iobench.load.engines.base import Extent, ReadEngine
from iobench.storage.base import Buffer
from iobench.storage.local import uring
from iobench.storage.local.storage import LocalStorage
from tests.children import in_child
from tests.conftest import ENGINES
from tests.engines import end, open_engine
from tests.pairs import pairs
from tests.processes import PATIENCE_S, descriptors, signal_at_line, wait_until

CONTENT = np.random.default_rng(5).integers(1, 256, 200_000, np.uint8).tobytes()  # no zero
LENGTH = 1000
COUNT = 600


def crossed(**values: list[Any]) -> pytest.MarkDecorator:
    """Every two of these values, of ``once`` and of the engines meet in a case."""
    cases = pairs(*values.values(), [True, False], ENGINES)
    return pytest.mark.parametrize((*values, "once", "engine"), cases, indirect=["engine"])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("files")
    (root / "x").write_bytes(CONTENT)
    (root / "many").mkdir()
    for number in range(COUNT):
        (root / "many" / f"{number}").write_bytes(part(number))
    return root


def part(number: int) -> bytes:
    """The content of ``many/number``."""
    return CONTENT[number * 7 :][:LENGTH]


def files(numbers: range, length: int = LENGTH) -> list[Extent]:
    return [
        Extent(f"many/{number}", 0, length, length * at, LENGTH)
        for at, number in enumerate(numbers)
    ]


def truth(numbers: range) -> bytes:
    return b"".join(part(number) for number in numbers)


def sampled(memory: npt.NDArray[np.uint8]) -> bytes:
    """What ``files(..., 4096)`` were read to."""
    return memory.reshape(-1, 4096)[:, :LENGTH].tobytes()


def whole() -> list[Extent]:
    """The one large file, in pieces of which some are longer than a block."""
    step = 12_500
    return [Extent("x", start, step, start, step) for start in range(0, len(CONTENT), step)]


@pytest.fixture
def make(root: Path, engine: str) -> Iterator[Callable[..., ReadEngine]]:
    """Engines that are closed with the test, after which no descriptor may be left."""
    made: list[ReadEngine] = []
    held = descriptors()

    def over(storage: LocalStorage | None = None, **more: Any) -> ReadEngine:
        made.append(open_engine(engine, storage or LocalStorage(root), **more))
        return made[-1]

    yield over
    for reads in made:
        end(reads)
    made.clear()
    assert descriptors() <= held


def both_ways(reads: ReadEngine) -> None:
    """Reads whole batches at once, and several ahead: every byte must be right."""
    memory = bytearray(len(CONTENT))
    assert reads.read(whole(), memoryview(memory)) == len(CONTENT)
    assert memory == CONTENT
    several = [range(start, start + 90) for start in range(0, 360, 90)]
    memories = [bytearray(90 * LENGTH) for _ in several]
    begun = [
        reads.begin(files(numbers), memoryview(memory))
        for numbers, memory in zip(several, memories, strict=True)
    ]
    for reading, numbers, memory in zip(begun, several, memories, strict=True):
        assert reads.wait(reading) == 90 * LENGTH
        assert memory == truth(numbers)
    assert reads.read(files(range(100)), None) == 100 * LENGTH


# What the kernel may answer


class Told(uring.Ring):
    """A ring whose completions of some requests are changed, from what the kernel said.

    ``chosen`` says which requests, and ``answer`` what is told of one that has read something.
    """

    changed = 0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.watched: set[int] = set()

    def chosen(self, requests: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
        return requests["opcode"] != uring.OPENAT  # type: ignore[no-any-return]

    def answer(self, result: int) -> int:
        raise NotImplementedError

    def put(self, requests: npt.NDArray[np.void]) -> None:
        self.watched -= set(requests["user"].tolist())
        self.watched |= set(requests["user"][self.chosen(requests)].tolist())
        super().put(requests)

    def completions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        users, results = super().completions()
        for at, (user, result) in enumerate(zip(users.tolist(), results.tolist(), strict=True)):
            if user in self.watched and result > 0:
                results[at] = told = self.answer(result)
                type(self).changed += told != result
        return users, results

    def few_completions(self) -> list[tuple[int, int]]:
        users, results = self.completions()
        return list(zip(users.tolist(), results.tolist(), strict=True))


@pytest.mark.parametrize(
    ("what", "once"), [("short", True), ("short", False), ("EINTR", True), ("EAGAIN", False)]
)
@pytest.mark.parametrize("engine", ["io_uring"], indirect=True)
def test_a_ring_that_is_disturbed(
    make: Callable[..., ReadEngine], what: str, once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = iter(range(1 << 30))

    class Disturbed(Told):
        def answer(self, result: int) -> int:
            """Every other one."""
            if not next(turn) % 2:
                return result
            return max(1, result // 3) if what == "short" else -getattr(errno, what)

    monkeypatch.setattr(uring_engine, "Ring", Disturbed)
    both_ways(make(once=once, concurrency=7))
    assert Disturbed.changed > 100


@pytest.mark.parametrize(
    ("what", "once"), [("EFAULT", True), ("EINVAL", False), ("EOPNOTSUPP", True)]
)
@pytest.mark.parametrize("engine", ["io_uring"], indirect=True)
def test_registered_memory_that_is_refused(
    make: Callable[..., ReadEngine],
    root: Path,
    what: str,
    once: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file system that can't read into registered memory, as the kernel answers for it: it is
    read as any other memory, and not tried again for each batch.
    """

    class NoRegisteredMemory(Told):
        def chosen(self, requests: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
            return requests["opcode"] == uring.READ_FIXED  # type: ignore[no-any-return]

        def answer(self, result: int) -> int:
            return -getattr(errno, what)

    monkeypatch.setattr(uring_engine, "Ring", NoRegisteredMemory)
    reads = make(LocalStorage(root, direct=True), once=once, concurrency=7)
    memory = buffers.private(90 * 4096).array
    reads.register(memory.data)
    for numbers in (range(90), range(90, 180), range(7)):
        memory[:] = 0
        assert reads.read(files(numbers, 4096), memory.data) == len(numbers) * LENGTH
        assert sampled(memory[: len(numbers) * 4096]) == truth(numbers)
    assert 0 < NoRegisteredMemory.changed <= 90


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("engine", ["threads"], indirect=True)
def test_calls_that_read_less(
    make: Callable[..., ReadEngine], once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv, calls = os.preadv, []

    def less(fd: int, memories: Any, offset: int, flags: int = 0) -> int:
        calls.append(fd)
        (memory,) = memories
        few = max(1, len(memory) // 3) if len(calls) % 2 else len(memory)
        return preadv(fd, (memory[:few],), offset, flags)

    monkeypatch.setattr(os, "preadv", less)
    both_ways(make(once=once, concurrency=7))
    assert len(calls) > 500


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("engine", ["io_uring"], indirect=True)
def test_calls_that_hand_nothing_over(
    make: Callable[..., ReadEngine], once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As io_uring_enter does with EAGAIN and EBUSY: the requests wait for a later call.

    The kernel copies a path when it takes the request, so that the path must last until then.
    """

    class Refusing(uring.Ring):
        calls = 0
        lost = 0

        def put(self, requests: npt.NDArray[np.void]) -> None:
            addresses = requests["address"][requests["opcode"] == uring.OPENAT].tolist()
            self.paths: dict[int, bytes] = getattr(self, "paths", {})
            self.paths |= {address: ctypes.string_at(address) for address in addresses}
            super().put(requests)

        def enter(self, wait: int) -> None:
            type(self).calls += 1
            if type(self).calls % 3 == 0:
                for address, path in self.paths.items():
                    type(self).lost += ctypes.string_at(address) != path
                self.paths.clear()
                super().enter(wait)

    monkeypatch.setattr(uring_engine, "Ring", Refusing)
    both_ways(make(once=once, concurrency=7))
    assert Refusing.calls > 100
    assert Refusing.lost == 0


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("engine", ["io_uring"], indirect=True)
def test_a_completion_queue_that_is_full(
    make: Callable[..., ReadEngine], once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that do nothing fill it before every call; the kernel keeps what has no room."""
    strange = 7 << 50

    class Crowded(Told):
        full = 0
        left = 0

        def enter(self, wait: int) -> None:
            super().enter(0)
            nothing = np.zeros(self.entries, uring.REQUEST)
            nothing["user"] = strange
            many = 3 * self.entries if self.left < self.entries else 0  # the queue has room for 2
            while self.left < many:
                super().put(nothing)
                super().enter(0)
                self.left += len(nothing)
            super().enter(wait)

        def completions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
            users, results = uring.Ring.completions(self)
            type(self).full += len(users) >= 2 * self.entries
            ours = users == strange
            self.left -= int(ours.sum())
            return users[~ours], results[~ours]

    monkeypatch.setattr(uring_engine, "Ring", Crowded)
    both_ways(make(once=once, concurrency=7))
    assert Crowded.full > 10


@contextmanager
def signalled(number: int, when: Callable[[], bool], *, again: bool = False) -> Iterator[None]:
    """Send this thread a signal once ``when`` is true, or as often as it is."""
    thread, ended = threading.get_ident(), threading.Event()

    def send() -> None:
        while not ended.wait(0.0005):
            if when():
                signal.pthread_kill(thread, number)
                if not again:
                    return

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        ended.set()
        sender.join()


@pytest.mark.parametrize("once", [True, False])
def test_signals_that_keep_coming(make: Callable[..., ReadEngine], root: Path, once: bool) -> None:
    seen: list[int] = []
    usual = signal.signal(signal.SIGUSR1, lambda number, _: seen.append(number))
    storage = LocalStorage(root, direct=True)
    memory = buffers.private(1 << 20).array
    reads = make(storage, once=once, concurrency=8)
    reads.register(memory.data)
    extents = files(range(200), 4096)
    try:
        with signalled(signal.SIGUSR1, lambda: True, again=True):
            deadline = time.monotonic() + PATIENCE_S
            while len(seen) < 100 and time.monotonic() < deadline:
                memory[:] = 0
                assert reads.read(extents, memory.data) == 200 * LENGTH
                assert sampled(memory[: 200 * 4096]) == truth(range(200))
    finally:
        signal.signal(signal.SIGUSR1, usual)
    assert len(seen) >= 100


@pytest.mark.parametrize("once", [True, False])
def test_a_batch_that_was_given_up_says_so(make: Callable[..., ReadEngine], once: bool) -> None:
    """Its bytes may be missing, so that nobody may take it for one that was read."""
    reads = make(once=once)
    memory = bytearray(90 * LENGTH)
    begun = [reads.begin(files(range(90)), memoryview(memory)) for _ in range(3)]
    assert reads.wait(begun[0]) == 90 * LENGTH
    reads.settle()
    for reading in begun[1:]:
        with pytest.raises(StorageError, match="given up"):
            reads.wait(reading)
    both_ways(reads)


# Forks


@crossed(when=["before", "after", "in flight", "in flight, and it closes"])
def test_a_child_and_its_parent_read_on(
    make: Callable[..., ReadEngine], root: Path, when: str, once: bool
) -> None:
    storage = LocalStorage(root, direct=True)
    reads = make(storage, once=once, concurrency=8)
    room = 40 * 4096
    memory = buffers.private(3 * room).array
    reads.register(memory.data)
    memories = [memory[at * room :][:room] for at in range(3)]
    batches = [range(at * 40, at * 40 + 40) for at in range(3)]
    if when != "before":
        reads.read(files(batches[0], 4096), memories[0].data)
    begun = []
    if "in flight" in when:
        begun = [
            reads.begin(files(numbers, 4096), piece.data)
            for numbers, piece in zip(batches, memories, strict=True)
        ]

    def child() -> bool:
        fresh = buffers.private(room).array
        reads.register(fresh.data)
        if when.endswith("closes"):
            end(reads)
        right = True
        for numbers in reversed(batches):
            fresh[:] = 0
            count = reads.read(files(numbers, 4096), fresh.data)
            right &= count == 40 * LENGTH and sampled(fresh[:room]) == truth(numbers)
        held = descriptors()
        reads.read(files(batches[0], 4096), fresh.data)
        right &= descriptors() <= held
        end(reads)
        return right

    assert in_child(child).value is True
    for at, numbers in enumerate(batches):
        if begun:
            assert reads.wait(begun[at]) == 40 * LENGTH
        else:
            assert reads.read(files(numbers, 4096), memories[at].data) == 40 * LENGTH
        assert sampled(memories[at]) == truth(numbers)


# Files that change


@crossed(direct=[True, False])
def test_a_file_that_changes_its_size(
    make: Callable[..., ReadEngine], tmp_path: Path, once: bool, direct: bool
) -> None:
    (tmp_path / "x").write_bytes(CONTENT[:40_960])
    reads = make(LocalStorage(tmp_path, direct=direct), once=once, block_size=8192)
    memory = buffers.private(65_536).array
    asked = [Extent("x", 0, 40_960, 0, 40_960)]
    assert reads.read(asked, memory.data) == 40_960
    os.truncate(tmp_path / "x", 20_480)
    with pytest.raises(StorageError, match=r"x ends at byte (20480|2457\d|3276\d), but \d+ bytes"):
        reads.read(asked, memory.data)
    few = [Extent("x", 0, 40_960, 0, 20_480)]
    assert reads.read(few, memory.data) == 20_480
    os.truncate(tmp_path / "x", 0)
    with pytest.raises(StorageError, match="x ends at byte"):
        reads.read(few, memory.data)
    (tmp_path / "x").write_bytes(CONTENT[:61_440])
    memory[:] = 0
    assert reads.read([Extent("x", 0, 61_440, 0, 61_440)], memory.data) == 61_440
    assert memory[:61_440].tobytes() == CONTENT[:61_440]


# Few descriptors, little locked memory


@pytest.mark.parametrize(
    ("concurrency", "once", "engine"),
    [(256, True, "threads"), (64, False, "io_uring")],
    indirect=["engine"],
)
def test_far_more_files_than_descriptors(
    root: Path, engine: str, concurrency: int, once: bool
) -> None:
    """Six hundred files, of which several batches are begun, and a tenth of the descriptors."""

    def child() -> bool:
        most = max(map(int, os.listdir("/proc/self/fd"))) + 60
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        reads = open_engine(engine, LocalStorage(root), once=once, concurrency=concurrency)
        before = descriptors()
        memory = bytearray(COUNT * LENGTH)
        batches = [range(at, at + 100) for at in range(0, COUNT, 100)]
        try:
            ahead = [
                reads.begin(files(numbers), memoryview(memory)[numbers[0] * LENGTH :])
                for numbers in batches
            ]
            right = all(reads.wait(reading) == 100 * LENGTH for reading in ahead)
            right &= memory == truth(range(COUNT))
            right &= reads.read(files(range(COUNT)), None) == COUNT * LENGTH
        finally:
            end(reads)  # what measures this child needs a descriptor
        return right and descriptors() <= before

    assert in_child(child, room=64 << 30).value is True  # 256 threads have stacks


def without_right_to_lock() -> None:
    """Give up CAP_IPC_LOCK in this process: root may lock any amount of memory."""

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    header, rights = Header(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.capget(ctypes.byref(header), rights) == 0
    rights[0] &= ~(1 << 14)  # effective
    rights[1] &= ~(1 << 14)  # permitted
    assert libc.capset(ctypes.byref(header), rights) == 0


@crossed(limit=[0, 64 << 10])
def test_little_memory_that_may_be_locked(root: Path, engine: str, once: bool, limit: int) -> None:
    def child() -> bool:
        without_right_to_lock()
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
        reads = open_engine(
            engine, LocalStorage(root), once=once, concurrency=32, block_size=65_536
        )
        reads.reserve()
        try:
            both_ways(reads)
        except StorageError as error:  # before Linux 5.12 the ring itself is locked memory
            return "cannot make a ring of io_uring" in str(error)
        end(reads)
        direct = open_engine(engine, LocalStorage(root, direct=True), once=once)
        memory = buffers.private(1 << 20).array
        direct.register(memory.data)  # more than may be locked
        count = direct.read(files(range(200), 4096), memory.data)
        end(direct)
        return count == 200 * LENGTH and sampled(memory[: 200 * 4096]) == truth(range(200))

    assert in_child(child).value is True


# Ctrl-C


class Slow(LocalStorage):
    """Reads take long enough to be in flight when an interrupt comes. For threads."""

    reading = 0
    counted = threading.Lock()

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        with self.counted:
            Slow.reading += 1
        try:
            time.sleep(0.001)
            return super().read_into(key, offset, buffer, once=once)
        finally:
            with self.counted:
                Slow.reading -= 1


def slow_storage(engine: str, root: Path) -> LocalStorage:
    """Direct reads of the ring last until it collects them, or a little shorter."""
    return Slow(root) if engine == "threads" else LocalStorage(root, direct=True)


CODE = ("load/engines/base.py", "engines/threads.py", "engines/uring.py", "local/uring.py")


def batch_of(memory: npt.NDArray[np.uint8], numbers: range) -> tuple[list[Extent], memoryview]:
    return files(numbers, 4096), memory.data[: len(numbers) * 4096]


def ways_to_read(reads: ReadEngine, memory: npt.NDArray[np.uint8]) -> dict[str, Callable[[], None]]:
    """What a loader may be doing when the interrupt comes."""

    def ahead() -> None:
        begun = [
            reads.begin(*batch_of(memory[4096 * at :], range(at, at + 3))) for at in range(0, 9, 3)
        ]
        for reading in begun:
            reads.wait(reading)

    def given_up() -> None:
        reads.begin(*batch_of(memory, range(9)))
        reads.settle()

    return {
        "read": lambda: reads.read(*batch_of(memory, range(9))) and None,
        "ahead": ahead,
        "given up": given_up,
    }


@crossed(way=["read", "ahead", "given up"])
def test_an_interrupt_at_any_line(root: Path, engine: str, way: str, once: bool) -> None:
    """Nothing is written afterwards, no descriptor is left, and the engine reads on.

    In a child process, which can be killed where an engine waits for ever.
    """

    def child() -> list[tuple[int, str]]:
        memory, fresh = (buffers.private(9 * 4096).array for _ in range(2))
        reads = open_engine(engine, slow_storage(engine, root), once=once, concurrency=3)
        reads.read(*batch_of(fresh, range(9)))
        end(reads)
        held = descriptors()
        wrong: list[tuple[int, str]] = []
        step = 13 if engine == "io_uring" else 4  # lines of code
        at, ended = 1, False
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # it ends this process, and tells where it is
        faulthandler.register(signal.SIGALRM, sys.__stderr__, chain=True)
        while not ended:
            signal.alarm(int(PATIENCE_S / 4))
            if at % 2:
                reads.read(*batch_of(fresh, range(2)))  # the ring is there already, or not
            with suppress(KeyboardInterrupt), signal_at_line(at, *CODE) as left:
                reads.register(memory.data)
                ways_to_read(reads, memory)[way]()
            ended = left[0] > 0
            if way != "read":
                reads.settle()
            memory[:] = 0
            fresh[:] = 0
            wait_until(lambda: not Slow.reading, "a read is left")
            count = reads.read(*batch_of(fresh, range(9)))
            if count != 9 * LENGTH or sampled(fresh) != truth(range(9)):
                wrong.append((at, "the next read is wrong"))
            end(reads)
            if memory.any():
                wrong.append((at, "memory was written afterwards"))
            if left_open := descriptors() - held:
                wrong.append((at, f"left open: {left_open}"))
                held |= left_open
            at += step
        signal.alarm(0)
        return wrong if at > 5 * step else [(at, "no line was interrupted")]

    assert in_child(child).value == []


class Pipes(LocalStorage):
    """Its files are pipes whose data comes when a test writes it: reads that last. For a ring."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.ends: list[int] = []

    def may_open(self, key: str) -> bool:
        return False

    def open_file(self, key: str) -> int:
        reading, writing = os.pipe()
        self.ends.append(writing)
        return reading


@pytest.mark.parametrize("engine", ["io_uring"], indirect=True)
@pytest.mark.parametrize(("once", "ahead"), [(True, True), (False, False)])
def test_ctrl_c_cancels_reads_that_would_never_end(
    make: Callable[..., ReadEngine], root: Path, once: bool, ahead: bool
) -> None:
    storage = Pipes(root)
    reads = make(storage, once=once, concurrency=4)
    memory = bytearray(12 * LENGTH)

    def work() -> None:
        if not ahead:
            reads.read(files(range(12)), memoryview(memory))
            return
        begun = [
            reads.begin(files(range(at, at + 3)), memoryview(memory)[at * LENGTH :])
            for at in range(0, 12, 3)
        ]
        reads.wait(begun[2])

    with pytest.raises(KeyboardInterrupt), signalled(signal.SIGINT, lambda: len(storage.ends) >= 4):
        work()
    assert len(storage.ends) >= 4
    for writing in storage.ends:
        with suppress(BrokenPipeError):  # closed, as it should be
            os.write(writing, b"x" * LENGTH)
        os.close(writing)
    storage.ends.clear()
    fresh = bytearray(11)
    again = reads.begin([Extent("other", 0, 10, 0, 10)], memoryview(fresh))
    for writing in storage.ends:
        os.write(writing, b"y" * 10)
        os.close(writing)
    assert reads.wait(again) == 10
    assert fresh == b"y" * 10 + b"\0"
    assert not any(memory)
