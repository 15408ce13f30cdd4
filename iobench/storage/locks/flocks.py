"""flock(2) on a marker file: a lock that ends with the last process that holds it.

A forked worker inherits the descriptor, and with it the lock. So after ``kill -9`` of a parent the
lock lives until its last writer is dead, which is what a successor has to wait for.
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

from ...errors import (
    MissingObjectError,
    StorageError,
    TargetHeldError,
    TargetLostError,
    TargetRefusedError,
)
from ...interrupts import undisturbed
from .holder import command_of, is_alive

WAIT_S = 3.0
"""How long the workers of a dead process are waited for."""

_TURN_S = 0.05
_NO_FLOCK = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


class NoFlockError(Exception):
    """The file system has no flock(2)."""


class Process(NamedTuple):
    """A process of this host that has a lock."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} ({self.command})" if self.command else f"process {self.pid}"


class FileLease:
    """A marker that this process holds until ``release``."""

    unregistered = ""  # why others can't see this lease: they can

    def __init__(self, path: Path, fd: int) -> None:
        self._path = path
        self._fd = fd
        self._pid = os.getpid()

    def others(self) -> list[str]:
        """Which other processes of this host hold the same marker now."""
        return [
            str(process)
            for process in processes_with(self._fd)
            if process.pid != self._pid and is_alive(process.pid)
        ]

    def check(self) -> None:
        """Raises TargetLostError where somebody has removed or replaced the marker."""
        if not _is_at(self._fd, self._path):
            raise TargetLostError(
                f"{self._path} was removed or replaced by somebody else: stopped",
                remedy="find out who else works on this directory, and start again",
            )

    def confirm(self) -> None:
        self.check()

    def release(self) -> None:
        if self._pid == os.getpid() and self._fd >= 0:  # a fork's copy is not ours to close
            fd, self._fd = self._fd, -1
            os.close(fd)  # unlocks where no worker has a copy: one that still writes keeps it

    def __del__(self) -> None:
        self.release()


def hold(path: Path, *, alone: bool, make: bool = False) -> FileLease:
    """Lock ``path``, against everybody (``alone``) or together with others who share it.

    ``make``: create the file where it is missing. Raises TargetHeldError at once where a living
    process holds it, MissingObjectError where there is no such file, TargetRefusedError for what is
    no regular file, StorageError, and NoFlockError.
    """
    deadline: float | None = None
    while True:
        with undisturbed():  # a descriptor that is open has someone to close it
            fd = _open(path, alone=alone, make=make)
            try:
                taken = _flock(fd, path, alone=alone)
                # Between open and flock the file may have been removed, or made anew.
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
            time.sleep(_TURN_S)


def _open(path: Path, *, alone: bool, make: bool) -> int:
    # O_NONBLOCK: a FIFO is opened at once, and then refused. Over NFS an exclusive lock needs a
    # descriptor that may write (flock(2), "NFS details").
    common = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_NOFOLLOW if alone else 0)
    made = os.O_CREAT if make else 0
    try:
        try:
            fd = os.open(path, common | made | (os.O_RDWR if alone else os.O_RDONLY), 0o644)
        except OSError as error:
            if not alone or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
            fd = os.open(path, common | os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise MissingObjectError(f"cannot lock {path}: {error.strerror}") from error
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link, a socket, a folder
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
        f"{path} is no regular file, so it is no marker of iobench",
        remedy="look at what it is, and remove it by hand",
    )


def _flock(fd: int, path: Path, *, alone: bool) -> bool:
    """Whether the lock was granted."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
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
    """The processes that have taken a lock on an open file, as far as this one can see them.

    /proc/locks (proc(5)) names a lock by the process that took it, which may have ended since, and
    the file by its file system's device and its inode. It shows no process of another container,
    and of a network file system this host's processes alone.
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
    """(major, minor) of the file's file system: as stat(2) tells it, and as its mount does.

    They differ on Btrfs, where each subvolume has a device of its own.
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
        pass  # then the device of stat(2) has to do
    return found
