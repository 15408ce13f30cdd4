"""The heartbeat of a lock object: a process of its own that refreshes it, and ends with its parent.

It is a process because the parent forks: ranks, workers of a pool, loader workers. A thread that
talked to the storage in the parent would hold locks of a client library, of logging or of the
interpreter at the moment of a fork, and the child would wait for them for ever. And a forked
process can't use every client (storage/s3/clients/obstore_library.py says why), so this one is
started from the beginning. It imports nothing of iobench before the first heartbeat is due: a lock
that is held for a moment costs a small process.

The parent and all that it forks hold the other end of its standard input. When the last of them is
dead without having said "stop", the keeper removes the lock object, and ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...errors import IobenchError, MissingObjectError, StorageError
from ..base import Replacing, Storage
from .holder import Holder
from .keeper_process import STOP
from .objects import read_holder, remove_if_ours

HEARTBEAT_S = 10.0
_AGAIN_S = 1.0
_END_S = 5.0  # how long a heartbeat that is on its way may take when the lock is released
_PROGRAM = Path(__file__).with_name("keeper_process.py")


class Keeper:
    """Keeps one lock object alive until ``stop``. In the process that holds the lock."""

    def __init__(self, storage: Storage, key: str, holder: Holder) -> None:
        """Raises TypeError, PicklingError or UsageError for a storage that can't be pickled."""
        work = pickle.dumps((storage, key, holder))
        task = pickle.dumps((sys.path, HEARTBEAT_S, work))
        self._said = ""
        # -P: the folder of the program is no place to import from; the parent's own path is sent.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # what ends the parent's group lets it remove the lock
        )
        self._write(len(task).to_bytes(8, "little") + task)
        os.set_blocking(self._output().fileno(), False)

    def lost(self) -> str:
        """Why the lock is not ours any more; '' as long as nothing is known against it."""
        with suppress(OSError, ValueError):
            self._said += (self._output().read() or b"").decode(errors="replace")
        return self._said

    def stop(self) -> None:
        """No heartbeat comes after this."""
        self._write(STOP)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _output(self) -> Any:
        assert self._process.stdout is not None
        return self._process.stdout

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed: the lock has no heartbeat then
            self._process.stdin.write(data)


# In the process of its own


def make_beat(work: bytes) -> tuple[Callable[[], str | None], Callable[[], None]]:
    """For keeper_process: (refresh the object, remove it). The first returns why it was lost.

    '' means that this process can't see the object at all, None that all is well.
    """
    storage, key, holder = pickle.loads(work)
    seen = False

    def beat() -> str | None:
        nonlocal seen
        try:
            try:
                there = read_holder(storage, key)
            except MissingObjectError:
                time.sleep(_AGAIN_S)  # a server may be busy with the name
                there = read_holder(storage, key)
            if there is None or there.token != holder.token:
                return f"{there or 'another process'} has taken it over"
            seen = True
            if isinstance(storage, Replacing):
                storage.replace(key, holder.beaten().dump())
        except MissingObjectError:
            # Never seen: a storage in the memory of the parent, which nobody else can reach either.
            return "somebody has removed it" if seen else ""
        except StorageError:
            pass  # while the storage is away nobody else can take the lock either
        return None

    def remove() -> None:
        with suppress(IobenchError):
            remove_if_ours(storage, key, holder.token)

    return beat, remove
