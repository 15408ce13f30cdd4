"""Forked ranks and their pipes: begun together, watched, ended together. What they do is the caller's business."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..errors import BusError, IobenchError, WorkerError
from ..interrupts import defer_interrupts
from ..load.loader import die_with_parent, single_threaded, worker_death
from ..storage.scratch import scratch

GRACE_S = 10.0
"""How long ranks have to end after a stop, before they are killed."""

_MAX_PLACE = 107 - len("/iobench-4194304-sockets-abcdefgh/listener-abcdefgh")
"""Bytes of a directory's path, so that a socket below it has a path of 107 (unix(7))."""

fork = multiprocessing.get_context("fork")

Body = Callable[[int, Connection], None]
"""What a rank does in its own process: (its number, its end of the pipe)."""


class Ranks:
    """``count`` processes that run ``body``. Forked, so that what the parent holds is shared, not copied."""

    def __init__(self, count: int, body: Body) -> None:
        self._pipes = [fork.Pipe() for _ in range(count)]
        # Forked processes must not write what the parent has buffered a second time.
        self.processes = [
            fork.Process(target=_rank, args=(body, rank, self._pipes[rank][1]), daemon=False)
            for rank in range(count)
        ]
        self._held = ExitStack()

    def start(self) -> None:
        sockets = self._held.enter_context(scratch("sockets", within=place_of_sockets()))
        with defer_interrupts():  # until a rank has said that Ctrl-C is its parent's
            for rank, process in enumerate(self.processes):
                _keep_sockets_in(sockets, process)
                process.start()
                self._pipes[rank][1].close()

    def send(self, rank: int, message: Any) -> None:
        """Raises WorkerError for a rank that died."""
        try:
            self._pipes[rank][0].send(message)
        except OSError:
            raise _died(rank, self.processes[rank]) from None

    def signal(self, awaited: Sequence[int], number: int) -> None:
        """Send a signal to those of the ranks ``awaited`` that live."""
        for rank in awaited:
            pid = self.processes[rank].pid
            if pid is not None and self.processes[rank].is_alive():
                os.kill(pid, number)

    def receive(self, awaited: Sequence[int], timeout_s: float = 0.2) -> Iterator[tuple[int, Any]]:
        """What the ranks ``awaited`` have sent, for up to ``timeout_s``.

        Raises what a rank raised, and WorkerError for one that died.
        """
        mine: list[Any] = [
            pipe
            for rank, (pipe, _) in enumerate(self._pipes)
            if rank in awaited and not pipe.closed
        ]
        ends = [pipe for pipe, _ in self._pipes]
        heard = set()
        for pipe in wait(mine, timeout=timeout_s):
            rank = ends.index(pipe)  # type: ignore[arg-type]
            try:
                message: Any = pipe.recv()  # type: ignore[union-attr, call-arg]
            except (EOFError, ConnectionResetError):
                raise _died(rank, self.processes[rank]) from None
            if message[0] == "failed":
                raise message[1]
            heard.add(rank)
            yield rank, message
        for rank in set(awaited) - heard:
            # Its end of the pipe may live on in a rank that was forked after it, so the end of the pipe alone is no proof of life.
            process = self.processes[rank]
            if process.exitcode is not None and not ends[rank].poll():
                raise _died(rank, process)

    def end(self, farewell: Any) -> None:
        """Send ``farewell`` to whoever still listens, and wait; a rank that does not end in time is killed."""
        with (
            defer_interrupts()
        ):  # else those that are left are waited for by Python's own exit, without an end
            for pipe, _ in self._pipes:
                with suppress(OSError):
                    pipe.send(farewell)
            deadline = time.monotonic() + GRACE_S
            for process in self.processes:
                if process.pid is None:
                    continue
                process.join(max(0.0, deadline - time.monotonic()))
                if process.is_alive():
                    process.kill()  # its workers die with it (PR_SET_PDEATHSIG)
                    process.join()
            for pipe, _ in self._pipes:
                pipe.close()
            self._held.close()


def place_of_sockets() -> Path:
    """The directory for temporary files, or /tmp where its path is too long for a socket's."""
    usual = Path(tempfile.gettempdir())
    return usual if len(os.fsencode(usual)) <= _MAX_PLACE else Path("/tmp")


def _keep_sockets_in(folder: Path, process: Any) -> None:
    """Have a process, and what it forks, make multiprocessing's sockets in ``folder``.

    A loader worker hands tensors over through a socket (multiprocessing.resource_sharer). Where its
    path is too long, that fails in a thread which drops the batch, and the rank waits for ever.
    Python up to 3.13 looks for the directory in ``_config`` of the process, which forks inherit.
    """
    config = getattr(process, "_config", None)
    if isinstance(config, dict):
        config["tempdir"] = str(folder)


def _died(rank: int, process: Any) -> WorkerError:
    process.join(GRACE_S)  # its end of the pipe closes a little earlier
    code = process.exitcode
    if code == -signal.SIGBUS:
        return BusError(f"rank {rank}")
    reason = (
        f"killed by {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return WorkerError(
        f"rank {rank} died ({reason})", remedy="see the kernel log for out-of-memory kills"
    )


# In the rank's own process


def _rank(body: Body, rank: int, pipe: Connection) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches the whole process group; the parent tells when to stop
    die_with_parent()
    single_threaded()
    try:
        body(rank, pipe)
    except IobenchError as error:
        _send_failure(pipe, error)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    except BaseException as error:
        failure = worker_death(error) or WorkerError(
            f"rank {rank} failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        )
        failure.add_note(traceback.format_exc())
        _send_failure(pipe, failure)
    finally:
        pipe.close()


def _send_failure(pipe: Connection, error: IobenchError) -> None:
    with suppress(OSError):
        pipe.send(("failed", error))
