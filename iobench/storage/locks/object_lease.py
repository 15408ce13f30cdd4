"""A lock object of this process with its heartbeat, and the readers of the same place."""

from __future__ import annotations

import logging
import os
import pickle
import time

from ...errors import IobenchError, StorageError, TargetLostError
from ..base import Storage
from .holder import Holder
from .keeper import Keeper
from .objects import READERS, look, remove, remove_if_ours

AGAIN_S = 0.5
"""Pause before a lock object is looked for once more, where it was not seen."""

log = logging.getLogger(__name__)


class ObjectLease:
    """A lock object of this process, until ``release`` is called."""

    def __init__(
        self, storage: Storage, key: str, holder: Holder, *, unregistered: str = ""
    ) -> None:
        """``unregistered``: why there is no object, if a reader may not write one."""
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
