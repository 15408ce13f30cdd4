"""Temporary directories that a later run removes where their owner was killed.

The owner, and all that it has forked, hold flock(2) on the directory. One that nobody holds, and
whose owner's process number (it is in the name) is nobody's now, is left over. Both are asked: a
number says nothing about a process of another container, and some file systems lock no directories.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..interrupts import undisturbed
from .locks.holder import is_alive

MIN_AGE_S = 60.0
"""A younger directory may belong to a process that has not locked it yet."""

_NAME = re.compile(r"iobench-(\d+)-[A-Za-z0-9_-]+")


@contextmanager
def scratch(purpose: str, *, within: Path | None = None) -> Iterator[Path]:
    """A new directory below ``within`` (default: the one for temporary files), removed at the end.

    What dead processes of this user have left there is removed, too. Raises OSError.
    """
    above = within if within is not None else Path(tempfile.gettempdir())
    remove_left_over(above)
    with undisturbed():  # a directory that is there has someone to remove it
        folder = Path(tempfile.mkdtemp(prefix=f"iobench-{os.getpid()}-{purpose}-", dir=above))
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system locks directories
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        with undisturbed():
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)


def remove_left_over(above: Path) -> None:
    """Remove the directories of dead processes of this user. What can't be removed stays."""
    with suppress(OSError):
        for entry in os.scandir(above):
            name = _NAME.fullmatch(entry.name)
            if name is not None and not is_alive(int(name[1])):
                with suppress(OSError):
                    _remove_if_free(above / entry.name)


def _remove_if_free(folder: Path) -> None:
    """Raises OSError where it is another user's, in use, or no directory."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        age_s = time.time() - info.st_mtime
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or age_s < MIN_AGE_S:
            return
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(fd)
