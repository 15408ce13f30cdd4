"""libnfs's C interface, by ctypes: structures, prototypes, and the search for the library.

Written for libnfs 4.0.0 (Debian's libnfs13) and its header ``nfsc/libnfs.h``. ctypes releases the
GIL during every call. ``context.py`` builds on it.
"""

from __future__ import annotations

import ctypes as c
import os
from functools import cache
from typing import Any

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
