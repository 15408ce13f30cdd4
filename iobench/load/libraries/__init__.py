"""Loaders of other libraries, one file each, behind one protocol (base.py).

A library is imported only if a workload names it.
"""

from __future__ import annotations

from ...registry import LOADERS
from .base import Converts, Library


def library_class(kind: str) -> type[Library] | None:
    """Return the plug-in of a loader library; None for iobench's own loader, which is no library.

    Raises UnknownNameError, and UsageError if the library's package is not installed.
    """
    found = LOADERS.load(kind)
    return found if issubclass(found, Library) else None


def converter_class(kind: str) -> type[Converts] | None:
    """Return the plug-in of a library that reads files of its own layout; None for other loaders.

    Raises the same errors as ``library_class``.
    """
    found = library_class(kind)
    return found if found is not None and issubclass(found, Converts) else None
