"""A process that was suspended while it held a place, and whose place is another's when it goes on.

That happens to a paused virtual machine, a frozen container and a laptop that sleeps. Here the
process is stopped with all that it started, at one of its own deletions or creations, which the
server in between counts (and, where there is no server, Python's audit events). The other process
breaks the lock and makes the dataset anew. Whatever the first one still does, the new dataset must
stay whole.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from iobench.base.errors import MissingObjectError
from iobench.base.processes import stat_fields
from iobench.storage import open_storage
from iobench.storage.locks import held, object_lock
from iobench.storage.locks.objects import is_lock_name
from tests.processes import Command, Ended, in_process, wait_until
from tests.servers.faultproxy import Fault, FaultProxy
from tests.servers.s3 import S3Server, s3_environment, swift_s3

__all__ = ["s3_environment", "swift_s3"]

SHARDS = 10
DATASET = (
    "demo", "--samples", 2 * SHARDS, "--set", "samples_per_shard=2", "--set",
    "sample_size.mean=3kB", "--set", "sample_size.max=6kB",
)  # fmt: skip
LOOPS = {"s3": 16, "local": 12, "local without flock": 6}  # 50


@dataclass
class Stop:
    """Stops a command, with all processes that it has started, at its ``at``-th step."""

    at: int
    command: Command | None = None
    stopped: list[int] = field(default_factory=list)
    seen: int = 0
    lock: Lock = field(default_factory=Lock)

    def step(self) -> None:
        with self.lock:
            self.seen += 1
            if self.seen == self.at and self.command is not None:
                self.stopped = _family(self.command.pid)
                for number in self.stopped:
                    with suppress(ProcessLookupError):
                        os.kill(number, signal.SIGSTOP)

    def go_on(self) -> None:
        for number in self.stopped:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


def _family(pid: int) -> list[int]:
    """A process, and all that it and its children have started."""
    found = [pid]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found


@dataclass
class Place:
    """``near``: where the second process finds the place; ``far``: the first one, through whatever
    counts its steps."""

    kind: str
    near: str
    far: Callable[[Stop, str], Any]  # a context manager that gives the URL

    def rows(self) -> dict[str, bytes]:
        """What lies there, without locks."""
        storage: Any = open_storage(self.near)
        try:
            found = {}
            for entry in list(storage.list()):
                if not is_lock_name(entry.key):
                    data = bytearray(entry.size)
                    storage.read_into(entry.key, 0, memoryview(data))
                    found[entry.key] = bytes(data)
            return found
        finally:
            storage.close()

    def empty(self) -> None:
        if self.kind.startswith("local"):
            shutil.rmtree(self.near.removeprefix("local://"), ignore_errors=True)
            return
        storage: Any = open_storage(self.near)
        for entry in list(storage.list()):
            with suppress(MissingObjectError):  # a listing may be older than a removal
                storage.delete(entry.key)
        storage.close()


@pytest.fixture(params=list(LOOPS))
def place(
    request: pytest.FixtureRequest, tmp_path: Path, s3_environment: Mapping[str, str]
) -> Iterator[Place]:
    kind = request.param
    if kind == "s3":
        server: S3Server = request.getfixturevalue("swift_s3")
        near = server.url()

        @contextmanager
        def far(stop: Stop, verb: str) -> Iterator[str]:
            wanted = "DELETE " if verb == "clean" else "PUT "

            class Counting(FaultProxy):
                def fault(self, line: str = "") -> Fault:
                    if line.startswith(wanted) and "-lock" not in line:
                        stop.step()
                    return Fault()

            with Counting(server.port) as proxy:
                yield near.replace(server.endpoint, f"http://127.0.0.1:{proxy.port}")

    else:
        root = tmp_path / "target"
        near = str(root) if kind == "local" else f"local://{root}"

        @contextmanager
        def far(stop: Stop, verb: str) -> Iterator[str]:
            yield near

    found = Place(kind, near, far)
    yield found
    found.empty()


def _on_another_host(stop: Stop, verb: str, *, counted: bool) -> Callable[[], None]:
    """What makes a forked command look like that of another container: its process is not seen.

    ``counted``: no server counts its steps, so it does itself, and stops itself.
    """

    def before() -> None:
        real: Any = os.readlink
        own = "/proc/self/ns/pid"
        os.readlink = lambda path, **more: (  # type: ignore[assignment]
            "pid:[1]" if str(path) == own else real(path, **more)
        )
        if not counted:
            return
        command, seen = os.getpid(), 0

        def step(name: object) -> None:
            nonlocal seen
            seen += "-lock" not in str(name)
            if seen == stop.at:
                family = _family(command)
                for number in (*(one for one in family if one != os.getpid()), os.getpid()):
                    os.kill(number, signal.SIGSTOP)

        def audit(event: str, arguments: tuple[Any, ...]) -> None:
            if event == "open" and "demo-" in str(arguments[0]) and arguments[-1] & os.O_CREAT:
                step(arguments[0])

        def after(remove: Any) -> Any:
            def removing(path: Any, **more: Any) -> None:
                remove(path, **more)
                step(path)

            return removing

        if verb == "clean":
            os.remove, os.unlink = after(os.remove), after(os.unlink)
        else:
            sys.addaudithook(audit)

    return before


def words(verb: str, url: str, *, workers: int = 2) -> tuple[object, ...]:
    if verb == "clean":
        return ("clean", url)
    return ("generate", *DATASET, "--to", url, "--workers", workers, "--quiet")


def suspended(
    place: Place, verb: str, at: int, folder: Path, meanwhile: Callable[[], None]
) -> Ended:
    """How a command ended that was stopped at a step. ``meanwhile``: what happens until it goes
    on."""
    here = place.kind.startswith("local")
    stop = Stop(at)
    with place.far(stop, verb) as url:
        before = _on_another_host(stop, verb, counted=here)
        given = words(verb, url, workers=1 if here else 2)
        stop.command = Command(given, folder / "suspended", before)
        pid = stop.command.pid
        wait_until(
            lambda: stop.command.ended() or stat_fields(pid)[:1] == ["T"], "it never came so far"
        )
        if not stop.command.ended():
            stop.stopped = stop.stopped or _family(pid)
            stopped_s = time.monotonic()
            try:
                meanwhile()
                # What it knew of its lock is old by then.
                wait_until(lambda: time.monotonic() > stopped_s + held.FRESH_S, "time stands still")
            finally:
                stop.go_on()
        return stop.command.wait()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_lock, "YIELD_S", 0.6)
    monkeypatch.setattr(object_lock, "WATCH_S", 0.1)
    monkeypatch.setattr(object_lock, "SETTLE_S", 0.1)
    # As long as an answer of a busy host may take, and shorter than YIELD_S.
    monkeypatch.setattr(held, "FRESH_S", 0.5)
    monkeypatch.setattr("iobench.storage.locks.object_lease.AGAIN_S", 0.02)


@pytest.mark.parametrize("verb", ["clean", "generate"])
def test_who_was_suspended_deletes_nothing(
    place: Place, verb: str, tmp_path: Path, short_waits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one step after the other, spread over all that the command makes or removes."""
    generate = (*words("generate", place.near, workers=1), "--break-lock")
    made: dict[str, bytes] = {}

    def made_anew() -> None:
        ended = in_process(*generate)
        if place.kind == "local":
            # The kernel keeps this lock for a stopped process, and nobody breaks it. A user may
            # remove the directory all the same.
            assert ended[0] == 2, ended
            shutil.rmtree(place.near)
            ended = in_process(*generate)
        assert ended[0] == 0, ended
        made.update(place.rows())

    # The new objects have the bytes of the old ones, so that no condition tells them apart. A
    # thread that is stopped in the instant between its question and its request can't be helped
    # (see SECURITY.md), so there is one thread, which waits for its answer then.
    monkeypatch.setattr("iobench.data.generator.cleaner._DELETES", 1)
    loops = LOOPS[place.kind] // 2
    ended = in_process(*generate)
    assert ended[0] == 0, ended
    for loop in range(loops):
        if verb == "generate":
            place.empty()
        made.clear()
        at = 1 + loop * SHARDS // loops
        (folder := tmp_path / f"{loop}").mkdir()
        first = suspended(place, verb, at, folder, made_anew)
        assert made, (at, first)  # it was stopped
        left = place.rows()
        assert left == made, (at, first, made.keys() - left.keys(), left.keys() - made.keys())
        assert in_process("verify", place.near)[0] == 0, (at, first)
        # It may have done nothing yet, or have removed the rest of a directory that is gone.
        assert (first.code, first.err.count("\n")) in ((0, 0), (1, 1)), (at, first)
        if verb == "clean" and place.kind != "local":
            assert (first.code, first.out) == (1, ""), (at, first)
