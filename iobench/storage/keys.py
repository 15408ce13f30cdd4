"""Which keys are valid: names of objects below the storage's root, and nothing else."""

from __future__ import annotations

from ..base.beneath import key_problem
from ..base.errors import StorageError
from ..base.text import printable


def check_key(key: str, *, text: bool = False) -> str:
    """The key itself, if it is valid. Every storage calls this before it uses a key.

    Raises StorageError for a key that is empty or absolute, that has an empty part, ``.`` or
    ``..``, or that contains a NUL. ``text``: for storages whose names are text; then control
    characters and bytes that are not UTF-8 are refused, too.
    """
    problem = key_problem(key, text=text)
    if problem:
        raise StorageError(
            f"'{printable(key, 100)}' is not a valid key: {problem}",
            remedy="check where the name comes from: a key is relative and stays below the root",
        )
    return key


def check_prefix(prefix: str, *, text: bool = False) -> str:
    """The folder without slashes at its ends; '' is the root. Raises StorageError."""
    folder = prefix.strip("/")
    return check_key(folder, text=text) if folder else ""
