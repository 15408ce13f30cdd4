"""Iterators that are in use when the interpreter ends are closed while everything is still there.

A script may end in the middle of an epoch. Its iterators go last, when the modules whose names they
use are empty already, and workers, threads and requests would be left to chance.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")

_open: dict[int, tuple[int, weakref.ref[Generator[Any, None, None]]]] = {}


def closed_at_exit(
    make: Callable[[Any], Generator[T, None, None]],
) -> Callable[[Any], Generator[T, None, None]]:
    """Decorate a method that is a generator, so that it is closed before the interpreter ends."""

    def begin(self: Any) -> Generator[T, None, None]:
        generator = make(self)
        key = id(generator)
        _open[key] = (os.getpid(), weakref.ref(generator, lambda _: _open.pop(key, None)))
        return generator

    begin.__doc__ = make.__doc__
    return begin


@atexit.register
def _close_all() -> None:
    for pid, reference in list(_open.values()):
        generator = reference()
        if generator is None or pid != os.getpid():  # a forked process has none of their threads
            continue
        # Another thread may be within it. Whatever else fails, the process ends.
        with suppress(Exception):
            generator.close()
