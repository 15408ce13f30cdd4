"""The base of storages that wrap another: ``throttled``, ``faulty``, and a local cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from ..base.errors import StorageError, UsageError
from .base import (
    Buffer,
    Cached,
    Entry,
    Guarded,
    OpensFiles,
    Residency,
    Retries,
    Sink,
    Storage,
    StorageTraits,
    Unfinished,
    retried,
)


class Wrapper:
    """Forwards everything to ``inner``; subclasses change how reads and writes behave."""

    scheme = ""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner
        self.url = f"{self.scheme}+{inner.url}"
        self.alignment = inner.alignment

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError(
            f"{self.scheme} storage shares its state by fork, and can't be sent to a process "
            "that was not forked",
            remedy="use --set loader.start_method=fork",
        )

    @property
    def traits(self) -> StorageTraits:
        return self.inner.traits

    def facts(self) -> dict[str, Any]:
        return {**self.inner.facts(), "scheme": self.scheme, "url": self.url}

    def list(self, prefix: str = "") -> Iterator[Entry]:
        return self.inner.list(prefix)

    def size(self, key: str) -> int:
        return self.inner.size(key)

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        return self.inner.read_into(key, offset, buffer, once=once)

    def open_and_close(self, key: str) -> None:
        if not isinstance(self.inner, OpensFiles):
            raise StorageError(f"{self.inner.url} has no opens")
        self.inner.open_and_close(key)

    def create(
        self, key: str, *, size_hint: int = 0, durable: bool = True
    ) -> AbstractContextManager[Sink]:
        return self.inner.create(key, size_hint=size_hint, durable=durable)

    def flush(self) -> None:
        self.inner.flush()

    def delete(self, key: str) -> None:
        self.inner.delete(key)

    def close(self) -> None:
        self.inner.close()

    def check_target(self) -> None:
        if isinstance(self.inner, Guarded):
            self.inner.check_target()

    def retried(self) -> Retries:
        return retried(self.inner)

    def discard_unfinished(
        self,
        owned: Callable[[str], bool],
        *,
        dry_run: bool = False,
        allowed: Callable[[], None] = lambda: None,
    ) -> tuple[str, ...]:
        return (
            self.inner.discard_unfinished(owned, dry_run=dry_run, allowed=allowed)
            if isinstance(self.inner, Unfinished)
            else ()
        )

    def evict(self, keys: Iterable[str]) -> None:
        if isinstance(self.inner, Cached):
            self.inner.evict(keys)

    def residency(self, keys: Iterable[str]) -> Residency:
        if not isinstance(self.inner, Cached):
            raise StorageError(f"{self.inner.url} has no page cache to measure")
        return self.inner.residency(keys)
