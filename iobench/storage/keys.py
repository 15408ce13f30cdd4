"""Which keys a storage takes: names of objects that lie below its root, and nothing else."""

from __future__ import annotations

from ..beneath import key_problem
from ..errors import StorageError
from ..text import printable


def check_key(key: str, *, text: bool = False) -> str:
    """The key itself. Every storage asks this before it reads, writes, measures or deletes.

    Raises StorageError for a key that is empty or absolute, that has an empty part, ``.`` or
    ``..``, or that holds a NUL. ``text``: for storages whose names are text; then it holds no
    other control character either, nor what is no UTF-8.
    """
    problem = key_problem(key, text=text)
    if problem:
        raise StorageError(
            f"'{printable(key, 100)}' names no object below the root: {problem}",
            remedy="check where the name comes from: a key is relative, and never leads up",
        )
    return key


def check_prefix(prefix: str, *, text: bool = False) -> str:
    """A folder below the root, without slashes at its ends; '' is the root. Raises StorageError."""
    folder = prefix.strip("/")
    return check_key(folder, text=text) if folder else ""
