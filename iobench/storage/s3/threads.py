"""Daemon threads that run calls.

``Threads`` uploads parts in parallel; ``MainThreadHelper`` keeps a blocking call from delaying
Ctrl-C.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most ``count`` threads, started when needed.

    They are daemons, unlike an executor's threads: a request that hangs does not delay the exit.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._started = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._started < self._count:
                self._started += 1
                threading.Thread(
                    target=_work, args=(self._calls,), daemon=True, name=self._name
                ).start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """End the threads once the submitted calls are done."""
        with self._lock:
            for _ in range(self._started):
                self._calls.put(None)
            self._started = 0


class MainThreadHelper:
    """Runs the main thread's calls in a helper thread.

    Python handles signals (Ctrl-C) only between bytecodes of the main thread, so a library that
    blocks in native code there would delay them. Other threads call directly, and so does a worker
    process, which its parent ends: a change of threads costs up to 0.1 ms.
    """

    def __init__(self) -> None:
        self._main = (
            threading.main_thread().ident if multiprocessing.parent_process() is None else None
        )
        self._calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None] | None = None
        self._results: SimpleQueue[Any] = SimpleQueue()

    def __call__(self, call: Callable[[], T]) -> T:
        if threading.get_ident() != self._main:
            return call()
        if self._calls is None:
            self._calls, self._results = SimpleQueue(), SimpleQueue()
            threading.Thread(
                target=_answer, args=(self._calls,), daemon=True, name="iobench-helper"
            ).start()
        self._calls.put((call, self._results))
        try:
            result, error = self._results.get()
        except BaseException:
            self.close()  # the thread may be stuck: the next call gets a new one
            raise
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _answer(calls: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        call, results = item
        try:
            results.put((call(), None))
        except BaseException as error:
            results.put((None, error))
        del item, call, results  # keep no buffer alive while waiting


def _work(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del item, future, call  # keep no buffer alive while waiting
