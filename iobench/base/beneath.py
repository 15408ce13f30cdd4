"""Open files below a folder that somebody else may have filled.

A key names a file below a root. Neither the key nor a symbolic link on the way may lead out of the
root. Only regular files are opened for reading: a FIFO would block, and a device holds no data.

Source: openat2(2) (Linux 5.6), open(2), path_resolution(7).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import stat
from pathlib import Path

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_BENEATH = 0x08
"""openat2(2): the path must not leave its starting directory, by ``..`` or by a symbolic link."""

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
"""O_NONBLOCK has no effect on a regular file, and keeps the open of a FIFO from waiting."""

_OPENAT2 = 437  # the system call's number on every architecture that Python 3.11 supports
_NO_OPENAT2 = frozenset({errno.ENOSYS, errno.EPERM})
"""Errors of kernels before 5.6, and of sandboxes that filter system calls."""

_UNDECIDED = frozenset({errno.EXDEV, errno.EAGAIN, errno.ELOOP})
"""Errors of openat2 for a link that leads out, but also for an absolute link that leads back in."""

_BAD_PART = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
_NO_NAME = re.compile(r"[\0\ud800-\udc7f\udd00-\udfff]")
"""A NUL, and surrogates that no file name decodes to."""
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFLNK: "a symbolic link",
}

_libc = ctypes.CDLL(None, use_errno=True)


class LeadsOutError(OSError):
    """A symbolic link on the way to a file leads out of the root."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EXDEV, "a symbolic link on the way leads out of the folder", path)


class NoFileError(OSError):
    """The name belongs to something that is not a regular file."""

    def __init__(self, path: str, mode: int) -> None:
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        super().__init__(errno.EISDIR, f"it is {kind}, not a regular file", path)

    def __str__(self) -> str:
        return str(self.strerror)


class _How(ctypes.Structure):
    """``struct open_how``."""

    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


def key_problem(key: str, *, text: bool = False) -> str:
    """Why ``key`` is not a valid key; '' if it is.

    A key is relative, has no empty part, no part ``.`` or ``..``, and no NUL. ``text``: it must
    also be UTF-8 text without control characters, which file systems do not require.
    """
    if not key:
        return "it is empty"
    if _BAD_PART.search(key):
        return "it is absolute, or has an empty part, or a part '.' or '..'"
    if (_NO_TEXT if text else _NO_NAME).search(key):
        return "it contains a character that is not allowed in names here"
    return ""


def openat2(path: str, flags: int, *, dir_fd: int) -> int:
    """Open ``path`` below ``dir_fd``; symbolic links must stay below it. Raises OSError."""
    how = _How(flags, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS)
    fd = _libc.syscall(
        ctypes.c_long(_OPENAT2),
        ctypes.c_int(dir_fd),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    if fd < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return int(fd)


def check_folder(root: str, folder: str) -> bool:
    """Whether the folder exists. A missing folder would be created below the root, too.

    Raises LeadsOutError, and OSError if the folder can't be examined.
    """
    try:
        os.close(open_folder(root, folder))
        return True
    except FileNotFoundError:
        return False


def open_folder(root: str, folder: str) -> int:
    """A descriptor (O_PATH) of a folder below the root; '' is the root itself.

    Operations relative to the descriptor stay in that folder, whatever its name leads to later.
    Raises LeadsOutError, OSError.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
    root_fd = os.open(root, flags)
    if not folder:
        return root_fd
    try:
        return openat2(folder, flags, dir_fd=root_fd)
    except OSError as error:
        if error.errno not in _NO_OPENAT2 | _UNDECIDED:
            raise
    finally:
        os.close(root_fd)
    return os.open(resolve(root, folder), flags | os.O_NOFOLLOW)


def open_file(root: str, root_fd: int, key: str, flags: int) -> tuple[int, bool]:
    """Open a regular file for reading: (descriptor, whether the key is that of a symbolic link).

    A symbolic link as the last part is followed if it stays below the root. ``root_fd`` is a
    descriptor of the root. The caller has checked the key's folder. Raises LeadsOutError,
    NoFileError, OSError.
    """
    link = False
    try:
        fd = _open(key, flags | os.O_NOFOLLOW, root_fd)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        link = True
        fd = _open_link(root, root_fd, key, flags)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise NoFileError(f"{root}/{key}", mode)
    return fd, link


def _open_link(root: str, root_fd: int, key: str, flags: int) -> int:
    try:
        return openat2(key, flags, dir_fd=root_fd)
    except OSError as error:
        if error.errno not in _NO_OPENAT2 | _UNDECIDED:
            raise
    return _open(resolve(root, key), flags | os.O_NOFOLLOW, root_fd)


def _open(path: str, flags: int, dir_fd: int) -> int:
    try:
        return os.open(path, flags, dir_fd=dir_fd)
    except BlockingIOError:
        # Another process has a lease on the file (fcntl(2)): a blocking open waits for its end.
        if not stat.S_ISREG(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode):
            raise
        return os.open(path, flags & ~os.O_NONBLOCK, dir_fd=dir_fd)


def file_status(root: str, key: str) -> tuple[os.stat_result, str]:
    """The status of a regular file, and its path with all symbolic links resolved.

    The caller has checked the key's folder. Raises LeadsOutError, NoFileError, OSError.
    """
    path = f"{root}/{key}"
    status = os.stat(path, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        path = resolve(root, key)
        status = os.stat(path, follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode):
        raise NoFileError(path, status.st_mode)
    return status, path


def resolve(root: str, key: str) -> str:
    """The absolute path of a key, all symbolic links resolved. Raises LeadsOutError, OSError."""
    path = f"{root}/{key}"
    top, real = os.path.realpath(root), os.path.realpath(path)
    if real != top and not real.startswith(top.rstrip("/") + "/"):
        raise LeadsOutError(path)
    return real


def open_regular(path: str | Path) -> int:
    """A descriptor of a regular file. Symbolic links are followed. Raises NoFileError, OSError."""
    fd = os.open(path, READ_FLAGS)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise NoFileError(str(path), mode)
    return fd
