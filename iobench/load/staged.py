"""One batch ahead: the next batch is fetched while the accelerator still works on this one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")


class Staged(Generic[T]):
    """Hands over what ``fetch`` returns, one after the other, until it returns None.

    When a batch is taken, the next one is fetched by a thread, and waits until it is taken. So at
    most one batch is accepted before the accelerator is free. The first batch is fetched by the
    caller's own thread, which then is the parent of the processes that a loader starts for it.
    """

    def __init__(self, fetch: Callable[[], T | None]) -> None:
        self._fetch = fetch
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-stage")
        self._next: Future[T | None] | None = None

    def take(self) -> T | None:
        """Wait for the next batch, and have the one after it fetched. Raises as ``fetch`` does."""
        taken = self._fetch() if self._next is None else self._next.result()
        self._next = self._thread.submit(self._fetch) if taken is not None else None
        return taken

    def close(self) -> None:
        """Wait for a fetch that has begun, and give its batch up."""
        self._thread.shutdown(wait=True)
        self._next = None
