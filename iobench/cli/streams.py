"""Standard output and standard error that may lose their reader before the verb ends.

``iobench run ... | head -1`` closes the pipe after one line. This must not change what a verb does,
what it writes to disk, or its exit code. So the output after that is written to /dev/null. This is
implemented in the stream, not in the code that prints: libraries, warnings and argparse print, too,
and Python flushes the streams once more when it ends.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_OUTPUT, _ERRORS = 1, 2


class _Descriptor(io.FileIO):
    """A file descriptor that is replaced by /dev/null when it can't be written to any more.

    That its reader has closed it is no error; ``any_error``: nor is anything else (a full disk, a
    closed terminal).
    """

    def __init__(self, fd: int, *, any_error: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._forgiven = OSError if any_error else BrokenPipeError

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # An error is raised once. Python writes what is left again when it ends, to nowhere.
            _discard(self.fileno())
            if not isinstance(error, self._forgiven):
                raise
            return memoryview(data).nbytes


def survive_closed_readers() -> None:
    """Keep a verb running when the reader of one of this process's streams has closed it.

    Any other failure to write to standard output (a full disk) stays an error, since the user does
    not get the document. A failure to write to standard error is never an error, since it could not
    be reported. A stream that was closed before the process began (``>&-``) becomes /dev/null, so
    that no file that is opened later gets its number. Streams that a program or a test has set in
    place of Python's own are not changed.
    """
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _surviving(sys.__stdout__, _OUTPUT, any_error=False)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _surviving(sys.__stderr__, _ERRORS, any_error=True)


def _surviving(stream: TextIO | None, fd: int, *, any_error: bool) -> TextIO:
    if stream is None:
        try:
            os.fstat(fd)
        except OSError:
            _discard(fd)
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):  # earlier output is lost, too, if this fails
        stream.flush()
    raw = _Descriptor(stream.fileno(), any_error=any_error)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(fd: int) -> None:
    """Replace a descriptor by /dev/null, for this process and its child processes."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
