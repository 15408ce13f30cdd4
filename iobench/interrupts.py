"""Ctrl-C at a bad moment: it waits until what must not be cut in two is whole."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def undisturbed(*, swallow: bool = False) -> Iterator[None]:
    """What SIGINT and SIGTERM do, where Python handles them, is done at the end.

    ``swallow``: not even then, since one before has had its effect. Nothing is put off in other threads, where no handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers = {
        number: handler
        for number in (signal.SIGINT, signal.SIGTERM)
        if callable(handler := signal.getsignal(number))
    }
    try:
        for number in handlers:
            signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        try:
            _put_back(handlers)
        finally:  # what is back already may come in between
            _put_back(handlers)
        if came and not swallow:  # whatever else is on its way
            handlers[signal.Signals(came[0])](came[0], None)


def _put_back(handlers: Mapping[signal.Signals, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)
