"""``--log-level`` and ``--log-file``: what iobench's modules say while they work.

Without either, warnings alone are shown, one line each. A line of the log says when, on which host,
of which rank and in which process.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import UsageError
from ..logs import rank
from ..text import printable

LEVELS = ("debug", "info", "warning", "error")


def add_logging(parser: argparse._ArgumentGroup) -> None:
    """The two flags."""
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help="what to log, on stderr or in --log-file (default: warning; with a file: info)",
    )
    parser.add_argument(
        "--log-file", metavar="FILE", help="append the log of all processes to this file"
    )


class _Formatter(logging.Formatter):
    """One line for each record, with times in UTC."""

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


@contextmanager
def logging_to(level: str | None, file: str | None) -> Iterator[None]:
    """What is logged meanwhile goes to ``file``, or to standard error where that is None.

    Of iobench's own modules from ``level`` on, of libraries from warnings on. Processes that are
    forked meanwhile write to the same place. Raises UsageError for a file that can't be written.
    """
    if level is None and file is None:
        yield
        return
    handler: logging.Handler
    try:
        handler = (
            logging.StreamHandler(sys.stderr)
            if file is None
            else logging.FileHandler(file, encoding="utf-8", errors="backslashreplace")
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"--log-file {file} can't be written: {why}", remedy="name a file in a folder of yours"
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
