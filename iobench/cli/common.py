"""What every verb shares: the common flags, overrides, and how progress is shown."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any


def add_common(parser: argparse.ArgumentParser) -> None:
    """``--json``, ``--quiet``, ``--debug``."""
    group = parser.add_argument_group("common")
    group.add_argument(
        "--json", action="store_true", help="print one JSON document on stdout and nothing else"
    )
    group.add_argument("--quiet", action="store_true", help="no progress on stderr")
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def add_break_lock(parser: argparse.ArgumentParser) -> None:
    """``--break-lock``, of verbs that hold a place: a dead process of another host may hold it."""
    parser.add_argument(
        "--break-lock",
        action="store_true",
        help="take the place over from a process of another host that is dead; a lock of S3, NFS "
        "or another storage outlives its process. It is watched for a heartbeat first",
    )


def add_overrides(parser: argparse.ArgumentParser, example: str) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="overrides",
        metavar="KEY=VALUE",
        help=f"override a key, e.g. {example}; repeatable",
    )


def parse_share(flag: str, text: str) -> float:
    """``1%`` or ``0.01``: above 0 and below 1. Raises UsageError that names the flag."""
    from ..errors import UsageError

    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UsageError(
            f"{flag} {text} is no share of the time", remedy="write it like 1% or 0.01"
        )
    return share


def parse_time(flag: str, text: str | None) -> float | None:
    """A duration above 0 in seconds; None where the flag was not given. Raises UsageError that names the flag."""
    from ..errors import UsageError
    from ..units import parse_duration

    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds <= 0:
        raise UsageError(f"{flag} {text} is no time", remedy="give more than 0, e.g. 30min")
    return seconds


def print_json(document: Any) -> None:
    """One JSON document on stdout: a pydantic model, or plain data."""
    import json

    text = (
        document.model_dump_json(indent=2)
        if hasattr(document, "model_dump_json")
        else json.dumps(document, indent=2, default=str)
    )
    print(text)


def warn(message: str) -> None:
    print(f"iobench: {message}", file=sys.stderr)


class Live:
    """One line on stderr that is written over, four times a second at most; nothing where stderr is no terminal."""

    def __init__(self, *, quiet: bool) -> None:
        self._on = not quiet and sys.stderr.isatty()
        self._title = ""
        self._began = time.monotonic()
        self._shown = 0.0

    def phase(self, title: str) -> None:
        self._title, self._began, self._shown = title, time.monotonic(), 0.0
        self._show("")

    def steps(self, done: int) -> None:
        now = time.monotonic()
        if now - self._shown >= 0.25:
            self._shown = now
            self._show(f"{done} steps, {now - self._began:.0f} s")

    def _show(self, detail: str) -> None:
        if self._on:
            line = f"{self._title} ... {detail}"
            sys.stderr.write(f"\r\x1b[K{line[:110]}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
