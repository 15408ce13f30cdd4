"""The heartbeat of a lock object: a separate process that refreshes it and ends with its parent.

It is a process because the parent forks: ranks, workers of a pool, loader workers. A thread of the
parent that talks to the storage would hold locks of a client library, of logging or of the
interpreter at the moment of a fork, and the child would wait for them forever. A forked process
can't use every client either (see storage/s3/clients/obstore_compat.py), so this one is started
anew. It imports nothing of iobench before the first heartbeat is due: a lock that is held for a
short time costs only a small process.

The parent and all processes that it forks hold the other end of the keeper's standard input. When
the last of them has ended without sending "stop", the keeper removes the lock object, and ends.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..base import Storage
from .holder import Holder
from .keeper_process import STOP

HEARTBEAT_S = 10.0
_END_S = 5.0  # how long a running heartbeat may take when the lock is released
_PROGRAM = Path(__file__).with_name("keeper_process.py")


class Keeper:
    """Keeps one lock object alive until ``stop``; used in the process that holds the lock."""

    def __init__(self, storage: Storage, key: str, holder: Holder) -> None:
        """Raises TypeError, PicklingError or UsageError for a storage that can't be pickled."""
        work = pickle.dumps((storage, key, holder))
        task = pickle.dumps((sys.path, HEARTBEAT_S, work))
        self._said = ""
        # -P: do not import from the program's folder; the parent's path is sent.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,  # a signal to the parent's group lets it remove the lock
        )
        self._write(len(task).to_bytes(8, "little") + task)
        os.set_blocking(self._output().fileno(), False)

    def lost(self) -> str:
        """Why the lock was lost; '' as long as it is not known to be lost."""
        with suppress(OSError, ValueError):
            self._said += (self._output().read() or b"").decode(errors="replace")
        return self._said

    def stop(self) -> None:
        """End the heartbeats."""
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
