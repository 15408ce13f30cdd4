"""``--log-level`` and ``--log-file``: the log of iobench's modules.

Without these flags only warnings are shown, one line each. A line of the log has the time, the
host, the rank and the process.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..base.errors import UsageError
from ..base.logs import rank
from ..base.text import printable


class _Formatter(logging.Formatter):
    """Formats each record as one line, with the time in UTC."""

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        number = rank()
        who = "" if number is None else f" rank={number}"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return printable(
            f"{seconds}.{int(record.msecs):03d}Z host={self._host}{who} pid={os.getpid()} "
            f"{record.levelname.lower()} {record.name}: {text}"
        )


class _Stderr(logging.Handler):
    """Writes to what standard error is at that moment: with a screen, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


@contextmanager
def logging_to(level: str | None, file: str | None) -> Iterator[None]:
    """Write the log to ``file`` inside the context, or to standard error if it is None.

    iobench's own modules log from ``level`` on, libraries from warnings on. Processes that are
    forked inside the context write to the same file. Raises UsageError if the file cannot be
    written.
    """
    if level is None and file is None:
        yield
        return
    handler: logging.Handler
    try:
        handler = (
            _Stderr()
            if file is None
            else logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"--log-file {file} can't be written: {why}", remedy="name a file that you may write"
        ) from None
    handler.setFormatter(_Formatter())
    root, own = logging.getLogger(), logging.getLogger("iobench")
    before = own.level
    own.setLevel((level or "info").upper())
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)
        handler.close()
