"""Defer SIGINT and SIGTERM until a critical section has finished."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def defer_interrupts(*, discard: bool = False) -> Iterator[list[int]]:
    """Handle SIGINT and SIGTERM that arrive inside at the end, if Python has a handler for them.

    Yields a list of those that have arrived, so that a loop can end. ``discard``: drop signals that
    arrive inside; use it while an earlier interrupt is already being handled. Outside of the main
    thread this does nothing, since no handler runs there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    arrived: list[int] = []
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: arrived.append(number))
        yield arrived
    finally:
        try:
            _restore(handlers)
        finally:  # a handler restored first may have raised
            _restore(handlers)
        if arrived and not discard:  # even while an exception leaves the block
            handlers[signal.Signals(arrived[0])](arrived[0], None)


def _restore(handlers: Mapping[signal.Signals, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


def interrupt_on_sigterm() -> None:
    """Let SIGTERM, by which batch schedulers stop jobs, do what Ctrl-C does.

    Outside of the main thread this does nothing, since no handler can be set there.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
