"""The names and the contents of lock objects, for whoever reads, writes or removes one."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import xxhash

from ...buffers import private
from ...errors import MissingObjectError, StorageError
from ..base import Replacing, Storage
from .holder import BODY_BYTES, Holder, parse_holder

LOCK = ".iobench-lock"
READERS = ".iobench-readers"

_NAME = re.compile(
    rf"(?:{re.escape(LOCK)}|{re.escape(READERS)}/[0-9a-f]{{32}}\.json)"
    r"(?:\.[0-9a-f]{8})?(?:\.part)?"
)
_BLOCK = 4096  # what a read is aligned to, whatever the storage asks for
_TAKE_OVER_S = 10.0
_TURN_S = 0.05


def is_lock_name(key: str) -> bool:
    """Whether a key is a lock's own object, complete or not: neither data nor a stranger's."""
    return _NAME.fullmatch(key) is not None or key == READERS


def reader_key(token: str) -> str:
    return f"{READERS}/{token}.json"


def read_holder(storage: Storage, key: str) -> Holder | None:
    """Who wrote a lock object; None where it can't be understood.

    Raises MissingObjectError where there is none, StorageError.
    """
    buffer = private(_BLOCK, prefault=False).array.data
    count = storage.read_into(key, 0, buffer, once=True)
    return parse_holder(bytes(buffer[: min(count, BODY_BYTES)]))


def look(storage: Storage, key: str) -> tuple[bool, Holder | None]:
    """Whether there is such an object, and who wrote it. Raises StorageError."""
    try:
        return True, read_holder(storage, key)
    except MissingObjectError:
        return False, None


def create(storage: Storage, key: str, holder: Holder) -> None:
    """Raises StorageError where there is such an object."""
    if isinstance(storage, Replacing):
        storage.replace(key, holder.dump(), only_new=True)
        return
    with storage.create(key, size_hint=BODY_BYTES) as sink:
        sink.write(holder.dump())


def overwrite(storage: Storage, key: str, holder: Holder) -> None:
    """Raises StorageError."""
    if isinstance(storage, Replacing):
        storage.replace(key, holder.dump())
        return
    remove(storage, key)
    create(storage, key, holder)


def remove(storage: Storage, key: str) -> None:
    """What is gone already is no error. Raises StorageError."""
    try:
        storage.delete(key)
    except MissingObjectError:
        pass


def remove_if_ours(storage: Storage, key: str, token: str) -> None:
    """Remove a lock object unless another process has taken it over. Raises StorageError."""
    with one_of_this_host(storage):
        there, holder = look(storage, key)
        if there and holder is not None and holder.token == token:
            remove(storage, key)


@contextmanager
def one_of_this_host(storage: Storage) -> Iterator[None]:
    """One process of this host at a time, for what reads a lock object and then acts on it.

    A name in the abstract namespace of Unix sockets (unix(7)) has one owner, and is gone with it.
    Raises StorageError where another process does not come to an end.
    """
    name = f"\0iobench-{xxhash.xxh3_64_hexdigest(storage.url.encode())}"
    deadline = time.monotonic() + _TAKE_OVER_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        while True:
            try:
                mine.bind(name)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise StorageError(
                        f"cannot look after the lock of {storage.url}: {error.strerror}",
                        remedy="try again",
                    ) from error
            time.sleep(_TURN_S)
        yield
