"""Crews: how ranks are started together, watched, and ended together. A task says what they do.

``ForkedCrew`` forks them on this host, so that the parent's memory (a manifest, a copy of shards)
is shared and not copied.

Nothing that a rank has started outlives it. A rank that is killed can end nothing itself, and what
its loader has started (workers of a library, or of the user's own code) would go on. So a rank that
runs code of others leads a process group, which its parent kills when the rank has ended. Where the
parent is killed, too, a guard does it: a process that waits for that. A process that leaves the
group on purpose (setsid(2)) is not found.
"""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol

from ..base.errors import BusError, IobenchError, NoMemoryError, WorkerError
from ..base.interrupts import defer_interrupts
from ..base.processes import die_with_parent, set_rank, stat_fields
from ..base.units import counted
from ..load.loader import single_threaded, worker_death
from ..storage.scratch import scratch
from .counters import Pauses
from .messages import HURRY, Answer, Command, Failed, Link, Stop, Task

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def lead_group() -> int:
    """Make this process the leader of a process group of its own; return the group's number."""
    os.setpgid(0, 0)
    return os.getpid()


def end_groups(ranks: Sequence[int]) -> None:
    """Kill what is left of the process groups that these processes have led.

    Not multiprocessing's resource tracker, which removes what killed processes leave in /dev/shm,
    and then ends.
    """
    for entry in os.listdir("/proc"):
        with suppress(OSError, ValueError, IndexError):  # no process, or one that has just ended
            pid = int(entry)
            group = int(stat_fields(pid)[2])
            if group not in ranks or group == os.getpgrp():
                continue
            if b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def watch_over(ranks: Sequence[int]) -> int:
    """Start the guard of ranks that this process will start; return its number.

    ``ranks``: their numbers, in memory that is shared with them; each writes its own there. If this
    process is killed, the guard kills the groups of the ranks, and ends. End it with
    ``dismiss`` once the ranks have ended.
    """
    parent = os.getpid()
    guard = os.fork()
    if guard:
        return guard
    try:
        lead_group()  # Ctrl-C is no reason to end
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        while os.getppid() == parent:
            signal.sigwait({signal.SIGTERM})
        end_groups([rank for rank in ranks if rank])  # 0: it has not begun yet
    finally:
        os._exit(0)


def dismiss(guard: int) -> None:
    """End the guard."""
    with suppress(ProcessLookupError, ChildProcessError):
        os.kill(guard, signal.SIGKILL)
        os.waitpid(guard, 0)


log = logging.getLogger(__name__)

GRACE_S = 10.0
"""How long ranks may take to end after a stop, before they are killed."""

_MAX_PLACE = 107 - len("/iobench-4194304-sockets-abcdefgh/listener-abcdefgh")
"""Bytes that a directory's path may have, so that the path of a socket in it has at most 107 bytes
(unix(7)).
"""

_PIPE_BYTES = 1 << 16

fork = multiprocessing.get_context("fork")


class Crew(Protocol):
    """The ranks of a task, or those of them whose parent this process is."""

    ranks: range

    def start(self) -> None:
        """Start all ranks."""

    def send(self, rank: int, command: Command) -> None:
        """Send a command to a rank. Raises WorkerError for a rank that died."""

    def receive(
        self, awaited: Sequence[int], timeout_s: float = 0.2
    ) -> Iterator[tuple[int, Answer]]:
        """Yield what the ranks ``awaited`` have sent; wait for it for up to ``timeout_s``.

        Raises the error with which a rank failed, and WorkerError for one that died.
        """

    def is_alive(self, rank: int) -> bool:
        """Whether the rank still runs."""

    def stop(self) -> None:
        """Set the flag ``stopped`` of every rank's link."""

    def hurry(self, ranks: Sequence[int]) -> None:
        """Ask those of these ranks that are alive to send their last message now (HURRY)."""

    def end(self, grace_s: float = GRACE_S) -> None:
        """Send Stop to all ranks that still listen, and wait for them to end.

        A rank that does not end within ``grace_s`` is killed. May be called again.
        """


class ForkedCrew:
    """``count`` processes of this host that run ``task``; see Crew.

    They are the ranks from ``first`` on of a crew of ``world`` ranks, by default all of it.
    """

    def __init__(self, count: int, task: Task, *, first: int = 0, world: int | None = None) -> None:
        self.ranks = range(first, first + count)
        self.world = count if world is None else world
        self.first = first
        self._pipes = [fork.Pipe() for _ in range(count)]
        self._stopped = fork.RawValue(ctypes.c_bool, False)
        links = [
            Link(first + place, self.world, self._stopped, pipe, first, count)
            for place, (_, pipe) in enumerate(self._pipes)
        ]
        # The process groups that ranks lead; none if they run no code of others.
        led = count if getattr(task, "others_code", False) else 0
        self._groups: MutableSequence[int] = fork.RawArray(ctypes.c_int, led)  # type: ignore[assignment]
        # Not daemonic, because a rank starts the workers of its loader.
        self.processes = [
            fork.Process(target=_rank, args=(task, link, self._groups, self._pipes), daemon=False)
            for link in links
        ]
        self._pauses: Pauses | None = getattr(task, "pauses", None)
        self._held = ExitStack()

    def start(self) -> None:
        sockets = self._held.enter_context(scratch("sockets", within=place_of_sockets()))
        with defer_interrupts():  # a rank inherits this, until it ignores Ctrl-C itself
            if self._groups:
                self._held.callback(dismiss, watch_over(self._groups))
            for process, (_, ours) in zip(self.processes, self._pipes, strict=True):
                _keep_sockets_in(sockets, process)
                try:
                    process.start()
                except OSError as error:
                    raise NoMemoryError(
                        f"this host did not start {counted(len(self.ranks), 'rank')}: "
                        f"{error.strerror}",
                        remedy="use fewer ranks, or allow more processes (ulimit -u, pids.max)",
                    ) from error
                ours.close()
        log.debug("%d ranks were forked", len(self.processes))

    def send(self, rank: int, command: Command) -> None:
        try:
            self.pipe(rank).send(command)
        except OSError:
            raise _died(rank, self._process(rank)) from None

    def pipe(self, rank: int) -> Connection:
        """The parent's end of the pipe of a rank, to wait for together with others."""
        return self._pipes[rank - self.first][0]

    def wait(self, connections: Sequence[Connection | int], timeout_s: float) -> list[object]:
        """Wait for messages while the ranks work; return the connections that have some."""
        began_ns = time.monotonic_ns()
        ready = wait(connections, timeout=timeout_s)
        if self._pauses is not None:
            alive = {
                rank: process.pid
                for rank, process in zip(self.ranks, self.processes, strict=True)
                if process.pid is not None
            }
            self._pauses.waited(alive, began_ns, timeout_s)
        return [*ready]

    def _process(self, rank: int) -> BaseProcess:
        return self.processes[rank - self.first]

    def is_alive(self, rank: int) -> bool:
        return self._process(rank).is_alive()

    def stop(self) -> None:
        self._stopped.value = True

    def hurry(self, ranks: Sequence[int]) -> None:
        for rank in ranks:
            process = self._process(rank)
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, HURRY)

    def receive(
        self, awaited: Sequence[int], timeout_s: float = 0.2
    ) -> Iterator[tuple[int, Answer]]:
        pipes = {rank: self.pipe(rank) for rank in awaited}
        ready = self.wait([pipe for pipe in pipes.values() if not pipe.closed], timeout_s)
        heard = set()
        for rank, pipe in pipes.items():
            if pipe not in ready:
                continue
            try:
                answer: Answer | Failed = pipe.recv()
            except (EOFError, OSError):  # also in the middle of a message
                raise _died(rank, self._process(rank)) from None
            if isinstance(answer, Failed):
                raise answer.error
            heard.add(rank)
            yield rank, answer
        for rank in set(awaited) - heard:
            # What a rank has started holds the other end of its pipe, too, so an open one does not
            # prove that the rank lives.
            process = self._process(rank)
            if process.exitcode is not None and not pipes[rank].poll():
                raise _died(rank, process)

    def end(self, grace_s: float = GRACE_S) -> None:
        # End the ranks here, because Python's own exit would wait for them without a limit.
        with defer_interrupts():
            for pipe, _ in self._pipes:
                with suppress(OSError):
                    pipe.send(Stop())
            deadline = time.monotonic() + grace_s
            self._drain(deadline)
            for process in self.processes:
                if process.pid is not None:  # its sentinel closes a little before it has ended
                    process.join(max(0.0, deadline - time.monotonic()))
                if process.pid is not None and process.is_alive():
                    log.info("%s did not end within %g s, and is killed", process.name, grace_s)
                    process.kill()  # its workers die with it (see iobench.base.processes)
                    process.join()
            if self._groups:
                end_groups([each.pid for each in self.processes if each.pid])
            for pipe, _ in self._pipes:
                pipe.close()
            self._held.close()

    def _drain(self, deadline: float) -> None:
        """Wait for all ranks to end, and throw away what they report.

        A rank whose report is larger than the pipe's buffer waits until it is read.
        """
        alive = {each.sentinel for each in self.processes if each.pid is not None}
        open_pipes = {pipe.fileno() for pipe, _ in self._pipes if not pipe.closed}
        while alive and (left := deadline - time.monotonic()) > 0:
            for ready in wait([*alive, *open_pipes], left):
                assert isinstance(ready, int)
                if ready in alive:
                    alive.remove(ready)
                    continue
                # Not by messages: one that is cut short would never end.
                with suppress(ConnectionResetError):
                    if os.read(ready, _PIPE_BYTES):
                        continue
                open_pipes.remove(ready)


def place_of_sockets() -> Path:
    """The directory for temporary files, or /tmp if its path is too long for a socket."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= _MAX_PLACE else Path("/tmp")


def _keep_sockets_in(folder: Path, process: BaseProcess) -> None:
    """Make a process, and those that it forks, create multiprocessing's sockets in ``folder``.

    A loader worker hands tensors over through a socket (multiprocessing.resource_sharer). If its
    path is too long, this fails in a thread which drops the batch, and the rank waits for ever.
    Python up to 3.13 takes the directory from ``_config`` of the process, which forks inherit.
    """
    config = getattr(process, "_config", None)
    if isinstance(config, dict):
        config["tempdir"] = str(folder)


def _died(rank: int, process: BaseProcess) -> WorkerError:
    process.join(GRACE_S)  # its end of the pipe closes a little earlier
    code = process.exitcode
    if code == -signal.SIGBUS:
        return BusError(f"rank {rank}")
    log.info("rank %d died, exit code %s", rank, code)
    reason = (
        f"killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return WorkerError(f"rank {rank} died ({reason})", remedy=_why_died(code))


def _why_died(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return "see the kernel log for out-of-memory kills"
    if code is not None and code < 0:
        return "compiled code has crashed; set PYTHONFAULTHANDLER=1 to see where"
    return "code within it called os._exit, or closed files that were not its own"


# In the rank's own process


def _rank(
    task: Task,
    link: Link,
    groups: MutableSequence[int],
    pipes: Sequence[tuple[Connection, Connection]],
) -> None:
    for place, (theirs, ours) in enumerate(pipes):
        theirs.close()
        if place != link.local:  # else the parent would wait for the rest of what that rank says
            ours.close()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C signals the whole process group; the parent says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(HURRY, signal.SIG_DFL)  # a task may handle it
    if groups:
        groups[link.local] = lead_group()
    die_with_parent()
    single_threaded()
    set_rank(link.rank)
    log.debug("rank %d has begun", link.rank)
    try:
        task.run(link)
    except IobenchError as error:
        _send_failure(link, error)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    except BaseException as error:
        failure = worker_death(error) or WorkerError(
            f"rank {link.rank} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        )
        failure.add_note(traceback.format_exc())
        _send_failure(link, failure)
    finally:
        with suppress(OSError):  # code of the user may have closed it
            link.close()


def _send_failure(link: Link, error: IobenchError) -> None:
    with suppress(OSError):
        link.send(Failed(error))
