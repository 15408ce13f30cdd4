"""Standard output and standard error whose reader may leave before the verb ends.

``iobench run ... | head -1`` closes the pipe after one line. What a verb does, what it writes to
disk and its exit code do not depend on who reads what it prints: from then on what it prints goes
to /dev/null. The stream itself sees to that, and not the place that prints, because libraries,
warnings and argparse print as well, and Python flushes once more when it ends.
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
    """A descriptor that becomes /dev/null when nobody reads from it any more.

    ``any_error``: at every other failure as well (a full disk, a terminal that is gone).
    """

    def __init__(self, fd: int, *, any_error: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._forgiven = OSError if any_error else BrokenPipeError

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except self._forgiven:
            _discard(self.fileno())
            return memoryview(data).nbytes


def survive_closed_readers() -> None:
    """Let neither stream of this process end a verb because its reader has left.

    A failure to write to standard output for another reason (a full disk) stays an error: the
    document is not where the user wanted it. One of standard error never is, since there is nobody
    whom it could be reported to. Where a stream was closed before the process began (``>&-``), it
    is /dev/null, so that no file that is opened later gets its number. Streams that a program or a
    test has put in the place of Python's own stay as they are.
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
    with suppress(OSError):  # what was printed before is as lost as what comes
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
    """Make a descriptor one of /dev/null, for this process and those that it starts."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)
