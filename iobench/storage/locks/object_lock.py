"""A lock without flock(2): the object ``.iobench-lock``, and the objects ``.iobench-readers/*``.

Of several writers the one that creates the object first has the lock. Some servers let two writers
create one key at the same time. So, unless a storage is known to refuse that, the object is read
again after a pause, and a writer that finds another token in it has lost. A writer creates its lock
and then looks for readers; a reader creates its own object, then looks for a lock, and gives up if
it finds one. So of a writer and a reader that start at the same moment, one continues.

A lock object does not end with its process. So each one says who made it, and is refreshed
regularly (keeper.py). The object of a dead process of this host is taken over without asking.
Whether a process of another host lives is only known from its heartbeat; its lock is broken on
demand.

A storage that keeps a history of every write (``keeps_history``) gets one lock object for a writer,
without heartbeats, and none for readers.
"""

from __future__ import annotations

import logging
import time

from ...errors import StorageError, TargetHeldError
from ...units import format_duration
from ..base import Replacing, Storage
from .holder import BODY_BYTES, Holder
from .keeper import HEARTBEAT_S
from .object_lease import ObjectLease, readers
from .objects import (
    LOCK,
    create,
    look,
    one_of_this_host,
    overwrite,
    reader_key,
    remove,
    remove_if_ours,
)

PAUSE_S = 1.0
"""Pause before a new lock is read again: longer than the time between two concurrent writers."""

YIELD_S = 3.0
"""How long a writer waits for readers that may be about to give up."""

WATCH_S = 1.5 * HEARTBEAT_S
"""How long a lock that is to be broken is watched for a heartbeat."""

SETTLE_S = 5.0
"""How long whoever has broken a lock does nothing: longer than ``held.FRESH_S``, for which its
holder may go on."""

RIVAL_S = 2.0
"""How long a lock that could not be created may take to appear."""

_ATTEMPTS = 20
_POLL_S = 0.2
_BREAK = "--break-lock"

log = logging.getLogger(__name__)


def hold_exclusive(storage: Storage, *, verb: str, break_dead: bool = False) -> ObjectLease:
    """Take the writer's lock. Raises TargetHeldError, StorageError."""
    mine = Holder.this_process(verb)
    try:
        _take(storage, mine, break_dead=break_dead)
        wait_for_readers(storage, break_dead=break_dead)
    except BaseException:
        _remove_own(storage, LOCK, mine)
        raise
    return ObjectLease(storage, LOCK, mine)


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


def _take(storage: Storage, mine: Holder, *, break_dead: bool) -> None:
    """Make this process the owner of the lock. Raises TargetHeldError, StorageError."""
    deadline = time.monotonic() + RIVAL_S
    failure: StorageError | None = None
    for _ in range(_ATTEMPTS):
        there, holder = look(storage, LOCK)
        if not there:
            try:
                if _created(storage, mine):
                    return
            except StorageError as error:
                failure = error  # another process may be creating its own object at this moment
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
        elif holder is not None and holder.is_dead():
            if _taken_over(storage, holder, mine):
                return
        elif break_dead:
            _watch(storage, LOCK, holder)
            log.warning(
                "broke the lock of %s, which was held by %s",
                storage.url,
                holder or "an unknown process",
            )
            overwrite(storage, LOCK, mine)
            time.sleep(SETTLE_S)
            if _is_ours(storage, mine):
                return
        else:
            raise _held(storage, holder)
    raise failure or TargetHeldError(
        f"several processes tried to lock {storage.url} at once", remedy="start this command again"
    )


def _created(storage: Storage, mine: Holder) -> bool:
    """Whether this process has created the lock. Raises StorageError if nobody has."""
    try:
        create(storage, LOCK, mine)
    except StorageError:
        there, holder = look(storage, LOCK)
        if not there:
            raise
        # A retried request may have found its own first attempt.
        if holder is None or holder.token != mine.token:
            return False
    return (isinstance(storage, Replacing) and storage.exclusive_create) or _is_ours(storage, mine)


def _is_ours(storage: Storage, mine: Holder) -> bool:
    """Whether, after a pause, the lock is still this process's."""
    time.sleep(PAUSE_S)
    _, holder = look(storage, LOCK)
    return holder is not None and holder.token == mine.token


def _taken_over(storage: Storage, dead: Holder, mine: Holder) -> bool:
    """Whether this process has replaced the lock of a dead one."""
    with one_of_this_host(storage):
        _, holder = look(storage, LOCK)
        if holder is None or holder.token != dead.token:
            return False  # another process has taken it meanwhile
        overwrite(storage, LOCK, mine)
    return _is_ours(storage, mine)


def wait_for_readers(storage: Storage, *, break_dead: bool) -> None:
    """Wait for readers to give up. Raises TargetHeldError if one continues; StorageError."""
    deadline = time.monotonic() + YIELD_S
    while living := readers(storage):
        if time.monotonic() > deadline:
            if not break_dead:
                raise _held(storage, living[0])
            for reader in living:
                _watch(storage, reader_key(reader.token), reader)
                remove(storage, reader_key(reader.token))
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
        _watch(storage, LOCK, holder)
        remove(storage, LOCK)
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


def _watch(storage: Storage, key: str, holder: Holder | None) -> None:
    """Raises TargetHeldError if the holder of a lock that is to be broken lives.

    A heartbeat is proof, whatever the two hosts' clocks say.
    """
    if holder is not None and holder.here() and not holder.is_dead():
        raise TargetHeldError(
            f"{storage.url} is in use by {holder}, which is alive",
            remedy="wait until it has ended, or end it",
        )
    deadline = time.monotonic() + WATCH_S
    while True:
        last = time.monotonic() >= deadline  # a heartbeat of the last moment counts, too
        there, now = look(storage, key)
        if not there:
            return
        if now != holder:
            raise TargetHeldError(
                f"{storage.url} is in use by {now or 'another process'}, which is alive",
                remedy="wait until it has ended, or end it",
            )
        if last:
            return
        time.sleep(min(1.0, WATCH_S / 10))


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
    try:
        remove_if_ours(storage, key, mine.token)
    except StorageError:
        pass  # the first failure is reported; the object is taken over once the process is dead
