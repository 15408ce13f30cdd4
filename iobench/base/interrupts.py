"""Defer SIGINT and SIGTERM until a critical section has finished."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
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


class _Whole(MetaPathFinder):
    """Finds one module, and defers interrupts while it is imported."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self.name else None
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def whole(module: ModuleType) -> None:
            with defer_interrupts():
                load(module)

        spec.loader.exec_module = whole  # type: ignore[method-assign]
        return spec


def import_whole(name: str) -> None:
    """Let an interrupt that arrives while module ``name`` is imported wait until it is there.

    torch calls Python from C++ meanwhile, and an interrupt there ends the process by SIGABRT.
    """
    if not any(isinstance(each, _Whole) and each.name == name for each in sys.meta_path):
        sys.meta_path.insert(0, _Whole(name))
