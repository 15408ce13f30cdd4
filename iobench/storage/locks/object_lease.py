"""A lock object that this process has, with its heartbeat; and who else reads in the same place."""

from __future__ import annotations

import logging
import os
import pickle

from ...errors import IobenchError, StorageError, TargetLostError
from ..base import Storage
from .holder import Holder
from .keeper import Keeper
from .objects import READERS, look, remove, remove_if_ours

log = logging.getLogger(__name__)


class ObjectLease:
    """A lock object of this process, until ``release``."""

    def __init__(
        self, storage: Storage, key: str, holder: Holder, *, unregistered: str = ""
    ) -> None:
        """``unregistered``: why there is no object, where a reader may not write one."""
        self.unregistered = unregistered
        self._storage, self._key, self._holder = storage, key, holder
        self._pid = os.getpid()
        self._keeper: Keeper | None = None
        if not unregistered and not keeps_history(storage):
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
        """Which other processes read here now. Raises StorageError."""
        found = readers(self._storage, beside=self._key)
        return [str(one) for one in found if not one.is_this_process()]

    def check(self) -> None:
        """Raises TargetLostError where a heartbeat has found that the lock is another's."""
        if self._keeper is not None and (why := self._keeper.lost()):
            raise self._lost(why)

    def confirm(self) -> None:
        """The same, by looking now. Raises TargetLostError, StorageError."""
        self.check()
        if self.unregistered:
            return
        there, holder = look(self._storage, self._key)
        if not there:
            raise self._lost("somebody has removed it")
        if holder is None or holder.token != self._holder.token:
            raise self._lost(f"{holder or 'another process'} has taken it over")

    def release(self) -> None:
        if self._pid != os.getpid():
            return  # a fork's copy is not ours to release
        if self._keeper is not None:
            self._keeper.stop()  # else a last heartbeat would bring the object back
            self._keeper = None
        if not self.unregistered:
            try:
                remove_if_ours(self._storage, self._key, self._holder.token)
            except StorageError as error:
                log.warning("cannot remove the lock of %s: %s", self._storage.url, error)

    def _lost(self, why: str) -> TargetLostError:
        return TargetLostError(
            f"the lock of {self._storage.url} is lost, {why}: stopped",
            remedy="find out who else works there, and start again",
        )


def readers(storage: Storage, *, beside: str = "") -> list[Holder]:
    """Who reads here, ``beside`` the reader of that key.

    Objects of dead processes of this host are removed; one that can't be understood counts as none.
    Raises StorageError.
    """
    found = []
    for entry in list(storage.list(READERS)):
        if not entry.key.endswith(".json") or entry.key == beside:
            continue
        _, holder = look(storage, entry.key)
        if holder is not None and holder.is_dead():
            _discard(storage, entry.key)
        elif holder is not None:
            found.append(holder)
    return found


def keeps_history(storage: Storage) -> bool:
    return bool(getattr(storage, "keeps_history", False))


def _discard(storage: Storage, key: str) -> None:
    try:
        remove(storage, key)
    except StorageError as error:
        log.info("cannot remove %s: %s", key, error)
