"""The protocols of a storage. Keys are relative, '/'-separated paths below the storage's root.

``check_key`` says which keys are valid: names of objects below the root, and nothing else. The
functions at the end tell what lies at the root: objects, and whether they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..base.beneath import NoFileError, key_problem
from ..base.buffers import Buffer as Buffer
from ..base.buffers import private
from ..base.errors import MissingObjectError, ShortObjectError, StorageError
from ..base.pagecache import Residency as Residency
from ..base.text import printable
from ..record.manifest import MANIFEST, MARKER


class Entry(NamedTuple):
    key: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class StorageTraits:
    """What iobench decides by. Asking contacts nothing.

    ``Storage.facts`` has what is only shown."""

    page_cache: bool = True  # this host's page cache may serve reads of it
    direct: bool = False  # reads go past that cache (O_DIRECT)
    keeps_history: bool = False  # it keeps every version of an object that is written again
    syncs: bool = False  # its sinks are ``Syncing``
    folder: Path | None = None
    """The directory of this host in which the objects are files, if it is known that there is one
    although the storage reads them through another client (``local://``)."""

    @property
    def uncached(self) -> bool:
        """Whether every read comes from the storage, however often a byte is read."""
        return self.direct or not self.page_cache


@runtime_checkable
class Opens(Protocol):
    """The class of a storage that is opened by its URL. ``OPTIONS``: the names of its options."""

    OPTIONS: Collection[str]

    def open(self, url: str, *, direct: bool, options: Mapping[str, str]) -> Storage: ...


@runtime_checkable
class Wraps(Protocol):
    """The class of a storage that is made around another one."""

    OPTIONS: Collection[str]

    def wrap(self, inner: Storage, options: Mapping[str, str]) -> Storage: ...


class Sink(Protocol):
    """An object being written, front to back.

    If the ``with`` block ends normally, the object becomes durable and visible under its key. If
    it ends by an exception, every trace of the object is removed. The caller may reuse the data's
    memory as soon as ``write`` returns.
    """

    def write(self, data: bytes | Buffer) -> None: ...


@runtime_checkable
class Syncing(Sink, Protocol):
    """A sink whose object can grow after a part of it has become durable."""

    def sync(self) -> None:
        """Make durable what was written so far."""


@runtime_checkable
class Storage(Protocol):
    """One root on one storage.

    Instances are cheap, picklable, and made before workers start; handles are opened on first use.
    No key leads out of the root: every method checks its keys (``check_key``). Every method
    raises StorageError in one line (what, which key, why) when the storage refuses a request.
    """

    url: str
    alignment: int
    """``read_into``'s offset, length and address must be multiples of it, in bytes; 1: any."""

    @property
    def traits(self) -> StorageTraits: ...

    def facts(self) -> dict[str, Any]:
        """What a result says of the storage. Nothing is decided by it.

        Scheme, URL without secrets, file system, mount options, device, direct and so on. It may
        ask the storage.
        """

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Every object in the folder ``prefix`` and below it, in a stable order.

        Yields nothing if there is no such folder.
        """

    def size(self, key: str) -> int:
        """Size of an object in bytes.

        Raises MissingObjectError if it does not exist, StorageError if that is not clear.
        """

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        """Fill ``buffer`` with the bytes from ``offset``; the number of bytes read.

        It is less than ``len(buffer)`` only at the end of the object. Thread-safe. ``once`` is a
        hint that this object will not be read again soon.
        """

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        """A new object. An existing key is refused, never overwritten.

        ``size_hint``: the expected size in bytes, 0: unknown. With ``durable=False`` the object
        becomes durable only at the next ``flush``.
        """

    def flush(self) -> None:
        """Make everything written so far durable."""

    def delete(self, key: str) -> None: ...

    def close(self) -> None:
        """Close all handles. The instance can be used again."""


class ParallelSink(Protocol):
    """An object of known size being written in blocks, by many threads at once, in any order.

    The ``with`` block ends as a Sink's does; all writes must have returned by then.
    """

    block_size: int
    """In bytes. Every write begins at a multiple of it and is that long, except the last one."""
    alignment: int
    """Of the address and length of written memory, in bytes; padding at the end is cut off."""

    def write_at(self, offset: int, data: Buffer) -> None: ...


class OwnReader(Protocol):
    """What one thread reads by."""

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        """As that of the storage."""

    def close(self) -> None: ...


@runtime_checkable
class ReadByThreads(Protocol):
    """A storage whose reads cost less over what each thread has for itself."""

    def own_reader(self) -> OwnReader:
        """Made in the process that uses it; it contacts nothing."""


@runtime_checkable
class Parallel(Protocol):
    """A storage that can write the blocks of one object in parallel."""

    def create_parallel(
        self, key: str, *, size: int, block_size: int, durable: bool = True
    ) -> AbstractContextManager[ParallelSink]:
        """As ``create``, for ``size`` bytes; blocks are ``block_size`` bytes or larger."""


@runtime_checkable
class Replacing(Protocol):
    """A storage where a small object can be overwritten; only locks need that."""

    @property
    def exclusive_create(self) -> bool | None:
        """Whether exactly one of several writers that create one key at one time succeeds.

        None: that is not known before the first ``replace`` with ``only_new``, or ``create``.
        """

    def replace(
        self,
        key: str,
        data: bytes,
        *,
        only_new: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> None:
        """Make ``data`` the whole object, whether the key exists or not.

        ``allowed`` is called before each attempt without ``only_new``, and may raise an exception.

        ``only_new``: refuse an existing key, as ``create`` does. Several writers of one key at one
        time do not disturb each other's unfinished objects. A concurrent reader sees the old object
        or the new one. ``data`` is at most some KiB. Raises StorageError.
        """


@runtime_checkable
class Conditional(Protocol):
    """A storage that sends a request again, or compares an object before it deletes it."""

    def delete_if(self, key: str, allowed: Callable[[], None]) -> None:
        """As ``delete``; ``allowed`` is called before each attempt, and may raise an exception.

        An object that was replaced since ``allowed`` returned is not deleted, where the server can
        compare: then TargetLostError is raised.
        """


@runtime_checkable
class Cached(Protocol):
    """A storage whose reads this host's page cache may serve."""

    def evict(self, keys: Iterable[str]) -> None:
        """Flush the keys' dirty pages, and drop their pages from the page cache."""

    def residency(self, keys: Iterable[str]) -> Residency: ...


@runtime_checkable
class Mapped(Protocol):
    """A storage that reads through memory maps.

    Pages that a living process has mapped can't be evicted from the page cache.
    """

    def release_maps(self) -> None:
        """Unmap this process's pages but keep the maps: the next read faults them in again."""


@runtime_checkable
class MaybeDirect(Protocol):
    """A storage that can be opened for O_DIRECT, where its file system has that."""

    def supports_direct(self, key: str) -> bool:
        """Whether an object can be read with O_DIRECT. Raises StorageError."""


@runtime_checkable
class OpensFiles(Protocol):
    """A storage whose objects are opened before they are read."""

    def open_and_close(self, key: str) -> None:
        """Open an object as a read does, and close it. Raises StorageError."""


@runtime_checkable
class Wrapping(Protocol):
    """A storage around another one."""

    inner: Storage


@runtime_checkable
class Files(Protocol):
    """A storage of files below a directory, which other tools (fio) can read at the same speed."""

    root: Path

    def local_path(self, key: str) -> Path:
        """The file's path. Raises StorageError for a key that a read would refuse."""


@runtime_checkable
class Guarded(Protocol):
    """A storage with places that iobench must never write to."""

    def check_target(self) -> None:
        """Raises TargetRefusedError if iobench must not write below this root.

        Refused are a bucket's root, a device, a home directory and the like. Creates nothing.
        """


class Retries(NamedTuple):
    """How many requests this process has sent again."""

    retries: int = 0  # all of them
    throttled: int = 0  # of these, after the server asked to slow down (503 SlowDown, 429)

    def since(self, before: Retries) -> Retries:
        """Those after a count that was made before."""
        return Retries(self.retries - before.retries, self.throttled - before.throttled)


@runtime_checkable
class Retrying(Protocol):
    """A storage that retries failed requests where that can help."""

    def retried(self) -> Retries:
        """Retries by all threads of this process, since this instance was made."""


def retried(storage: Storage) -> Retries:
    """What a storage has retried in this process; nothing where it never does."""
    return storage.retried() if isinstance(storage, Retrying) else Retries()


@runtime_checkable
class Versioned(Protocol):
    """A storage that can tell whether an object has changed."""

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> a token that changes with the object (ETag, or time and size).

        Of every object below ``prefix``.
        """


@runtime_checkable
class Folders(Protocol):
    """A storage whose empty folders stay, and whose keys are not local files."""

    def remove_empty(self, ours: Callable[[str], bool], folder: str = "") -> None:
        """Remove empty folders in ``folder``, from the innermost out, then ``folder`` itself.

        Only folders for whose key ``ours`` is true are removed, never the root.
        """

    def has_root(self) -> bool:
        """Whether the root exists, which the first ``create`` makes. Raises StorageError."""

    def remove_root(self) -> bool:
        """Remove the root if it is empty; whether that was possible. Raises StorageError."""


@runtime_checkable
class Unfinished(Protocol):
    """A storage where a killed writer leaves data that no listing shows (S3 multipart uploads)."""

    def discard_unfinished(
        self,
        owned: Callable[[str], bool],
        *,
        dry_run: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> tuple[str, ...]:
        """Abort the unfinished uploads below the root whose keys are ``owned``; these keys.

        ``allowed`` is called before each attempt to abort one, and may raise an exception.
        """


def check_key(key: str, *, text: bool = False) -> str:
    """The key itself, if it is valid. Every storage calls this before it uses a key.

    Raises StorageError for a key that is empty or absolute, that has an empty part, ``.`` or
    ``..``, or that contains a NUL. ``text``: for storages whose names are text; then control
    characters and bytes that are not UTF-8 are refused, too.
    """
    problem = key_problem(key, text=text)
    if problem:
        raise StorageError(
            f"'{printable(key, 100)}' is not a valid key: {problem}",
            remedy="check where the name comes from: a key is relative and stays below the root",
        )
    return key


def check_prefix(prefix: str, *, text: bool = False) -> str:
    """The folder without slashes at its ends; '' is the root. Raises StorageError."""
    folder = prefix.strip("/")
    return check_key(folder, text=text) if folder else ""


def innermost(storage: Storage) -> Storage:
    """The storage behind all wrappers."""
    while isinstance(storage, Wrapping):
        storage = storage.inner
    return storage


def delete(storage: Storage, key: str, held: Callable[[], None]) -> None:
    """Delete an object if ``held`` raises nothing. Raises StorageError.

    ``held`` is called before each request, also before one that is sent again. Where the server can
    compare, only that object is deleted which was there before ``held`` was called.
    """
    inner = innermost(storage)
    if isinstance(inner, Conditional):
        inner.delete_if(key, held)
    else:
        held()
        storage.delete(key)


@runtime_checkable
class Addressed(Protocol):
    """A storage that options lead to, which are no part of its ``url``."""

    @property
    def address(self) -> str:
        """The URL with these options."""
        ...


def address_of(storage: Storage) -> str:
    """What a command is to name to reach the same place, outside of all wrappers."""
    place = innermost(storage)
    return place.address if isinstance(place, Addressed) else storage.url


def local_root(storage: Storage) -> Path | None:
    """The directory of a storage of local files; None for any other storage."""
    return storage.root if isinstance(storage, Files) else None


def dataset_marker(storage: Storage) -> str:
    """The key to lock a dataset by: its marker, or its manifest if it has no marker.

    Scanned data has no marker, since iobench did not write it.
    """
    root = local_root(innermost(storage))
    if root is not None and not (root / MARKER).exists() and (root / MANIFEST).exists():
        return MANIFEST
    return MARKER


def read_object(storage: Storage, key: str, *, max_bytes: int | None = None) -> bytes:
    """The whole of a small object. Raises StorageError, also if it is over ``max_bytes``.

    It is opened anew: a handle kept from an earlier read may be that of an object which another
    process has replaced since.
    """
    size = storage.size(key)
    if max_bytes is not None and size > max_bytes:
        raise StorageError(
            f"{key} has {size:,} bytes, more than the {max_bytes:,} that iobench accepts",
            remedy="check that the file is one that iobench wrote",
        )
    alignment = storage.alignment
    buffer = private(-(-max(size, 1) // alignment) * alignment, prefault=False).array.data
    if storage.read_into(key, 0, buffer, once=True) < size:
        raise ShortObjectError(f"{key} became shorter while it was read")
    return bytes(buffer[:size])


def exists(storage: Storage, key: str) -> bool:
    """Whether the object exists. Raises StorageError where that is not clear, or it is no file."""
    try:
        storage.size(key)
    except MissingObjectError as error:
        if isinstance(error.__cause__, NoFileError):
            raise
        return False
    return True
