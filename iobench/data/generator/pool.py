"""Run numbered tasks in forked processes, and never leave a process behind.

Results are yielded as they finish, and the errors of tasks are raised in the parent.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple, Protocol, TypeVar

from ...base.errors import IobenchError, WorkerError
from ...base.interrupts import defer_interrupts
from ...base.processes import die_with_parent

T = TypeVar("T")
_TURN_S = 0.2
_CHECK_S = 1.0

# How long a stopped worker may take to remove the file that it was writing. A write that hangs in
# the kernel is not waited for.
_GRACE_S = 20.0

_NOTE_BYTES = 1 << 12
_note: mmap.mmap | None = None
"""Only in a worker: memory shared with the parent, which holds the name of the current file."""


class _Stopped(BaseException):
    """Raised inside a worker that is asked to end, so that its ``with`` blocks clean up."""


def default_workers(tasks: int) -> int:
    """One worker for each core that this process may use, but no more than there are tasks."""
    return max(1, min(len(os.sched_getaffinity(0)), tasks))


def working_on(what: str) -> None:
    """Record which file this worker is about to read or write.

    Some libraries end the process over a damaged file; then the error message can name the file.
    Outside of a worker this does nothing.
    """
    if _note is not None:
        text = what.encode("utf-8", "surrogateescape")[: _NOTE_BYTES - 2]
        _note[: 2 + len(text)] = len(text).to_bytes(2, "little") + text


class RunTasks(Protocol):
    """``run_tasks``, or what does the same on several hosts."""

    def __call__(
        self,
        tasks: Sequence[int],
        make: Callable[[], Callable[[int], T]],
        *,
        workers: int,
        remedy: str = ...,
        check: Callable[[], None] = ...,
    ) -> Iterator[T]: ...


def run_tasks(
    tasks: Sequence[int],
    make: Callable[[], Callable[[int], T]],
    *,
    workers: int,
    remedy: str = "run the same command again: finished work is kept",
    check: Callable[[], None] = lambda: None,
) -> Iterator[T]:
    """Yield ``make()(task)`` for each task, in the order in which they finish.

    ``make`` runs once in each worker; with ``workers`` 0 everything runs in this process. ``check``
    is called here about once a second, and between tasks; an exception from it ends the work. An
    IobenchError of a task is raised here. If a worker dies, WorkerError is raised with ``remedy``;
    its message names the file that the worker was ``working_on``. However the iteration ends, the
    workers are asked to stop and clean up, and have ended before it returns.
    """
    if workers == 0:
        work = make()
        for task in tasks:
            check()
            yield work(task)
        return
    context = get_context("fork")
    pending = list(reversed(tasks))
    everyone: dict[Connection, _PoolWorker] = {}
    finished = False
    try:
        # No signal may end this between the start of a worker and its entry in ``everyone``.
        with defer_interrupts():
            for _ in range(min(workers, len(tasks))):
                ours, theirs = context.Pipe()
                note = mmap.mmap(-1, _NOTE_BYTES)
                process = context.Process(
                    target=_work, args=(theirs, make, os.getpid(), note), daemon=True
                )
                process.start()
                theirs.close()
                everyone[ours] = _PoolWorker(process, note, remedy)
                _send(ours, everyone[ours], pending.pop())
        busy = dict(everyone)
        while busy:
            check()
            for ready in wait(list(busy), timeout=_CHECK_S):
                assert isinstance(ready, Connection)
                result = _receive(ready, busy[ready])
                if pending:
                    _send(ready, busy[ready], pending.pop())
                else:
                    _send(ready, busy.pop(ready), None)
                yield result
        finished = True
    finally:
        _end(everyone, at_once=not finished)


class _PoolWorker(NamedTuple):
    process: ForkProcess
    note: mmap.mmap
    remedy: str


def _send(connection: Connection, worker: _PoolWorker, task: int | None) -> None:
    try:
        connection.send(task)
    except OSError:
        if task is not None:  # else: the worker died when it had nothing left to do
            raise _death(worker) from None


def _receive(connection: Connection, worker: _PoolWorker) -> Any:
    try:
        ok, value = connection.recv()
    except (EOFError, OSError):
        raise _death(worker) from None
    if ok:
        return value
    raise value


def _death(worker: _PoolWorker) -> WorkerError:
    process, note, remedy = worker
    process.join(5)
    code = process.exitcode
    how = (
        f"was killed by signal {-code} ({signal.strsignal(-code)})"
        if code is not None and code < 0
        else f"ended with status {code}"
    )
    text = note[2 : 2 + int.from_bytes(note[:2], "little")].decode("utf-8", "replace")
    at = f" while it worked on {text}" if text else ""
    return WorkerError(f"worker process {process.pid} {how}{at}", remedy=remedy)


def _work(
    connection: Connection,
    make: Callable[[], Callable[[int], Any]],
    parent: int,
    note: mmap.mmap,
) -> None:
    """Main loop of a worker: receive tasks, send (True, result) or (False, error); None ends it."""
    global _note
    _note = note
    die_with_parent(parent)
    # Ctrl-C signals the whole process group; only the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    try:
        work: Callable[[int], Any] | None = None
        while (task := _next(connection)) is not None:
            try:
                work = work or make()
                answer: tuple[bool, Any] = (True, work(task))
            except IobenchError as error:
                answer = (False, error)
            except Exception as error:
                answer = (
                    False,
                    WorkerError(
                        f"task {task} failed: {type(error).__name__}: "
                        f"{' '.join(str(error).split())}"
                    ),
                )
            connection.send(answer)
    except (_Stopped, EOFError, OSError):
        pass


def _next(connection: Connection) -> Any:
    """Wait for the next task in short turns.

    The kernel may deliver a signal to another thread (Arrow starts its threads anew after a fork),
    and then it does not interrupt a blocking read here. Python runs the handler between two turns.
    """
    while not connection.poll(_TURN_S):
        pass
    return connection.recv()


def _stop(_signal: int, _frame: Any) -> None:
    # Ignore further signals, so that they do not interrupt the cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def _end(workers: dict[Connection, _PoolWorker], *, at_once: bool) -> None:
    deadline = time.monotonic() + _GRACE_S
    while (
        living := [worker.process for worker in workers.values() if worker.process.is_alive()]
    ) and time.monotonic() < deadline:
        for process in living if at_once else ():
            # Repeat the signal in each turn: a worker that had just started had no handler for it
            # yet.
            process.terminate()
        living[0].join(_TURN_S)
    for connection, worker in workers.items():
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(1)
        worker.note.close()
        connection.close()
