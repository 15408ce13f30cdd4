"""A lock without flock(2): the object ``.iobench-lock``, and the objects ``.iobench-readers/*``.

Of several writers the one that creates the object has the lock: the storage refuses to create a key
that exists (``Replacing.exclusive_create``). A storage that can't do that is not locked, which is
said in a warning. A writer then looks for readers; a reader creates its own object, then looks for
a lock, and gives up if it finds one. So of a writer and a reader that start at the same moment, one
continues.

A lock object does not end with its process. So each one says who made it, and is refreshed
regularly (object_lease.py). The object of a dead process of this host is removed without asking.
Whether a process of another host lives is only known from its heartbeat; its lock is broken on
demand.

A storage that keeps a history of every write (``keeps_history``) gets one lock object for a writer,
without heartbeats, and none for readers.
"""

from __future__ import annotations

import functools
import logging
import time
from contextlib import suppress

from ...base.errors import MissingObjectError, StorageError, TargetHeldError
from ...base.units import format_duration
from ..base import Replacing, Storage
from .holder import BODY_BYTES, Holder
from .object_lease import HEARTBEAT_S, ObjectLease, readers
from .objects import (
    LOCK,
    create,
    look,
    one_of_this_host,
    read_holder,
    reader_key,
    remove,
    remove_if_ours,
)

NOT_LOCKED = (
    "not locked: this storage has no conditional create; make sure that nobody else writes here"
)

YIELD_S = 3.0
"""How long a writer waits for readers that may be about to give up."""

WATCH_S = 1.5 * HEARTBEAT_S
"""How long a lock that is to be broken is watched for a heartbeat."""

SETTLE_S = 5.0
"""How long whoever has broken a lock does nothing: longer than ``held.FRESH_S``, for which its
holder may go on."""

_ATTEMPTS = 10
_POLL_S = 0.2
_BREAK = "--break-lock"

log = logging.getLogger(__name__)


def hold_exclusive(storage: Storage, *, verb: str, break_dead: bool = False) -> ObjectLease:
    """Take the writer's lock, or warn that there is none. Raises TargetHeldError, StorageError."""
    mine, unlocked = Holder.this_process(verb), ""
    try:
        if not _take(storage, mine, break_dead=break_dead):
            unlocked = NOT_LOCKED
            say_unlocked(storage.url)
    except BaseException:
        _remove_own(storage, LOCK, mine)
        raise
    lease = ObjectLease(storage, LOCK, mine, unregistered=unlocked)  # its heart beats from now on
    try:
        wait_for_readers(storage, break_dead=break_dead)
    except BaseException:
        lease.release()
        raise
    return lease


@functools.cache
def say_unlocked(url: str) -> None:
    """Once for each place, however often a command takes its lock."""
    log.warning("%s is %s", url, NOT_LOCKED)


def hold_shared(storage: Storage, *, verb: str, break_dead: bool = False) -> ObjectLease:
    """Create a reader's object. Raises TargetHeldError if a writer has the lock.

    If these credentials may not create an object, the storage is read without one, and the lease's
    ``unregistered`` says why.
    """
    mine = Holder.this_process(verb)
    key = reader_key(mine.token)
    try:
        require_no_writer(storage, break_dead=break_dead)
        if storage.traits.keeps_history:
            why = "this storage keeps every write in its history"
            return ObjectLease(storage, key, mine, unregistered=why)
        create(storage, key, mine)
    except StorageError as error:
        _remove_own(storage, key, mine)
        return ObjectLease(storage, key, mine, unregistered=str(error))
    except BaseException:
        _remove_own(storage, key, mine)
        raise
    try:
        require_no_writer(storage, break_dead=False)
    except BaseException:
        _remove_own(storage, key, mine)
        raise
    return ObjectLease(storage, key, mine)


def _take(storage: Storage, mine: Holder, *, break_dead: bool) -> bool:
    """Make this process the owner of the lock; False where the storage can't have one.

    Raises TargetHeldError, StorageError.
    """
    if _excludes(storage) is False:
        return False
    failure: StorageError | None = None
    broken = False
    for _ in range(_ATTEMPTS):
        there, holder = look(storage, LOCK)
        if not there:
            try:
                create(storage, LOCK, mine)
            except StorageError as error:
                failure = error
                time.sleep(_POLL_S)
        elif holder is not None and holder.token == mine.token:
            if not broken:
                if not _excludes(storage):
                    remove(storage, LOCK)
                return bool(_excludes(storage))
            broken = False
            time.sleep(SETTLE_S)
        elif holder is not None and holder.is_dead():
            remove_if_ours(storage, LOCK, holder.token)
        elif break_dead:
            _break(storage, LOCK, holder)
            log.warning(
                "broke the lock of %s, which was held by %s",
                storage.url,
                holder or "an unknown process",
            )
            broken = True
        else:
            raise _held(storage, holder)
    raise failure or TargetHeldError(
        f"several processes tried to lock {storage.url} at once", remedy="start this command again"
    )


def _excludes(storage: Storage) -> bool | None:
    """Whether of several writers one can create the lock; None: the first attempt will show it."""
    return storage.exclusive_create if isinstance(storage, Replacing) else False


def wait_for_readers(storage: Storage, *, break_dead: bool) -> None:
    """Wait for readers to give up. Raises TargetHeldError if one continues; StorageError."""
    deadline = time.monotonic() + YIELD_S
    while living := readers(storage):
        if time.monotonic() > deadline:
            if not break_dead:
                raise _held(storage, living[0])
            for reader in living:
                _break(storage, reader_key(reader.token), reader)
            return
        time.sleep(_POLL_S)


def require_no_writer(storage: Storage, *, break_dead: bool) -> None:
    """Raises TargetHeldError if there is a writer; StorageError if that can't be found out."""
    there, holder = look(storage, LOCK)
    if not there:
        return
    if holder is not None and holder.is_dead():
        remove_if_ours(storage, LOCK, holder.token)
    elif break_dead:
        _break(storage, LOCK, holder)
        time.sleep(SETTLE_S)
    else:
        raise _held(storage, holder)


def remove_dead(storage: Storage) -> int:
    """Remove the lock of a dead process of this host; its size in bytes, 0 if there is none.

    Raises StorageError.
    """
    _, holder = look(storage, LOCK)
    if holder is None or not holder.is_dead():
        return 0
    remove_if_ours(storage, LOCK, holder.token)
    return BODY_BYTES


def _break(storage: Storage, key: str, holder: Holder | None) -> None:
    """Remove a lock object whose holder shows no sign of life. Raises TargetHeldError if it does.

    A heartbeat is proof, whatever the two hosts' clocks say.
    """

    def require_same() -> None:
        if (now := read_holder(storage, key)) != holder:
            raise TargetHeldError(
                f"{storage.url} is in use by {now or 'another process'}, which is alive",
                remedy="wait until it has ended, or end it",
            )

    if holder is not None and holder.here() and not holder.is_dead():
        raise TargetHeldError(
            f"{storage.url} is in use by {holder}, which is alive",
            remedy="wait until it has ended, or end it",
        )
    deadline = time.monotonic() + WATCH_S
    with suppress(MissingObjectError):
        while True:
            last = time.monotonic() >= deadline  # a heartbeat of the last moment counts, too
            require_same()
            if last:
                break
            time.sleep(min(1.0, WATCH_S / 10))
    with one_of_this_host(storage):
        remove(storage, key, require_same)


def _held(storage: Storage, holder: Holder | None) -> TargetHeldError:
    if holder is None:
        return TargetHeldError(
            f"{storage.url} has a lock ({LOCK}) that cannot be read",
            remedy=f"find out which process uses it; if none does, {_BREAK} breaks the lock",
        )
    if holder.here():
        return TargetHeldError(
            f"{storage.url} is in use by {holder}, since {holder.created}",
            remedy="wait until it has ended, or end it",
        )
    age = format_duration(holder.age_s())
    return TargetHeldError(
        f"{storage.url} is in use by {holder}, since {holder.created}; last heartbeat {age} ago",
        remedy=f"wait until it has ended; if it is dead, {_BREAK} breaks the lock",
    )


def _remove_own(storage: Storage, key: str, mine: Holder) -> None:
    """After a failure, remove this process's object."""
    # The first failure is reported. The object is taken over once the process is dead.
    with suppress(StorageError):
        remove_if_ours(storage, key, mine.token)
