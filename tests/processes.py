"""Commands in this process, and as forked ones that wait at a chosen place or begin together.

Neither needs to import everything anew, which is most of what a command costs.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import (
    AbstractContextManager,
    ExitStack,
    chdir,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType
from typing import Any, BinaryIO, TextIO

import psutil
import pytest

PATIENCE_S = 120.0
"""For anything that has a sign to wait for: a busy machine is no failure."""


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Wait until it holds. It does not yet where a folder is gone while the condition looks in."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with suppress(FileNotFoundError):
            if condition():
                return
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def descriptors() -> set[str]:
    """What this process has open. Compare two of them as sets: what earlier tests have left may
    be closed meanwhile, and only what is new was left by this one.
    """
    gc.collect()
    gc.freeze()  # so that the second one looks only at what was made after the first
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists them
            found.add(f"{descriptor} {os.readlink(f'/proc/self/fd/{descriptor}')}")
    return found


def family(pid: int | None = None) -> list[psutil.Process]:
    """All that a process (this one) has started, and what that has started in turn."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def loader_workers(pid: int | None = None) -> list[psutil.Process]:
    """Those of the family that torch's DataLoader has started."""
    found = []
    for process in family(pid):
        with suppress(psutil.Error):
            found += [process] if process.name() == "pt_data_worker" else []
    return found


def read_by_workers(pid: int | None = None) -> int:
    """Bytes that these have read by calls."""
    count = 0
    for worker in loader_workers(pid):
        with suppress(psutil.Error):
            count += worker.io_counters().read_chars
    return count


def check_ended(processes: Iterable[psutil.Process]) -> None:
    assert not psutil.wait_procs(processes, timeout=PATIENCE_S)[1]


@contextmanager
def signal_at_line(
    line: int, *files: str, number: signal.Signals = signal.SIGINT
) -> Iterator[list[int]]:
    """Send a signal to this process before the ``line``-th line of code of ``files`` that runs.

    ``files``: parts of their paths. It yields how many lines are left until then.
    """
    left = [line]

    def enter(frame: FrameType, event: str, argument: Any) -> Any:
        return watch if any(part in frame.f_code.co_filename for part in files) else None

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            left[0] -= 1
            if left[0] == 0:
                signal.raise_signal(number)
        return watch

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield left
    finally:
        sys.settrace(before)


def in_process(*words: object) -> tuple[int, str, str]:
    """``iobench WORDS`` in this process: (exit code, stdout, stderr)."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = _exit_code([str(word) for word in words])
    return code, out.getvalue(), err.getvalue()


def _exit_code(words: list[str]) -> int:
    from iobench.cli.main import main

    return main(words)


def completed(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """``iobench WORDS`` in this process, returned as by ``subprocess.run``.

    The streams are captured at their descriptors, so what the workers print counts, too.
    """
    command = [str(word) for word in words]
    with ExitStack() as stack:
        if cwd is not None:
            stack.enter_context(chdir(cwd))
        out, err = (stack.enter_context(_captured(number)) for number in (1, 2))
        with redirect_stdout(out.stream), redirect_stderr(err.stream):
            code = _exit_code(command)
        return subprocess.CompletedProcess(command, code, out.text(), err.text())


def printed(command: str, *more: object, code: int = 0, cwd: Path | None = None) -> str:
    """Standard output of ``iobench COMMAND MORE --quiet`` in this process.

    ``command`` is split as by a shell. It must end with ``code``, and print no errors.
    """
    found = completed(*shlex.split(command), *more, "--quiet", cwd=cwd)
    assert (found.returncode, found.stderr) == (code, ""), found
    return found.stdout


def document(command: str, *more: object, code: int = 0, cwd: Path | None = None) -> Any:
    """The JSON document of ``printed``."""
    return json.loads(
        printed(command, *more, "--json", code=code, cwd=cwd),
        parse_constant=lambda text: pytest.fail(f"{text} is not JSON"),
    )


def refused(command: str, *more: object, code: int = 2, cwd: Path | None = None) -> str:
    """The one line on standard error of a command that ends with ``code`` and prints nothing."""
    found = completed(*shlex.split(command), *more, cwd=cwd)
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (code, "", 1), found
    assert found.stderr.startswith("iobench: "), found
    return found.stderr


def python(code: str, *words: object, **more: Any) -> str:
    """Standard output of ``code`` in a Python of its own, which must end with 0 and say nothing
    else. ``words``: its arguments; ``more``: of ``subprocess.run``.
    """
    command = [sys.executable, "-c", code, *map(str, words)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    assert (found.returncode, found.stderr) == (0, ""), found
    return found.stdout


@contextmanager
def mounted(*options: str, on: Path) -> Iterator[Path]:
    """A file system at ``on`` in this block. Skips the test where mounting is not allowed."""
    on.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(on)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("mounting needs root: full disks and mount points are NOT TESTED")
    try:
        yield on
    finally:
        subprocess.run(["umount", "-l", str(on)], check=True)


def tmpfs(size: str, on: Path) -> AbstractContextManager[Path]:
    """A file system in memory; ``size``: an option of tmpfs, such as size=8m."""
    return mounted("-t", "tmpfs", "-o", size, "tmpfs", on=on)


@dataclass
class _Captured:
    """A file in place of a descriptor, also for the processes that begin meanwhile."""

    file: BinaryIO
    stream: TextIO  # writes to the descriptor

    def text(self) -> str:
        self.stream.flush()
        self.file.seek(0)
        return self.file.read().decode()


@contextmanager
def _captured(number: int) -> Iterator[_Captured]:
    usual = os.dup(number)
    with TemporaryFile() as file:
        os.dup2(file.fileno(), number)
        try:
            with open(number, "w", encoding="utf-8", closefd=False) as stream:
                yield _Captured(file, stream)
        finally:
            os.dup2(usual, number)
            os.close(usual)


@dataclass
class Ended:
    code: int  # minus the signal's number, where one ended it
    out: str
    err: str


class Command:
    """``iobench WORDS`` in a process of its own; ``before`` runs there first."""

    def __init__(self, words: tuple[object, ...], file: Path, before: Callable[[], Any]) -> None:
        self._file = file
        self._code: int | None = None
        for suffix in ("out", "err"):
            file.with_suffix(f".{suffix}").touch()
        self.pid = os.fork()
        if not self.pid:
            self._run(words, before)

    def _run(self, words: tuple[object, ...], before: Callable[[], Any]) -> None:
        from iobench.cli.main import main

        code = 99
        try:
            for number, suffix in ((1, "out"), (2, "err")):
                os.dup2(os.open(self._file.with_suffix(f".{suffix}"), os.O_WRONLY), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
            before()
            code = main([str(word) for word in words])
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def ended(self) -> bool:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is not None

    def wait(self) -> Ended:
        wait_until(self.ended, "the command does not end")
        assert self._code is not None
        out, err = (self._file.with_suffix(f".{suffix}").read_text() for suffix in ("out", "err"))
        return Ended(self._code, out, err)

    def signal(self, number: int) -> None:
        if not self.ended():
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def children(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid).children()]


@contextmanager
def running(
    command: str, *more: object, folder: Path, before: Callable[[], Any] = lambda: None
) -> Iterator[Command]:
    """``iobench COMMAND MORE`` in a process of its own, which ends with the block at the latest.

    ``before`` runs there first.
    """
    process = Command((*shlex.split(command), *more), folder / "running", before)
    try:
        yield process
    finally:
        process.kill()


@dataclass
class Paused:
    """A command that has reached a place and waits there."""

    process: Command
    hold: Path

    def end(self) -> tuple[int, str, str]:
        """Let it go on, to its end: (exit code, stdout, stderr)."""
        self.hold.unlink(missing_ok=True)
        ended = self.process.wait()
        return ended.code, ended.out, ended.err


@contextmanager
def paused(place: str, *words: object, folder: Path) -> Iterator[Paused]:
    """``iobench WORDS``, once ``place`` (module:function) is called for the first time."""
    hold, reached = folder / "paused.hold", folder / "paused.reached"
    reached.unlink(missing_ok=True)
    hold.touch()

    def before() -> None:
        module, _, name = place.partition(":")
        *path, last = name.split(".")
        owner: Any = importlib.import_module(module)
        for part in path:
            owner = getattr(owner, part)
        real = getattr(owner, last)

        def waiting(*arguments: Any, **more: Any) -> Any:
            reached.touch()
            while hold.exists():
                time.sleep(0.02)
            return real(*arguments, **more)

        setattr(owner, last, waiting)

    found = Paused(Command(words, folder / "paused", before), hold)
    try:
        wait_until(lambda: reached.exists() or found.process.ended(), f"it never came to {place}")
        assert not found.process.ended(), found.process.wait()
        yield found
    finally:
        hold.unlink(missing_ok=True)
        found.process.signal(signal.SIGINT)
        found.process.wait()


def race(*commands: tuple[object, ...], folder: Path) -> list[Ended]:
    """Commands that begin at the same moment, and how each ended."""
    begin, start = os.pipe()

    def before() -> None:
        os.close(start)
        os.read(begin, 1)  # until the parent has closed its end

    running = [
        Command(words, folder / f"race-{number}", before) for number, words in enumerate(commands)
    ]
    os.close(begin)
    os.close(start)
    return [command.wait() for command in running]
