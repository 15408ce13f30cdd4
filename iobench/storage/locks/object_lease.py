"""A lock object of this process with its heartbeat, and the readers of the same place.

The heartbeat is a separate process that refreshes the object and ends with its parent. It is a
process because the parent forks: ranks, workers of a pool, loader workers. A thread of the
parent that talks to the storage would hold locks of a client library, of logging or of the
interpreter at the moment of a fork, and the child would wait for them forever. A forked process
can't use every client either (see storage/s3/clients/obstore_compat.py), so this one is started
anew. It imports nothing of iobench before the first heartbeat is due: a lock that is held for a
short time costs only a small process.

The parent and all processes that it forks hold the other end of the keeper's standard input. When
the last of them has ended without sending "stop", the keeper removes the lock object, and ends.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...base.errors import IobenchError, StorageError, TargetLostError
from ..base import Storage
from .holder import Holder
from .keeper_process import STOP
from .objects import READERS, look, remove, remove_if_ours

HEARTBEAT_S = 10.0
_END_S = 5.0  # how long a running heartbeat may take when the lock is released
_PROGRAM = Path(__file__).with_name("keeper_process.py")

AGAIN_S = 0.5
"""Pause before a lock object is looked for once more, where it was not seen."""

log = logging.getLogger(__name__)


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


class ObjectLease:
    """A lock object of this process, until ``release`` is called."""

    def __init__(
        self, storage: Storage, key: str, holder: Holder, *, unregistered: str = ""
    ) -> None:
        """``unregistered``: why there is no object; a writer, or a reader, works without one."""
        self.unregistered = unregistered
        self._storage, self._key, self._holder = storage, key, holder
        self._pid = os.getpid()
        self._keeper: Keeper | None = None
        if not unregistered and not storage.traits.keeps_history:
            try:
                self._keeper = Keeper(storage, key, holder)
            except (
                IobenchError,
                TypeError,
                AttributeError,
                pickle.PicklingError,
                OSError,
            ) as error:
                log.info("the lock %s of %s has no heartbeat: %s", key, storage.url, error)

    def others(self) -> list[str]:
        """The other processes that read here now. Raises StorageError."""
        found = readers(self._storage, except_key=self._key)
        return [str(one) for one in found if not one.is_this_process()]

    def check(self) -> None:
        """Raises TargetLostError if a heartbeat has found that another process has the lock."""
        if self._pid != os.getpid():
            return  # what the keeper says is for the process that started it
        if self._keeper is not None and (why := self._keeper.lost()):
            raise self._lost(why)

    def confirm(self) -> None:
        """``check`` by looking now. Raises TargetLostError, StorageError."""
        self.check()
        if self.unregistered:
            return
        there, holder = look(self._storage, self._key)
        if holder is None:
            time.sleep(AGAIN_S)  # a server may be busy with the name
            there, holder = look(self._storage, self._key)
        if not there:
            raise self._lost("another process has removed it")
        if holder is None or holder.token != self._holder.token:
            raise self._lost(f"{holder or 'another process'} has taken it over")

    def release(self) -> None:
        if self._pid != os.getpid():
            return  # a forked copy must not release the lock
        if self._keeper is not None:
            self._keeper.stop()  # otherwise a last heartbeat could create the object again
            self._keeper = None
        if not self.unregistered:
            try:
                remove_if_ours(self._storage, self._key, self._holder.token)
            except StorageError as error:
                log.warning("cannot remove the lock of %s: %s", self._storage.url, error)

    def _lost(self, why: str) -> TargetLostError:
        return TargetLostError(
            f"stopped, because the lock of {self._storage.url} is lost: {why}",
            remedy="find out which other process uses this place, and start again",
        )


def readers(storage: Storage, *, except_key: str = "") -> list[Holder]:
    """The processes that read here, without the reader of the object ``except_key``.

    Objects of dead processes of this host are removed, and invalid ones ignored. Raises
    StorageError.
    """
    found = []
    for entry in list(storage.list(READERS)):
        if not entry.key.endswith(".json") or entry.key == except_key:
            continue
        _, holder = look(storage, entry.key)
        if holder is not None and holder.is_dead():
            _discard(storage, entry.key)
        elif holder is not None:
            found.append(holder)
    return found


def _discard(storage: Storage, key: str) -> None:
    try:
        remove(storage, key)
    except StorageError as error:
        log.info("cannot remove %s: %s", key, error)
