"""flock(2) on a marker file: a lock that ends with the last process that holds it.

A forked worker inherits the descriptor, and so the lock. After ``kill -9`` of the parent the lock
lasts until its last worker has ended, and the next process has to wait for that.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

from ...base.errors import (
    MissingObjectError,
    StorageError,
    TargetHeldError,
    TargetLostError,
    TargetRefusedError,
)
from ...base.interrupts import defer_interrupts
from .holder import command_of, is_alive

WAIT_S = 3.0
"""How long to wait for the workers of a dead process."""

_POLL_S = 0.05
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class NoFlockError(Exception):
    """The file system does not support flock(2)."""


class Process(NamedTuple):
    """A process of this host that holds a lock."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


class FileLease:
    """A marker that this process holds until ``release`` is called."""

    unregistered = ""  # other processes always see this lease

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._pid = os.getpid()

    def others(self) -> list[str]:
        """The other processes of this host that hold the same marker now."""
        return [
            str(process)
            for process in processes_with(self._fd)
            if process.pid != self._pid and is_alive(process.pid)
        ]

    def check(self) -> None:
        """Raises TargetLostError if the marker was removed or replaced."""
        if not _is_at(self._fd, self._path):
            raise TargetLostError(
                f"stopped, because another program removed or replaced {self._path}",
                remedy="find out which program changes this directory, and start again",
            )

    def confirm(self) -> None:
        self.check()

    def release(self) -> None:
        if self._pid == os.getpid() and self._fd >= 0:  # a forked copy must not release the lock
            fd, self._fd = self._fd, -1
            os.close(fd)  # the lock ends when no worker has a copy of the descriptor

    def __del__(self) -> None:
        self.release()


def hold(path: Path, *, exclusive: bool, make: bool = False) -> FileLease:
    """Lock ``path`` exclusively (``exclusive``), or together with others who share it.

    ``make``: create a missing file. Raises TargetHeldError if a living process holds the lock,
    MissingObjectError if there is no such file, TargetRefusedError if it is not a regular file,
    StorageError, and NoFlockError.
    """
    deadline: float | None = None
    while True:
        with defer_interrupts():  # a signal must not leave an open descriptor behind
            fd = _open(path, exclusive=exclusive, make=make)
            try:
                taken = _flock(fd, path, exclusive=exclusive)
                # Between open and flock the file may have been removed or replaced.
                if taken and _is_at(fd, path):
                    return FileLease(path, fd)
                holders = [] if taken else processes_with(fd)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
        if not taken:
            living = [one for one in holders if is_alive(one.pid)]
            deadline = deadline or time.monotonic() + WAIT_S
            if living or time.monotonic() > deadline:
                raise TargetHeldError(
                    f"{path.parent} is in use by {living[0] if living else 'another process'}",
                    remedy="wait until it has ended, or end it",
                )
            time.sleep(_POLL_S)


def _open(path: Path, *, exclusive: bool, make: bool) -> int:
    # O_NONBLOCK: the open of a FIFO does not wait; it is refused below. Over NFS an exclusive lock
    # needs a descriptor that may write (flock(2), "NFS details").
    common = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if exclusive else 0)
    made = os.O_CREAT if make else 0
    try:
        try:
            fd = os.open(path, common | made | (os.O_RDWR if exclusive else os.O_RDONLY), 0o644)
        except OSError as error:
            if not exclusive or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fd = os.open(path, common | os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise MissingObjectError(f"cannot lock {path}: {error.strerror}") from error
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # symbolic link, socket, folder
            raise _no_file(path) from error
        raise StorageError(
            f"cannot lock {path}: {error.strerror}", remedy="check the permissions"
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _no_file(path)
    return fd


def _no_file(path: Path) -> TargetRefusedError:
    return TargetRefusedError(
        f"{path} is not a regular file, so it is not a marker of iobench",
        remedy="find out what it is, and remove it by hand",
    )


def _flock(fd: int, path: Path, *, exclusive: bool) -> bool:
    """Whether the lock was granted."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_FLOCK:
            raise NoFlockError from None
        if error.errno == errno.EWOULDBLOCK:
            return False
        raise StorageError(f"cannot lock {path}: {error.strerror}") from error
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


_LOCK = re.compile(r"^\d+: FLOCK +\w+ +\w+ (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)


def processes_with(fd: int) -> list[Process]:
    """The processes that have locked an open file, as far as they are visible.

    /proc/locks (proc(5)) shows the process that took a lock, which may have ended since, and the
    file by the device of its file system and its inode. It does not show processes of another
    container, or of another host on a network file system.
    """
    inode = os.fstat(fd).st_ino
    devices = _devices(fd)
    try:
        text = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return []
    found = {
        int(pid): None
        for pid, major, minor, number in _LOCK.findall(text)
        if int(number) == inode and (int(major, 16), int(minor, 16)) in devices
    }
    return [Process(pid, command_of(pid)) for pid in found]


def _devices(fd: int) -> set[tuple[int, int]]:
    """(major, minor) of the file's file system, by stat(2) and by its mount.

    They differ on Btrfs, where each subvolume has its own device.
    """
    device = os.fstat(fd).st_dev
    found = {(os.major(device), os.minor(device))}
    try:
        facts = Path(f"/proc/self/fdinfo/{fd}").read_text(encoding="ascii")
        mount = re.search(r"^mnt_id:\s*(\d+)$", facts, re.MULTILINE)
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
            number, _, place = line.split(" ", 3)[:3]
            if mount is not None and number == mount[1]:
                major, _, minor = place.partition(":")
                found.add((int(major), int(minor)))
    except (OSError, ValueError):
        pass  # then only the device of stat(2) is known
    return found
