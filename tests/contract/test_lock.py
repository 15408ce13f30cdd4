"""Locks on every kind of storage: flock on local files, lock objects elsewhere, heartbeats."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from iobench.base.errors import (
    MissingObjectError,
    TargetHeldError,
    TargetLostError,
    TargetRefusedError,
)
from iobench.storage import open_storage
from iobench.storage.base import Storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks import flocks, object_lease, object_lock
from iobench.storage.locks import holder as holder_module
from iobench.storage.locks.holder import BODY_BYTES, Holder, is_alive, parse_holder, start_of
from iobench.storage.locks.lock import exclusive, shared
from iobench.storage.locks.objects import (
    LOCK,
    is_lock_name,
    make_beat,
    read_holder,
    reader_key,
    remove_if_ours,
)
from iobench.storage.simulated.memory import MemoryStorage
from tests.processes import check_ended, descriptors, family, wait_until
from tests.servers.faultproxy import Fault, FaultProxy
from tests.servers.nfs import nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment, swift_s3

__all__ = ["nfs_server", "rclone_s3", "s3_environment", "swift_s3"]

MARKER = ".marker"
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_lock, "YIELD_S", 0.25)
    monkeypatch.setattr(object_lock, "WATCH_S", 0.15)
    monkeypatch.setattr(object_lock, "SETTLE_S", 0.1)
    monkeypatch.setattr(flocks, "WAIT_S", 0.25)


def no_flock(fd: int, operation: int) -> None:
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))


SWIFT = pytest.param("swift", marks=pytest.mark.nightly)
KINDS = ["local", "local without flock", "files by fsspec", SWIFT]
OBJECTS = KINDS[1:]
UNLOCKED = ["memory", "rclone"]
"""Their servers create an object twice."""


@pytest.fixture(params=KINDS)
def storage(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    s3_environment: Mapping[str, str],
) -> Iterator[Storage]:
    """A place with a marker and with data."""
    kind = request.param
    if kind == "local without flock":
        monkeypatch.setattr(fcntl, "flock", no_flock)
    if kind in ("rclone", "swift"):
        server: S3Server = request.getfixturevalue(f"{kind}_s3")
        url = server.url()
    else:
        url = {
            "memory": f"memory://bucket/lock{next(_numbers)}",
            "files by fsspec": f"local://{tmp_path}/root",
        }.get(kind, str(tmp_path / "root"))
    place = open_storage(url)
    for name in (MARKER, "data"):
        with place.create(name) as sink:
            sink.write(b"x")
    yield place
    for entry in list(place.list()):
        place.delete(entry.key)
    place.close()
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def names(storage: Storage) -> list[str]:
    return sorted(entry.key for entry in storage.list())


@contextmanager
def in_a_fork(work: Callable[[], Any]) -> Iterator[int]:
    """The context manager that ``work`` makes, entered by a forked process; its pid."""
    ours, theirs = os.pipe()
    back, tell = os.pipe()
    child = os.fork()
    if not child:
        os.close(theirs)
        try:
            with work():
                os.write(tell, b"+")
                os.read(ours, 1)
        finally:
            os._exit(0)
    os.close(ours)
    os.close(tell)
    try:
        assert os.read(back, 1) == b"+"
        yield child
    finally:
        os.close(theirs)
        os.close(back)
        os.waitpid(child, 0)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: start_of(pid) is None, "it does not die")


def another_host(verb: str = "generate", **changes: Any) -> Holder:
    """Of a process that nobody here can see."""
    found = Holder.this_process(verb)
    return replace(found, host="far-away", boot="0-0-0", pid=17, started=3, **changes)


def a_dead_process(verb: str = "generate") -> Holder:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    found = replace(Holder.this_process(verb), pid=ended.pid)
    ended.wait()
    return found


def refused(
    hold: Any,
    storage: Storage,
    match: str | None = None,
    *,
    error: type[Exception] = TargetHeldError,
    break_dead: bool = False,
) -> str:
    """The one line that says why a lock can't be had."""
    holding = hold(storage, MARKER, verb="clean", break_dead=break_dead)
    with pytest.raises(error, match=match) as caught, holding:
        pass
    return str(caught.value)


def taken(hold: Any, storage: Storage, **more: Any) -> None:
    """It can be had."""
    with hold(storage, MARKER, verb="clean", **more):
        pass


def test_one_writer(storage: Storage, nothing_left: set[int]) -> None:
    with exclusive(storage, MARKER, verb="generate") as lease:
        lease.check()
        lease.confirm()
        for hold in (exclusive, shared):
            assert str(os.getpid()) in refused(hold, storage, "is in use by")
    taken(exclusive, storage)
    assert names(storage) == [MARKER, "data"]


def test_many_readers(storage: Storage, nothing_left: set[int]) -> None:
    with shared(storage, MARKER, verb="run") as first, shared(storage, MARKER, verb="verify"):
        first.check()
        assert first.unregistered == ""
        assert first.others() == []  # both are this process
        refused(exclusive, storage)
        first.confirm()
    taken(exclusive, storage)
    assert names(storage) == [MARKER, "data"]


def test_readers_see_one_another(storage: Storage) -> None:
    with shared(storage, MARKER, verb="run") as lease:
        with in_a_fork(lambda: shared(storage, MARKER, verb="run")) as child:
            (other,) = lease.others()
            assert str(child) in other
        assert lease.others() == []
    assert names(storage) == [MARKER, "data"]


def test_a_dead_writer_keeps_nobody_out(storage: Storage) -> None:
    with in_a_fork(lambda: exclusive(storage, MARKER, verb="generate")) as child:
        refused(shared, storage)
        kill(child)
        taken(shared, storage)
        taken(exclusive, storage)
    assert names(storage) == [MARKER, "data"]


def test_dead_readers_are_swept_away(storage: Storage) -> None:
    with in_a_fork(lambda: shared(storage, MARKER, verb="run")) as child:
        kill(child)
        taken(exclusive, storage)
    assert names(storage) == [MARKER, "data"]


@pytest.mark.parametrize("storage", ["local"], indirect=True)
class TestFiles:
    def test_a_worker_that_outlives_its_parent_keeps_the_lock(self, storage: LocalStorage) -> None:
        """Its parent, which took the lock, is dead; the worker writes on, and is waited for."""
        ours, theirs = os.pipe()
        ends, lives = os.pipe()  # the worker has the other end as long as it lives
        parent = os.fork()
        if not parent:
            os.close(theirs)
            flocks.hold(
                storage.root / MARKER, exclusive=True
            )._pid = -1  # never released by this code
            if os.fork() == 0:
                os.read(ours, 1)
            os._exit(0)
        os.close(ours)
        os.close(lives)
        os.waitpid(parent, 0)
        refused(exclusive, storage, "another process")
        os.close(theirs)  # the worker ends, which takes a while on a busy machine
        assert os.read(ends, 1) == b""
        os.close(ends)
        taken(exclusive, storage)

    def test_a_marker_that_is_gone(self, storage: LocalStorage) -> None:
        storage.delete(MARKER)
        refused(exclusive, storage, error=MissingObjectError)
        with exclusive(storage, MARKER, verb="sweep", make=True):
            assert (storage.root / MARKER).is_file()

    def test_a_marker_that_is_replaced_is_noticed(self, storage: LocalStorage) -> None:
        with exclusive(storage, MARKER, verb="generate") as lease:
            lease.check()
            storage.replace(MARKER, b"another's")
            with pytest.raises(TargetLostError, match="removed or replaced"):
                lease.check()

    def test_a_marker_that_was_removed_between_open_and_lock(
        self, storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who has the old one has nothing: the new one is locked."""
        real, replaced = fcntl.flock, []

        def late(fd: int, operation: int) -> None:
            if not replaced:
                replaced.append(storage.replace(MARKER, b"new"))
            real(fd, operation)

        monkeypatch.setattr(fcntl, "flock", late)
        with exclusive(storage, MARKER, verb="clean") as lease:
            lease.check()
        assert len(replaced) == 1

    @pytest.mark.parametrize("what", ["fifo", "folder", "link", "socket"])
    @pytest.mark.parametrize("hold", [exclusive, shared])
    def test_no_regular_file_is_ever_waited_for(
        self, storage: LocalStorage, what: str, hold: Any, tmp_path: Path
    ) -> None:
        path = storage.root / MARKER
        path.unlink()
        if what == "fifo":
            os.mkfifo(path)
        elif what == "folder":
            path.mkdir()
        elif what == "link":
            path.symlink_to(tmp_path / "elsewhere")
            os.mkfifo(tmp_path / "elsewhere")
        else:
            os.mknod(path, 0o140600)
        refused(hold, storage, "not a regular file", error=TargetRefusedError)

    def test_the_lock_ends_with_the_block_whatever_is_raised(self, storage: LocalStorage) -> None:
        before = descriptors()
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt), exclusive(storage, MARKER, verb="clean"):
                raise KeyboardInterrupt
        assert descriptors() <= before

    def test_a_lock_object_of_another_kind_of_client_counts(self, storage: LocalStorage) -> None:
        storage.replace(LOCK, another_host().dump())
        for hold in (exclusive, shared):
            refused(hold, storage, "far-away")
        storage.replace(LOCK, a_dead_process().dump())
        taken(shared, storage)
        assert names(storage) == [MARKER, "data"]


@pytest.mark.parametrize("storage", OBJECTS, indirect=True)
class TestObjects:
    def test_a_lock_says_who_and_where(self, storage: Any) -> None:
        with exclusive(storage, MARKER, verb="generate"):
            assert names(storage) == [LOCK, MARKER, "data"]
            holder = read_holder(storage, LOCK)
            assert (holder.pid, holder.verb) == (os.getpid(), "generate")
            assert holder.is_this_process()
            assert storage.size(LOCK) == BODY_BYTES
        with shared(storage, MARKER, verb="run"):
            (reader, *others) = names(storage)
            assert reader.startswith(".iobench-readers/")
            assert is_lock_name(reader)
            assert others == [MARKER, "data"]

    def test_another_host_is_believed_until_its_lock_is_broken(self, storage: Any) -> None:
        theirs = another_host(created="2026-01-02T03:04:05+00:00")
        storage.replace(LOCK, theirs.dump())
        for hold in (exclusive, shared):
            said = refused(hold, storage, "--break-lock")
            for word in ("far-away", "17", "generate", "2026-01-02T03:04:05"):
                assert word in said
        with exclusive(storage, MARKER, verb="generate", break_dead=True) as lease:
            lease.confirm()
        assert names(storage) == [MARKER, "data"]
        storage.replace(LOCK, theirs.dump())
        with shared(storage, MARKER, verb="run", break_dead=True):
            assert LOCK not in names(storage)
        storage.replace(reader_key(theirs.token), theirs.dump())
        refused(exclusive, storage)
        taken(exclusive, storage, break_dead=True)
        assert names(storage) == [MARKER, "data"]

    def test_what_can_not_be_read_is_no_excuse(self, storage: Any) -> None:
        storage.replace(LOCK, b"{}")
        refused(exclusive, storage, LOCK)
        taken(exclusive, storage, break_dead=True)

    def test_a_dead_process_of_this_host_is_taken_over(self, storage: Any) -> None:
        for hold in (exclusive, shared):
            storage.replace(LOCK, a_dead_process().dump())
            storage.replace(reader_key("0" * 32), a_dead_process("run").dump())
            taken(hold, storage)
        taken(exclusive, storage)
        assert names(storage) == [MARKER, "data"]

    def test_a_lock_that_is_lost_ends_the_work(
        self, storage: Storage, monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]
    ) -> None:
        """By a heartbeat, and by looking; what belongs to the other one stays."""
        monkeypatch.setattr(object_lease, "HEARTBEAT_S", 0.1)
        for hold, key in ((exclusive, LOCK), (shared, "")):
            theirs = another_host()
            with hold(storage, MARKER, verb="generate") as lease:
                place = key or next(name for name in names(storage) if name.endswith(".json"))
                storage.replace(place, theirs.dump())  # type: ignore[attr-defined]
                with pytest.raises(TargetLostError, match="far-away"):
                    lease.confirm()
                wait_until(lambda lease=lease: lost(lease), "no heartbeat noticed it")
                with pytest.raises(TargetLostError, match="far-away"):
                    lease.check()
            assert read_holder(storage, place) == theirs
            storage.delete(place)
        assert names(storage) == [MARKER, "data"]


@pytest.mark.parametrize("storage", UNLOCKED, indirect=True)
class TestNotLocked:
    def test_a_writer_says_so_and_works(
        self, storage: Any, caplog: pytest.LogCaptureFixture, nothing_left: set[int]
    ) -> None:
        object_lock.say_unlocked.cache_clear()
        for _ in range(2):
            with exclusive(storage, MARKER, verb="generate") as lease:
                assert lease.unregistered == object_lock.NOT_LOCKED
                assert names(storage) == [MARKER, "data"]
                taken(exclusive, storage)
                lease.check()
                lease.confirm()
            said = [r.getMessage() for r in caplog.records if "not locked" in r.getMessage()]
            assert len(said) == 1
            assert said[0].startswith(storage.url)
            assert "\n" not in said[0]

    def test_readers_are_seen(self, storage: Any) -> None:
        with shared(storage, MARKER, verb="run") as lease:
            assert lease.unregistered == ""
            refused(exclusive, storage, "is in use by")
        assert names(storage) == [MARKER, "data"]


def lost(lease: Any) -> bool:
    try:
        lease.check()
    except TargetLostError:
        return True
    return False


SOME = pytest.mark.parametrize("storage", ["files by fsspec", SWIFT], indirect=True)


@SOME
def test_the_heart_beats(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]
) -> None:
    monkeypatch.setattr(object_lease, "HEARTBEAT_S", 0.2)
    servers = set(family())
    with exclusive(storage, MARKER, verb="generate") as lease:
        first = read_holder(storage, LOCK)
        wait_until(lambda: read_holder(storage, LOCK) != first, "no heartbeat came")
        now = read_holder(storage, LOCK)
        assert now.heartbeat > first.heartbeat
        assert replace(now, heartbeat=first.heartbeat) == first
        lease.confirm()
    # None comes later: nobody is left who would send it.
    check_ended(set(family()) - servers)
    assert names(storage) == [MARKER, "data"]


@SOME
def test_a_heart_that_beats_is_no_dead_one(storage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another host's process, which refreshes its lock while it is watched, keeps it."""
    monkeypatch.setattr(object_lock, "WATCH_S", 60.0)
    theirs = another_host()
    storage.replace(LOCK, theirs.dump())
    beats = iter(range(100))
    real = time.sleep

    def beat(seconds: float) -> None:
        storage.replace(
            LOCK, replace(theirs, heartbeat=f"2026-01-01T00:00:{next(beats):02d}Z").dump()
        )
        real(0.01)

    monkeypatch.setattr(object_lock.time, "sleep", beat)
    refused(exclusive, storage, "is alive", break_dead=True)
    holder = read_holder(storage, LOCK)
    assert holder.token == theirs.token


@pytest.mark.parametrize("hold", [exclusive, shared])
@SOME
def test_a_lock_that_was_taken_meanwhile_is_not_broken(
    storage: Any, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watched one is released, and the next process has made its own by the next request."""
    storage.replace(LOCK, another_host().dump())
    theirs, reads, real = another_host("clean"), itertools.count(), storage.read_into

    def read_into(key: str, *args: Any, **more: Any) -> Any:
        if key != LOCK or next(reads) != 1:  # the first one finds that there is a lock
            return real(key, *args, **more)
        storage.delete(LOCK)
        try:
            return real(key, *args, **more)
        finally:
            storage.replace(LOCK, theirs.dump())

    with monkeypatch.context() as patch:
        patch.setattr(storage, "read_into", read_into)
        refused(hold, storage, "is alive", break_dead=True)
    assert read_holder(storage, LOCK) == theirs


@SOME
def test_the_heart_beats_while_a_writer_waits_for_readers(
    storage: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or else a third process takes the writer for dead, and breaks its lock."""
    monkeypatch.setattr(object_lease, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(object_lock, "WATCH_S", 60.0)
    theirs = another_host("run")
    storage.replace(reader_key(theirs.token), theirs.dump())
    waiting = threading.Thread(
        target=taken, args=(exclusive, storage), kwargs={"break_dead": True}, daemon=True
    )
    waiting.start()
    try:
        wait_until(lambda: LOCK in names(storage), "it took no lock")
        first = read_holder(storage, LOCK)
        wait_until(lambda: read_holder(storage, LOCK) != first, "no heartbeat came")
    finally:
        storage.delete(reader_key(theirs.token))
        waiting.join()
    assert names(storage) == [MARKER, "data"]


@pytest.mark.parametrize("hold", [exclusive, shared])
@SOME
def test_the_keeper_of_a_killed_process_removes_the_lock(
    storage: Any, hold: Any, s3_environment: Mapping[str, str]
) -> None:
    """So that it keeps out no other host, either."""
    with in_a_fork(lambda: hold(storage, MARKER, verb="generate")) as child:
        assert len(names(storage)) == 3
        kill(child)
        wait_until(lambda: names(storage) == [MARKER, "data"], "the lock stayed")


class TakeOver(FaultProxy):
    """A network that loses the first request of a kind for a lock, or the answer to it.

    Before the next one is sent, another process has taken the lock over.
    """

    def __init__(
        self, storage: Any, upstream: int, method: str | tuple[str, ...], lost: Fault
    ) -> None:
        self.storage, self.method, self.lost = storage, method, lost
        self.theirs: Holder | None = None
        self.is_next = False
        super().__init__(upstream)

    def fault(self, line: str = "") -> Fault:
        if self.is_next and self.theirs is None:
            self.theirs = another_host()
            self.storage.replace(LOCK, self.theirs.dump())
        elif line.startswith(self.method) and self.theirs is None:
            self.is_next = True
            return self.lost
        return Fault()


@pytest.mark.parametrize("step", ["heartbeat", "release"])
def test_what_is_sent_again_spares_the_lock_of_another(
    rclone_s3: S3Server, s3_environment: Mapping[str, str], step: str
) -> None:
    url = rclone_s3.url()
    mine = Holder.this_process("generate")
    direct: Any = open_storage(url)
    direct.replace(LOCK, mine.dump())
    method, lost = (
        ("PUT", Fault(refuse=True))
        if step == "heartbeat"
        else (("DELETE", "POST"), Fault(reset_after=0))
    )
    with TakeOver(direct, rclone_s3.port, method, lost) as proxy:
        storage: Any = open_storage(url.replace(str(rclone_s3.port), str(proxy.port)))
        if step == "heartbeat":
            beat, _ = make_beat(pickle.dumps((storage, LOCK, mine)))
            assert "far-away" in (beat() or "")
        else:
            remove_if_ours(storage, LOCK, mine.token)
        storage.close()
    assert proxy.theirs is not None
    assert read_holder(direct, LOCK) == proxy.theirs
    direct.delete(LOCK)
    direct.close()


def test_who_may_not_write_reads_all_the_same() -> None:
    """A storage that takes nothing: it is said why, and nobody else is seen."""
    storage = MemoryStorage(objects={"data": memoryview(b"x")})
    with shared(storage, MARKER, verb="run") as lease:
        assert "read-only" in lease.unregistered
        assert lease.others() == []
        lease.check()
        lease.confirm()


def test_where_every_write_is_kept_readers_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_storage("hf://datasets/a/b").traits.keeps_history
    storage = open_storage(f"local://{tmp_path}")
    assert not storage.traits.keeps_history
    kept = replace(storage.traits, keeps_history=True)
    monkeypatch.setattr(type(storage), "traits", kept)
    with shared(storage, MARKER, verb="run") as lease:
        assert "history" in lease.unregistered
        assert list(tmp_path.iterdir()) == []
    with exclusive(storage, MARKER, verb="generate") as lease:
        refused(shared, storage)
        lease.confirm()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"token": 5},
        {"host": "a\x1b[2J"},
        {"verb": "x" * 300},
        {"heartbeat": "2026-01-01T00:00:00"},
        {"pid": -1},
        {"pid": True},
        {"boot": None},
    ],
)
def test_a_lock_that_iobench_did_not_write_is_none(change: dict[str, Any]) -> None:
    import json

    good = Holder.this_process("generate").dump()
    assert parse_holder(good) is not None
    assert len(good) == BODY_BYTES
    assert parse_holder(json.dumps({**json.loads(good), **change}).encode()) is None
    for text in (b"", b"[]", b"{", b"[" * 100_000, good[:-300]):
        assert text == good[:-300] or parse_holder(text) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_that_is_hidden_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc mounted with hidepid shows no process of another user."""
    monkeypatch.setattr(holder_module, "start_of", lambda pid: None)
    found = replace(Holder.this_process("run"), pid=1)
    child = os.fork()
    if not child:
        os.setuid(65534)
        os._exit(0 if is_alive(1) and not found.is_dead() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not is_alive(2**22 - 3)
    assert replace(found, pid=2**22 - 3).is_dead()


def test_another_container_of_this_host_is_never_dead() -> None:
    mine = Holder.this_process("run")
    assert mine.is_this_process()
    assert not mine.is_dead()
    assert replace(mine, started=mine.started + 1).is_dead()  # the number is another process's now
    elsewhere = replace(mine, namespace="pid:[1]", started=1)
    assert not elsewhere.is_dead()
    assert not elsewhere.is_this_process()


def test_names() -> None:
    token = "0123456789abcdef" * 2
    ours = (
        LOCK,
        f"{LOCK}.part",
        f"{LOCK}.0123abcd.part",
        f".iobench-readers/{token}.json",
        f".iobench-readers/{token}.json.part",
    )
    assert all(map(is_lock_name, ours))
    strange = (
        "x/.iobench-lock",
        f"{LOCK}.txt",
        ".iobench-readers/mine.json",
        f".iobench-readers/x/{token}.json",
    )
    assert not any(map(is_lock_name, strange))


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("first", ["{}", "local://{}"])
def test_one_directory_by_two_names(first: str, alone: bool, tmp_path: Path) -> None:
    """A path, and ``local://`` before it: the lock of the one keeps out the other."""
    second = "local://{}" if first == "{}" else "{}"
    one, two = (open_storage(name.format(tmp_path / "root")) for name in (first, second))
    with one.create(MARKER) as sink:
        sink.write(b"x")
    mine = exclusive if alone else shared
    with mine(one, MARKER, verb="generate"):
        for theirs in (exclusive, shared) if alone else (exclusive,):
            refused(theirs, two)
    with shared(one, MARKER, verb="run"):
        taken(shared, two)
    taken(exclusive, two)
    assert names(two) == [MARKER]
