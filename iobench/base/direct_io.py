"""Whether O_DIRECT works at a place, and which alignment its reads need.

This is found by trying, since file systems differ in what they report.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

_SIZE = 1 << 16
_ALIGNMENTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_MAX_ENTRIES = 1000  # directory entries to search for a file to read


def probe(path: Path, *, write: bool = True) -> dict[str, Any]:
    """Try O_DIRECT in a directory or on a file. Never raises.

    Returns ``{"supported": True | False | None, "alignment_bytes": int | None, "how": str}``; None
    means that it could not be found out. With ``write`` a temporary file may be written.
    """
    if path.is_file():
        return _read_existing(path)
    if write and os.access(path, os.W_OK | os.X_OK):
        try:
            return _write_and_read(path)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return _answer(False, None, "the file system refused O_DIRECT")
            reason = f"no probe file could be written: {error.strerror}"
    else:
        reason = "the directory is not writable" if write else "no probe file was to be written"
    try:
        with os.scandir(path) as entries:
            found = next(
                (
                    Path(entry.path)
                    for entry in islice(entries, _MAX_ENTRIES)
                    if entry.is_file(follow_symlinks=False)
                ),
                None,
            )
    except OSError:
        found = None
    return (
        _read_existing(found)
        if found
        else _answer(None, None, f"{reason}, and there is no file to read")
    )


def _answer(supported: bool | None, alignment: int | None, how: str) -> dict[str, Any]:
    return {"supported": supported, "alignment_bytes": alignment, "how": how}


def _read_existing(path: Path) -> dict[str, Any]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        refused = error.errno == errno.EINVAL
        return _answer(
            False if refused else None,
            None,
            f"opening an existing file with O_DIRECT failed: {error.strerror}",
        )
    try:
        if os.fstat(fd).st_size < 2 * _ALIGNMENTS[0]:
            return _answer(True, None, "opened an existing file, too small to read at an offset")
        return _by_reading(fd, "read an existing file")
    finally:
        os.close(fd)


def _write_and_read(directory: Path) -> dict[str, Any]:
    """Write real blocks and read them: the kernel reads a hole without checking the alignment."""
    fd = _unnamed(directory)
    try:
        with mmap.mmap(-1, _SIZE) as buffer:  # page aligned
            os.pwrite(fd, buffer, 0)
        return _by_reading(fd, "wrote and read a temporary file")
    finally:
        os.close(fd)


def _unnamed(directory: Path) -> int:
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(directory, os.O_TMPFILE | flags, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
    # NFS has no O_TMPFILE, and EINVAL may be about either flag: use a named file, unlinked at once.
    fd, name = tempfile.mkstemp(prefix=".iobench-probe-", dir=directory)
    try:
        return os.open(name, flags)
    finally:
        os.close(fd)
        os.unlink(name)


def _by_reading(fd: int, how: str) -> dict[str, Any]:
    """The smallest alignment of offset, length and address at which a read succeeds."""
    with mmap.mmap(-1, 3 * _SIZE) as buffer, memoryview(buffer) as view:
        for alignment in _ALIGNMENTS:
            try:
                with view[alignment : 2 * alignment] as part:
                    os.preadv(fd, [part], alignment)
                return _answer(True, alignment, how)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    return _answer(None, None, f"{how}: {error.strerror}")
    return _answer(False, None, f"{how}, but no read was accepted")
