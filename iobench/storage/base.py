"""What iobench asks of a place where data lies. Keys are relative, '/'-separated paths below the storage's root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ..buffers import Buffer
from ..measure.pagecache import Residency

__all__ = [
    "Buffer",
    "Cached",
    "Entry",
    "Files",
    "Folders",
    "Guarded",
    "Mapped",
    "MaybeDirect",
    "Parallel",
    "ParallelSink",
    "Replacing",
    "Residency",
    "Retries",
    "Retrying",
    "Sink",
    "Storage",
    "StorageTraits",
    "Unfinished",
    "Versioned",
    "Wrapping",
]


class Entry(NamedTuple):
    key: str
    size: int  # bytes


@dataclass(frozen=True, kw_only=True)
class StorageTraits:
    """What iobench decides by; ``Storage.facts`` has what is only shown. Asking contacts nothing."""

    page_cache: bool = True  # this host's page cache may serve reads of it
    direct: bool = False  # reads go past that cache (O_DIRECT)

    @property
    def uncached(self) -> bool:
        """Whether every read comes from the storage, however often a byte is read."""
        return self.direct or not self.page_cache


class Sink(Protocol):
    """An object being written, front to back.

    Leaving the ``with`` block normally makes it durable and visible under its key; leaving it by an exception removes every trace.
    Data may be reused as soon as ``write`` returns.
    """

    def write(self, data: bytes | Buffer) -> None: ...


@runtime_checkable
class Storage(Protocol):
    """One root on one storage. Instances are cheap, picklable, and made before workers start; handles are opened on first use.

    No key leads out of the root: every method checks its keys (``keys.check_key``), whoever made
    them. Every method raises StorageError in one line (what, which key, why) for whatever the
    storage refuses.
    """

    url: str
    alignment: (
        int  # read_into's offset, length and address must be multiples of it (1: anything goes)
    )

    @property
    def traits(self) -> StorageTraits: ...

    def facts(self) -> dict[str, Any]:
        """What the result says of it: scheme, URL without secrets, file system, mount, device ...

        May ask the storage. Nothing is decided by it.
        """

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Everything in the folder ``prefix`` and below it, in an order that stays the same; nothing where there is no such folder."""

    def size(self, key: str) -> int:
        """Bytes of an object. Raises MissingObjectError where there is none, StorageError where that can't be told."""

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        """Fill ``buffer`` from ``offset``; the bytes read are fewer only where the object ends. Thread-safe.

        ``once`` is a hint: this object will not be asked for again soon.
        """

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        """A new object; an existing key is refused, never overwritten. ``durable=False`` leaves durability to ``flush``."""

    def flush(self) -> None:
        """Everything written so far becomes durable."""

    def delete(self, key: str) -> None: ...

    def close(self) -> None:
        """Drop handles; the instance can be used again."""


class ParallelSink(Protocol):
    """An object of known size being written in blocks, from many threads at once, in any order.

    Leaving the ``with`` block is as with a Sink; all writes have returned by then.
    """

    block_size: (
        int  # every write begins at a multiple of it, and is that long, but for the last one
    )
    alignment: int  # of the memory that is written, address and length (the end's padding is cut off again)

    def write_at(self, offset: int, data: Buffer) -> None: ...


@runtime_checkable
class Parallel(Protocol):
    """A storage that takes the blocks of one object in parallel."""

    def create_parallel(
        self, key: str, *, size: int, block_size: int, durable: bool = True
    ) -> AbstractContextManager[ParallelSink]:
        """As ``create``; the sink's blocks are ``block_size`` bytes, or larger where the storage needs that."""


@runtime_checkable
class Replacing(Protocol):
    """A storage where a small object can be overwritten; locks need that, and nothing else does."""

    @property
    def exclusive_create(self) -> bool:
        """Whether all but one are refused of several writers that make one key at one moment.

        False where that is not known (yet): two of them may pass.
        """

    def replace(self, key: str, data: bytes, *, only_new: bool = False) -> None:
        """``data`` becomes the whole object, whether the key exists or not.

        ``only_new``: a key that exists is refused, as by ``create``. Several writers of one key at
        one moment do not touch one another's unfinished objects. A reader at the same time finds
        the old object or the new one. ``data`` is at most some KiB. Raises StorageError.
        """


@runtime_checkable
class Cached(Protocol):
    """A storage whose reads can be served by this host's page cache."""

    def evict(self, keys: Iterable[str]) -> None:
        """Flush and drop the keys' pages."""

    def residency(self, keys: Iterable[str]) -> Residency: ...


@runtime_checkable
class Mapped(Protocol):
    """A storage that reads through memory maps. What a living process has mapped can't be evicted from the page cache."""

    def let_go(self) -> None:
        """Drop the pages that this process has mapped, and keep the maps: the next read faults them in again."""


@runtime_checkable
class MaybeDirect(Protocol):
    """A storage that can be opened for O_DIRECT, where its file system has that."""

    def supports_direct(self, key: str) -> bool:
        """Whether an object can be read with O_DIRECT. Raises StorageError."""


@runtime_checkable
class Wrapping(Protocol):
    """A storage around another one."""

    inner: Storage


@runtime_checkable
class Files(Protocol):
    """A storage whose keys are files that other tools (fio) can read at the same speed."""

    def local_path(self, key: str) -> Path:
        """Where the file lies. Raises StorageError for a key that a read would refuse, too."""


@runtime_checkable
class Guarded(Protocol):
    """A storage with places that iobench never writes to."""

    def check_target(self) -> None:
        """Raises TargetRefusedError where this root is no place to write below (a bucket's root, a device, a home). Creates nothing."""


class Retries(NamedTuple):
    """How often requests were sent again by this process."""

    retries: int  # all of them
    throttled: int  # of these: because the server asked to slow down (503 SlowDown, 429)


@runtime_checkable
class Retrying(Protocol):
    """A storage that sends a request again where that can help."""

    def retried(self) -> Retries:
        """Since this instance was made, in this process, over all its threads."""


@runtime_checkable
class Versioned(Protocol):
    """A storage that can tell whether an object is still the same."""

    def versions(self, prefix: str = "") -> dict[str, str]:
        """Key -> a token that changes when the object does (ETag, or time and size), of everything below ``prefix``."""


@runtime_checkable
class Folders(Protocol):
    """A storage whose folders stay when they have become empty, and whose keys are no local files."""

    def remove_empty(self, ours: Callable[[str], bool], folder: str = "") -> None:
        """Remove the empty folders in ``folder`` that are ``ours`` by their keys, from the innermost out, and ``folder`` if it is.

        The root itself stays.
        """


@runtime_checkable
class Unfinished(Protocol):
    """A storage where a killed writer leaves what no listing shows (S3's multipart uploads)."""

    def discard_unfinished(
        self, owned: Callable[[str], bool], *, dry_run: bool = False
    ) -> tuple[str, ...]:
        """Abort the unfinished uploads below the root whose keys are ``owned``, and no others; their keys."""
