"""Temporary directories; those of killed processes are removed by a later run.

The owner, and every process that it forks, holds a flock(2) on the directory. A directory is left
over when nobody holds the lock and no process has the number in its name (the owner's). Both are
checked: a number says nothing about a process in another container, and some file systems can't
lock directories.
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

from ..base.interrupts import defer_interrupts
from .locks.holder import is_alive

MIN_AGE_S = 60.0
"""A younger directory is kept: its owner may not have locked it yet."""

_NAME = re.compile(r"iobench-(\d+)-[A-Za-z0-9_-]+")


@contextmanager
def scratch(purpose: str, *, within: Path | None = None) -> Iterator[Path]:
    """A new directory below ``within`` (default: the system's temporary directory).

    It is removed at the end. Directories that dead processes of this user left in the same place
    are removed, too. Raises OSError.
    """
    above = within if within is not None else Path(tempfile.gettempdir())
    remove_left_over(above)
    with defer_interrupts():  # a signal must not leave a directory that nobody removes
        folder = Path(tempfile.mkdtemp(prefix=f"iobench-{os.getpid()}-{purpose}-", dir=above))
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # not every file system locks directories
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        with defer_interrupts():
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)


def remove_left_over(above: Path) -> None:
    """Remove the directories of this user's dead processes. What can't be removed stays."""
    with suppress(OSError):
        for entry in os.scandir(above):
            name = _NAME.fullmatch(entry.name)
            if name is not None and not is_alive(int(name[1])):
                with suppress(OSError):
                    _remove_if_free(above / entry.name)


def _remove_if_free(folder: Path) -> None:
    """Raises OSError if the directory belongs to another user, is in use, or is no directory."""
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
