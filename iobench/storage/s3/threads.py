"""Daemon threads that run calls: for parts that go up in parallel, and for calls that must not keep Ctrl-C waiting."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """At most ``count`` threads, started when needed. Unlike an executor's they are daemons: a hanging request delays no exit."""

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
        """The threads end after what they were given."""
        with self._lock:
            for _ in range(self._started):
                self._calls.put(None)
            self._started = 0


class Aside:
    """Runs a call of the main thread in another one, so that signals (Ctrl-C) are handled while a library waits outside of Python.

    Other threads, and worker processes, which their parent ends, call straight away: changing threads costs up to 0.1 ms.
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
                target=_answer, args=(self._calls,), daemon=True, name="iobench-aside"
            ).start()
        self._calls.put((call, self._results))
        try:
            result, error = self._results.get()
        except BaseException:
            self.close()  # the thread may be stuck for a while: the next call gets a new one
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
        del item, call, results  # holds no buffer while it waits


def _work(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (item := calls.get()) is not None:
        future, call = item
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
        del item, future, call  # holds no buffer while it waits
