"""The names and contents of lock objects, and how the keeper refreshes one."""

from __future__ import annotations

import pickle
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import xxhash

from ...base.buffers import private
from ...base.errors import IobenchError, MissingObjectError, StorageError, TargetLostError
from ...base.processes import alone_on_this_host
from ..base import Replacing, Storage, delete
from .holder import BODY_BYTES, Holder, parse_holder

LOCK = ".iobench-lock"
READERS = ".iobench-readers"

_NAME = re.compile(
    rf"(?:{re.escape(LOCK)}|{re.escape(READERS)}/[0-9a-f]{{32}}\.json)"
    r"(?:\.[0-9a-f]{8})?(?:\.part)?"
)
_BLOCK = 4096  # bytes; a multiple of every storage's alignment
_TAKE_OVER_S = 10.0
_RETRY_S = 1.0


def is_lock_name(key: str) -> bool:
    """Whether a key is the name of a lock object, complete or not."""
    return _NAME.fullmatch(key) is not None or key == READERS


def reader_key(token: str) -> str:
    return f"{READERS}/{token}.json"


def read_holder(storage: Storage, key: str) -> Holder | None:
    """The writer of a lock object; None if its contents are not valid.

    Raises MissingObjectError if it does not exist; StorageError.
    """
    buffer = private(_BLOCK, prefault=False).array.data
    count = storage.read_into(key, 0, buffer, once=True)
    return parse_holder(bytes(buffer[: min(count, BODY_BYTES)]))


def look(storage: Storage, key: str) -> tuple[bool, Holder | None]:
    """Whether there is such an object, and its writer. Raises StorageError."""
    try:
        return True, read_holder(storage, key)
    except MissingObjectError:
        return False, None


def create(storage: Storage, key: str, holder: Holder) -> None:
    """Create a lock object. Raises StorageError, also if it exists."""
    if isinstance(storage, Replacing):
        storage.replace(key, holder.dump(), only_new=True)
        return
    with storage.create(key, size_hint=BODY_BYTES) as sink:
        sink.write(holder.dump())


def remove(storage: Storage, key: str, allowed: Callable[[], None] = lambda: None) -> None:
    """Remove a lock object, as ``delete``; a missing one is no error. Raises StorageError."""
    with suppress(MissingObjectError):
        delete(storage, key, allowed)


def remove_if_ours(storage: Storage, key: str, token: str) -> None:
    """Remove a lock object unless another process has taken it over. Raises StorageError."""

    def require_ours() -> None:
        there, holder = look(storage, key)
        if there and (holder is None or holder.token != token):
            raise TargetLostError("another process has taken the lock over")

    with one_of_this_host(storage), suppress(TargetLostError):
        remove(storage, key, require_ours)


@contextmanager
def one_of_this_host(storage: Storage) -> Iterator[None]:
    """Admit one process of this host at a time, to read a lock object and then act on it.

    Raises StorageError if another process is in there for too long.
    """
    name = xxhash.xxh3_64_hexdigest(storage.url.encode())
    with alone_on_this_host(name, _TAKE_OVER_S) as alone:
        if not alone:
            raise StorageError(
                f"cannot access the lock of {storage.url}: another process has kept it",
                remedy="try again",
            )
        yield


def make_beat(work: bytes) -> tuple[Callable[[], str | None], Callable[[], None]]:
    """For the keeper's process: (refresh the object, remove it).

    ``work``: a pickle of the storage, the key and the holder, which that process was sent.

    The first returns why the lock was lost: '' means that this process can't see the object at all,
    None that the lock is held.
    """
    storage, key, holder = pickle.loads(work)
    seen = False

    def require_ours() -> None:
        nonlocal seen
        try:
            there = read_holder(storage, key)
        except MissingObjectError:
            time.sleep(_RETRY_S)  # a server may be busy with the name
            there = read_holder(storage, key)
        if there is None or there.token != holder.token:
            raise TargetLostError(f"{there or 'another process'} has taken it over")
        seen = True

    def beat() -> str | None:
        try:
            if isinstance(storage, Replacing):
                # An attempt may come long after the one before, when the object is another's.
                storage.replace(key, holder.beaten().dump(), allowed=require_ours)
            else:
                require_ours()
        except TargetLostError as lost:
            return lost.what
        except MissingObjectError:
            # Never seen: the storage is in the parent's memory, where no other process reaches it.
            return "another process has removed it" if seen else ""
        except StorageError:
            pass  # while the storage does not answer, nobody else can take the lock either
        return None

    def remove() -> None:
        with suppress(IobenchError):
            remove_if_ours(storage, key, holder.token)

    return beat, remove
