"""What every verb shares: the common flags, overrides, shares and times."""

from __future__ import annotations

import argparse


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


def whole_number(text: str) -> int:
    """The ``type`` of an argument that counts something; argparse makes one line of its errors."""
    from ..units import MAX_BYTES

    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None
    if abs(value) > MAX_BYTES:
        raise argparse.ArgumentTypeError("the number is out of range")
    return value


def number(text: str) -> float:
    """The ``type`` of an argument that is a figure; neither NaN nor infinity is one."""
    from ..documents import MAX_NUMBER

    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number") from None
    if not abs(value) <= MAX_NUMBER:  # NaN fails every comparison
        raise argparse.ArgumentTypeError("the number is out of range")
    return value


def add_origin(parser: argparse.ArgumentParser) -> None:
    """``--origin``, for verbs that open a dataset."""
    parser.add_argument(
        "--origin",
        metavar="URL",
        help="where the data of a scanned dataset lies: a directory or URL. A manifest's own word "
        "is taken only for its own directory",
    )


def parse_share(flag: str, text: str) -> float:
    """``1%`` or ``0.01``: above 0 and below 1. Raises UsageError that names the flag."""
    from ..errors import UsageError
    from ..units import MIN_SHARE

    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not MIN_SHARE <= share < 1:
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
