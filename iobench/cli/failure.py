"""The end of a command that fails: one line on standard error, and a documented exit code."""

from __future__ import annotations

import errno
import os
import sys
import time

from ..base.errors import InternalError, IobenchError
from ..base.text import MAX_SHOWN, printable
from .terminal import warn

_LOGS = 100

NEEDED = {
    name: name
    for name in (
        *("crc32c", "cyclopts", "fsspec", "lz4", "numpy", "psutil", "pyarrow", "pydantic", "rich"),
        *("simplejpeg", "torch", "xxhash", "zstandard"),
    )
} | {"pynvml": "nvidia-ml-py", "yaml": "pyyaml"}
"""What iobench can't do without: packages by the names of their modules."""

SHARED_MEMORY = "/dev/shm"
"""Where processes share memory and locks (shm_overview(7), sem_overview(7))."""


def report_error(error: BaseException, *, debug: bool, verb: str = "") -> int:
    """Print one line about ``error`` and return its exit code.

    With ``debug`` the traceback is printed first. An exception that the user cannot have caused is
    an internal error: its traceback is written to a log file, and the line names the file.
    """
    import traceback

    if debug:
        for line in "".join(traceback.format_exception(error)).splitlines():
            sys.stderr.write(printable(line) + "\n")
    known = _known(error)
    if known is None:
        log = _log(error, verb)
        known = InternalError(
            f"internal error: {type(error).__name__}: {_first_line(error)}",
            remedy=f"please report it, with the file {log}"
            if log
            else "please report it, with what --debug prints",
        )
    warn(printable(str(known), MAX_SHOWN))
    return known.exit_code


def _known(error: BaseException) -> IobenchError | None:
    """Return an error that a user can act on, or None for an internal error."""
    if isinstance(error, IobenchError):
        return error
    if isinstance(error, MemoryError):
        return IobenchError(
            "out of memory",
            remedy="use a smaller dataset, batch or number of workers, or raise the limit "
            "(ulimit -v, cgroup)",
        )
    if isinstance(error, UnicodeEncodeError) and error.encoding != "utf-8":
        return IobenchError(
            f"a name cannot be written in this locale's encoding ({error.encoding})",
            remedy="set LC_ALL=C.UTF-8",
        )
    if isinstance(error, ModuleNotFoundError):
        package = NEEDED.get((error.name or "").partition(".")[0])
        if package is None:
            return None
        return IobenchError(
            f"{package} is not installed in this Python ({sys.executable}), and iobench needs it",
            remedy=f"install it: pip install {package}",
        )
    if isinstance(error, OSError) and _is_of_shared_memory(error):
        return IobenchError(
            f"{SHARED_MEMORY}, where processes share memory and locks, can't be written: "
            f"{error.strerror}",
            remedy="mount it so that it can be (docker run --shm-size, or in Kubernetes an "
            f"emptyDir of medium Memory at {SHARED_MEMORY})",
        )
    if isinstance(error, OSError) and error.errno == errno.ENOSPC and not error.filename:
        return IobenchError(
            "no space is left where the output or the results are written",
            remedy="free some there, or write elsewhere (-o FILE, --results DIR)",
        )
    if isinstance(error, OSError):
        where = f" ({os.fsdecode(error.filename)})" if _is_path(error.filename) else ""
        denied = isinstance(error, PermissionError) and where
        remedy = "check the permissions" if denied else "use --debug for the traceback"
        return IobenchError(f"{error.strerror or error}{where}", remedy=remedy)
    return None


def _is_of_shared_memory(error: OSError) -> bool:
    """Whether it is about ``SHARED_MEMORY``, which the C library does not name, and which is so."""
    name = os.fsdecode(error.filename) if _is_path(error.filename) else ""
    return (
        error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT)
        and (not name or name.startswith(f"{SHARED_MEMORY}/"))
        and not _is_writable(SHARED_MEMORY)
    )


def _is_writable(folder: str) -> bool:
    try:
        read_only = bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False
    return not read_only and os.access(folder, os.W_OK | os.X_OK)


def _is_path(name: object) -> bool:
    return isinstance(name, str | bytes)


def _first_line(error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0]
    if isinstance(error, RecursionError):
        text = "something is nested too deeply"
    return text[:200]


def _log(error: BaseException, verb: str) -> str:
    """Write the traceback to a file of mode 0600; return its path, or '' if that fails.

    The file contains neither the command line nor values of variables.
    """
    import platform
    import tempfile
    import traceback

    from .. import __version__

    stamp = time.strftime("%Y%m%d-%H%M%S")
    head = (
        f"iobench {__version__} {verb}\n"
        f"Python {platform.python_version()}, {platform.platform()}\n\n"
    )
    # O_EXCL: in a directory to which all users can write, no existing link or file is used.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    for number in range(_LOGS):  # one process may write several logs in one second
        more = f"-{number}" if number else ""
        name = f"iobench-error-{stamp}-{os.getpid()}{more}.log"
        try:
            path = os.path.join(tempfile.gettempdir(), name)
            fd = os.open(path, flags, 0o600)
            with open(fd, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(head + "".join(traceback.format_exception(error)))
        except FileExistsError:
            continue
        except OSError:
            break
        return path
    return ""
