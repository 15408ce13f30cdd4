"""What a forked process does with what it has from its parent: nothing, not even finalise it."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from iobench.base import processes
from iobench.base.errors import WorkerError
from iobench.base.interrupts import defer_interrupts, import_whole
from iobench.runner import crew
from iobench.runner.conductor import last_messages
from iobench.runner.crew import ForkedCrew
from iobench.runner.messages import Ended, Link
from iobench.storage import open_storage
from iobench.storage.s3 import storage as s3
from tests.children import in_child
from tests.processes import signal_at_line, wait_until
from tests.servers.s3 import S3Server, rclone_s3, s3_environment

__all__ = ["rclone_s3", "s3_environment"]


class Finalised:
    count = 0

    def __del__(self) -> None:
        Finalised.count += 1


def test_a_parents_garbage_is_not_collected_in_a_child() -> None:
    assert processes.watch is not None
    gc.collect()
    gc.disable()
    try:
        cycle: list[Any] = [Finalised()]
        cycle.append(cycle)
        del cycle

        def collect() -> bool:
            gc.collect()
            own: list[Any] = [Finalised()]
            own.append(own)
            del own
            gc.collect()
            return Finalised.count == 1  # its own, and not the parent's

        assert in_child(collect).value
        gc.collect()
        assert Finalised.count == 1
    finally:
        gc.enable()


def test_a_parents_connections_are_kept(
    rclone_s3: S3Server, s3_environment: Mapping[str, str]
) -> None:
    """And a child has some of its own."""
    storage: Any = open_storage(rclone_s3.url())
    storage.replace("x", b"data")
    client = weakref.ref(storage._open)

    def look() -> bool:
        return client() is not None and storage._open is None and storage.size("x") == 4

    assert in_child(look).value
    assert s3._inherited == []
    storage.delete("x")
    storage.close()


# Interrupts


def interrupted(written: list[str], *, discard: bool = False) -> None:
    with defer_interrupts(discard=discard):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        written.append("written")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_handlers_are_back_whenever_a_signal_comes(number: signal.Signals) -> None:
    usual = [signal.default_int_handler] * 2
    found = {line: handlers_after(number, line=line) for line in range(1, 40)}
    assert {line: handlers for line, handlers in found.items() if handlers != usual} == {}


def handlers_after(number: signal.Signals, *, line: int) -> list[Any]:
    """Of SIGINT and SIGTERM, when the signal came at the Nth line that ``interrupts.py`` ran."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            suppress(KeyboardInterrupt),
            signal_at_line(line, "base/interrupts.py", number=number),
            defer_interrupts(),
        ):
            pass
    finally:
        now = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, before)
    return now


def test_ctrl_c_outdoes_an_error() -> None:
    with pytest.raises(KeyboardInterrupt), defer_interrupts():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        raise ZeroDivisionError


def test_ctrl_c_takes_effect_afterwards() -> None:
    written: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(written)
    interrupted(written, discard=True)  # the one that ended the run has had its effect
    assert written == ["written", "written"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# What a rank has started


class StartsOthers:
    """Its rank starts a process that nobody ends, writes its number, and goes on for ever."""

    others_code = True

    def __init__(self, note: Path, *, dies: bool) -> None:
        self.note, self.dies = note, dies

    def run(self, link: Link) -> None:
        started = subprocess.Popen(["sleep", "1000"])
        self.note.with_suffix(".new").write_text(str(started.pid))
        self.note.with_suffix(".new").rename(self.note)
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        while not self.dies:
            time.sleep(1.0)
        link.send(Ended())


def gone(note: Path) -> bool:
    try:
        stat = Path(f"/proc/{note.read_text()}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_what_a_killed_rank_has_started_ends_with_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with pytest.raises(WorkerError, match="SIGKILL"):
        last_messages(ForkedCrew(1, StartsOthers(note, dies=True)), Ended)
    wait_until(lambda: gone(note), "the process goes on")


def test_it_ends_as_well_if_the_parent_is_killed(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    parent = os.fork()
    if not parent:
        try:
            last_messages(ForkedCrew(1, StartsOthers(note, dies=False)), Ended)
        finally:
            os._exit(0)
    wait_until(note.exists, "no rank began")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: gone(note), "the process goes on")


def test_before_a_rank_leads_a_group_nothing_is_ended_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kernel threads, and processes that another namespace has started, have group 0."""
    ranks, asked = crew.fork.RawArray("i", [0, 7, 0]), crew.fork.RawArray("i", 4)

    def note(groups: list[int]) -> None:
        asked[1 : 1 + len(groups)] = groups
        asked[0] = len(groups)

    monkeypatch.setattr(crew, "end_groups", note)
    parent = os.fork()
    if not parent:
        crew.watch_over(ranks)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(parent, 0)
    wait_until(lambda: asked[0] > 0, "the guard does nothing")
    assert asked[1 : 1 + asked[0]] == [7]


def test_a_module_is_imported_whole_before_ctrl_c_takes_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import signal\nsignal.raise_signal(signal.SIGINT)\nsignal.written = True\n"
    (tmp_path / "interrupted_inside.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(signal, "written", False, raising=False)
    import_whole("interrupted_inside")
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("interrupted_inside")
    assert signal.written  # type: ignore[attr-defined]
