"""One connection to an NFS server, for one thread at a time.

It avoids what libnfs 4.0.0 can't do. Writes with version 4 fail (those above 2 KiB can't be
encoded). The automatic reconnection uses a whole core and hides the reason of an error, so a lost
connection is reported as ``Lost``, and the caller makes a new context.

libnfs's C interface, by ctypes: structures, prototypes, and the search for the library.

Written for libnfs 4.0.0 (Debian's libnfs13) and its header ``nfsc/libnfs.h``. ctypes releases the
GIL during every call.
"""

from __future__ import annotations

import ctypes as c
import errno
import os
import re
import select
import stat
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

from ...base.errors import UsageError

SONAMES = ("libnfs.so.13", "libnfs.so.14")
"""libnfs 4 and 5. Version 6 (libnfs.so.16) has another order of nfs_pread's arguments."""

_STAT = (
    "dev ino mode nlink uid gid rdev size blksize blocks atime mtime ctime "
    "atime_ns mtime_ns ctime_ns used"
)


class Stat(c.Structure):  # struct nfs_stat_64
    _fields_ = tuple((name, c.c_uint64) for name in _STAT.split(" "))


class _Time(c.Structure):  # struct timeval
    _fields_ = (("seconds", c.c_long), ("microseconds", c.c_long))


class Dirent(c.Structure):  # struct nfsdirent
    _fields_ = (
        ("next", c.c_void_p),
        ("name", c.c_char_p),
        ("inode", c.c_uint64),
        ("type", c.c_uint32),
        ("mode", c.c_uint32),
        ("size", c.c_uint64),
        ("atime", _Time),
        ("mtime", _Time),
        ("ctime", _Time),
        *((name, c.c_uint32) for name in ("uid", "gid", "nlink")),
        *((name, c.c_uint64) for name in ("dev", "rdev", "blksize", "blocks", "used")),
        *((name, c.c_uint32) for name in ("atime_ns", "mtime_ns", "ctime_ns")),
    )


_P, _S, _I, _U64, _PP = c.c_void_p, c.c_char_p, c.c_int, c.c_uint64, c.POINTER(c.c_void_p)
Callback = c.CFUNCTYPE(None, _I, _P, _P, _P)
_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "nfs_init_context": (_P, ()),
    "nfs_destroy_context": (None, (_P,)),
    "nfs_parse_url_incomplete": (_P, (_P, _S)),
    "nfs_destroy_url": (None, (_P,)),
    "nfs_set_timeout": (None, (_P, _I)),
    "nfs4_set_client_name": (None, (_P, _S)),
    "nfs_mount_async": (_I, (_P, _S, _S, Callback, _P)),
    "nfs_which_events": (_I, (_P,)),
    "nfs_service": (_I, (_P, _I)),
    "nfs_get_error": (_S, (_P,)),
    "nfs_set_error": (None, (_P, _S)),
    "nfs_get_fd": (_I, (_P,)),
    "nfs_get_readmax": (_U64, (_P,)),
    "nfs_get_writemax": (_U64, (_P,)),
    "nfs_open": (_I, (_P, _S, _I, _PP)),
    "nfs_open2": (_I, (_P, _S, _I, _I, _PP)),
    "nfs_close": (_I, (_P, _P)),
    "nfs_pread": (_I, (_P, _P, _U64, _U64, _P)),
    "nfs_pwrite": (_I, (_P, _P, _U64, _U64, _P)),
    "nfs_fsync": (_I, (_P, _P)),
    "nfs_stat64": (_I, (_P, _S, c.POINTER(Stat))),
    "nfs_mkdir": (_I, (_P, _S)),
    "nfs_rmdir": (_I, (_P, _S)),
    "nfs_unlink": (_I, (_P, _S)),
    "nfs_unlink_async": (_I, (_P, _S, Callback, _P)),
    "nfs_link": (_I, (_P, _S, _S)),
    "nfs_rename": (_I, (_P, _S, _S)),
    "nfs_opendir": (_I, (_P, _S, _PP)),
    "nfs_readdir": (c.POINTER(Dirent), (_P, _P)),
    "nfs_closedir": (None, (_P, _P)),
}


@cache
def shared_object() -> Any:
    """The shared library with its prototypes. Raises UsageError that names the package."""
    for soname in SONAMES:
        try:
            loaded = c.CDLL(soname)
        except OSError:
            continue
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        return loaded
    raise UsageError(
        f"nfs:// needs the library libnfs ({' or '.join(SONAMES)})",
        remedy="install it: apt-get install libnfs13",
    )


def library_version() -> str:
    """The name of the loaded file, which contains the version (``libnfs.so.13.0.0``).

    libnfs has no function that returns its version.
    """
    shared_object()
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return next(
            (os.path.basename(line.split()[-1]) for line in maps if "/libnfs.so" in line), "libnfs"
        )


_MAX_OPEN_FILES = 64
_MIB = 1 << 20
_DIRECTORY = 2  # NF3DIR

_ERRNO = {
    "PERM": errno.EPERM,
    "NOENT": errno.ENOENT,
    "ACCES": errno.EACCES,
    "ACCESS": errno.EACCES,
    "EXIST": errno.EEXIST,
    "NOTDIR": errno.ENOTDIR,
    "ISDIR": errno.EISDIR,
    "NOTEMPTY": errno.ENOTEMPTY,
    "NAMETOOLONG": errno.ENAMETOOLONG,
    "NOSPC": errno.ENOSPC,
    "DQUOT": errno.EDQUOT,
    "ROFS": errno.EROFS,
    "FBIG": errno.EFBIG,
    "IO": errno.EIO,
    "NOTSUPP": errno.EOPNOTSUPP,
    "WRONGSEC": errno.EACCES,
}
"""Errors by the server's names; libnfs's own codes differ (MNT3ERR_NOENT becomes EPERM)."""


class Lost(Exception):
    """The connection can't be used any more.

    It broke or timed out, or the server does not know its file handles any more.
    """


class Status(NamedTuple):
    """An object's status. Times are in nanoseconds since 1970, by the server's clock."""

    mode: int
    size: int  # bytes
    mtime_ns: int
    ctime_ns: int


class NfsEntry(NamedTuple):
    """One entry of a directory. Times as in Status, ``size`` in bytes."""

    name: str
    folder: bool
    size: int
    mtime_ns: int
    ctime_ns: int


class Context:
    """One mounted connection, with some open files. Not thread-safe.

    Every method raises Lost, and OSError for what the server refuses.
    """

    def __init__(self, server: str, folder: str, settings: str, *, timeout_s: float) -> None:
        """Mount ``folder``, which must exist.

        ``settings``: libnfs's own URL arguments (``version=3&nfsport=...``).
        """
        self._lib = shared_object()
        self._nfs = self._lib.nfs_init_context()
        # libnfs names a client of version 4 by its process and the second. To the server, two
        # contexts of that name are one client that was restarted, so that the state of the first
        # is lost.
        name = f"iobench {os.getpid()} {uuid.uuid4().hex}"
        self._lib.nfs4_set_client_name(self._nfs, name.encode())
        # No directory cache, since each context would have its own; no reconnection by libnfs.
        url = f"nfs://{server}/?{settings}&dircache=0&autoreconnect=0"
        parsed = self._lib.nfs_parse_url_incomplete(self._nfs, url.encode())
        if parsed:
            self._lib.nfs_destroy_url(parsed)  # the context keeps the settings
        self._files: OrderedDict[str, c.c_void_p] = OrderedDict()
        self.answered_s = time.monotonic()  # when the server last answered
        # libnfs 4.0.0 does not advance the sequence number after a failed OPEN of version 4. The
        # server then takes the next OPEN for a retransmission, and repeats its answer.
        self.spoiled = False
        self._version_4 = "version=4" in settings.split("&")
        self.set_timeout(timeout_s)
        try:
            self._mount(server, folder, timeout_s)
        except BaseException:
            self.abandon()
            raise
        self.readmax: int = self._lib.nfs_get_readmax(self._nfs) or _MIB  # 0 with version 4
        self.writemax: int = self._lib.nfs_get_writemax(self._nfs) or _MIB

    def _mount(self, server: str, folder: str, timeout_s: float) -> None:
        """Mount with a time limit: libnfs's own wait for a connection has none."""
        outcome: list[int] = []
        done = Callback(lambda status, nfs, data, private: outcome.append(status))
        self._check(
            self._lib.nfs_mount_async(self._nfs, server.encode(), os.fsencode(folder), done, None)
        )
        self._serve(outcome, timeout_s, "the connection was not made in time", lambda: None)
        try:
            self._check(outcome[0])
        except OSError as error:
            if error.errno == errno.EFAULT:  # no mount daemon, no port mapper, or a closed port
                raise Lost("the connection was refused") from error
            raise

    def _serve(
        self, outcome: list[int], timeout_s: float, late: str, allowed: Callable[[], None]
    ) -> None:
        """Send and receive until there is an outcome. ``allowed`` is called before each of both."""
        end = time.monotonic() + timeout_s
        while not outcome:
            left = end - time.monotonic()
            if left <= 0:
                raise Lost(late)
            poll = select.poll()
            poll.register(self._lib.nfs_get_fd(self._nfs), self._lib.nfs_which_events(self._nfs))
            ready = poll.poll(min(left, 0.1) * 1000)
            allowed()
            if self._lib.nfs_service(self._nfs, ready[0][1] if ready else 0) < 0 and not outcome:
                outcome.append(-errno.EIO)

    def set_timeout(self, seconds: float) -> None:
        """How long to wait for one answer; libnfs rounds up to whole seconds."""
        self._timeout_s = seconds
        self._lib.nfs_set_timeout(self._nfs, 1000 * max(1, -int(-seconds // 1)))

    def destroy(self) -> None:
        """Close everything. Only for a context whose connection works."""
        for handle in self._files.values():
            self._lib.nfs_close(self._nfs, handle)
        self._files.clear()
        self._lib.nfs_destroy_context(self._nfs)

    def abandon(self) -> None:
        """Close the socket and leak the memory.

        libnfs would still deliver pending answers, into memory that has been freed.
        """
        fd = self._lib.nfs_get_fd(self._nfs)
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def _check(self, code: int) -> int:
        if code >= 0:
            self.answered_s = time.monotonic()
            return code
        said = (self._lib.nfs_get_error(self._nfs) or b"").decode(errors="replace")
        self._lib.nfs_set_error(self._nfs, b"")  # or the next failure could show this text
        refused = re.search(r"(MNT3ERR|NFS3ERR|NFS4ERR)_(\w+)", said)
        if refused and refused[2] not in ("STALE", "BADHANDLE"):
            number = _ERRNO.get(refused[2], -code)
            raise OSError(number, os.strerror(number))
        if "rejected by server" in said:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if not refused and -code == errno.EFAULT:
            raise OSError(
                errno.EFAULT, "the server refused the request, and libnfs does not report why"
            )
        raise Lost(" ".join(said.split()) or os.strerror(-code))

    # Files

    @contextmanager
    def opened(self, path: str, *, keep: bool = True, anew: bool = False) -> Iterator[c.c_void_p]:
        """A handle for reading, kept open afterwards unless an exception is raised.

        ``anew``: not the one that was kept, which may be that of a file that was replaced.
        """
        handle = self._files.pop(path, None)
        if anew and handle is not None:
            self.close(handle)
            handle = None
        if handle is None:
            handle = c.c_void_p()
            try:
                self._check(
                    self._lib.nfs_open(self._nfs, os.fsencode(path), os.O_RDONLY, c.byref(handle))
                )
            except OSError:
                self.spoiled = self._version_4
                raise
        try:
            yield handle
        except Lost:
            raise
        except BaseException:
            self.close(handle)
            raise
        if not keep:
            self.close(handle)
            return
        self._files[path] = handle
        if len(self._files) > _MAX_OPEN_FILES:
            self.close(self._files.popitem(last=False)[1])

    def create(self, path: str) -> c.c_void_p:
        """A new file, open for writing. Raises FileExistsError."""
        handle = c.c_void_p()
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        self._check(
            self._lib.nfs_open2(self._nfs, os.fsencode(path), flags, 0o644, c.byref(handle))
        )
        return handle

    def close(self, handle: c.c_void_p) -> None:
        self._check(self._lib.nfs_close(self._nfs, handle))

    def pread(self, handle: c.c_void_p, offset: int, address: int, count: int) -> int:
        """Read at most ``readmax`` bytes into memory at ``address``; 0 at the end of the file."""
        return self._check(self._lib.nfs_pread(self._nfs, handle, offset, count, address))

    def pwrite(self, handle: c.c_void_p, offset: int, address: int, count: int) -> int:
        return self._check(self._lib.nfs_pwrite(self._nfs, handle, offset, count, address))

    def fsync(self, handle: c.c_void_p) -> None:
        """Write everything to the server's stable storage (COMMIT)."""
        self._check(self._lib.nfs_fsync(self._nfs, handle))

    # Names

    def stat(self, path: str) -> Status:
        found = Stat()
        self._check(self._lib.nfs_stat64(self._nfs, os.fsencode(path), c.byref(found)))
        mtime, ctime = found.mtime * 10**9 + found.mtime_ns, found.ctime * 10**9 + found.ctime_ns
        return Status(mode=found.mode, size=found.size, mtime_ns=mtime, ctime_ns=ctime)

    def is_folder(self, path: str) -> bool:
        return stat.S_ISDIR(self.stat(path).mode)

    def mkdir(self, path: str) -> None:
        self._check(self._lib.nfs_mkdir(self._nfs, os.fsencode(path)))

    def rmdir(self, path: str) -> None:
        """Raises OSError if it is no directory, or not empty."""
        self._check(self._lib.nfs_rmdir(self._nfs, os.fsencode(path)))

    def unlink(self, path: str) -> None:
        self._check(self._lib.nfs_unlink(self._nfs, os.fsencode(path)))

    def unlink_if(self, path: str, allowed: Callable[[], None]) -> None:
        """As ``unlink``, which looks up each folder of the path before it sends the request.

        ``allowed`` is called before each of these steps. After an exception of it, the context must
        be abandoned: something in it may not have been sent yet.
        """
        outcome: list[int] = []
        done = Callback(lambda status, nfs, data, private: outcome.append(status))
        self._check(self._lib.nfs_unlink_async(self._nfs, os.fsencode(path), done, None))
        self._serve(outcome, self._timeout_s, "no answer in time", allowed)
        self._check(outcome[0])

    def link(self, path: str, new: str) -> None:
        self._check(self._lib.nfs_link(self._nfs, os.fsencode(path), os.fsencode(new)))

    def rename(self, path: str, new: str) -> None:
        """Rename; an existing ``new`` is replaced."""
        self._check(self._lib.nfs_rename(self._nfs, os.fsencode(path), os.fsencode(new)))

    def items(self, folder: str) -> list[NfsEntry]:
        """The entries of a directory, in the server's order, without ``.`` and ``..``."""
        handle = c.c_void_p()
        self._check(self._lib.nfs_opendir(self._nfs, os.fsencode(folder), c.byref(handle)))
        try:
            return [item for item in self._read_folder(handle) if item.name not in (".", "..")]
        finally:
            self._lib.nfs_closedir(self._nfs, handle)

    def _read_folder(self, handle: c.c_void_p) -> Iterator[NfsEntry]:
        while found := self._lib.nfs_readdir(self._nfs, handle):
            entry = found.contents
            mtime = entry.mtime.seconds * 10**9 + entry.mtime_ns
            ctime = entry.ctime.seconds * 10**9 + entry.ctime_ns
            folder = entry.type == _DIRECTORY or stat.S_ISDIR(entry.mode)
            yield NfsEntry(os.fsdecode(entry.name), folder, entry.size, mtime, ctime)
