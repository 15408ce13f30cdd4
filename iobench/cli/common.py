"""Parts that verbs share: common flags, renamed flags, overrides, and types of arguments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..report.media import helps
from .logs import add_logging

MAX_CALIBRATION_S = 3600


def add_common(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    """Add the flags for output and logging.

    ``formats`` are the values of ``--format``; the first one is the default.
    """
    group = parser.add_argument_group("output")
    group.add_argument(
        "--format",
        choices=formats,
        default=formats[0],
        help="; ".join(filter(None, [f"output format (default: {formats[0]})", helps(formats)])),
    )
    group.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="format",
        help="same as --format json: one JSON document on stdout and nothing else",
    )
    if "html" in formats:
        group.add_argument(
            "--html",
            action="store_const",
            const="html",
            dest="format",
            help="same as --format html: one page with charts that any browser shows, offline",
        )
    group.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write the document to this file instead of stdout; an existing file is replaced, "
        "unless it is a link or a part of a dataset, of checkpoints or of a record",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="show no progress on stderr")
    add_logging(group)
    group.add_argument("--debug", action="store_true", help="show the traceback of an error")


def duration(text: str) -> float:
    """The ``type`` of a time, in seconds: ``3s``, ``500ms``, ``2min``; 0 is allowed."""
    from ..errors import UsageError
    from ..units import parse_duration

    try:
        return parse_duration(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def given(args: argparse.Namespace, flags: Sequence[str]) -> list[str]:
    """Those of the flags that stand in the command line, also shortened and with ``=VALUE``."""
    words = [word.partition("=")[0] for word in args.command_line]
    return [
        flag
        for flag in flags
        if any(
            word == flag
            or (len(word) > 2 and word[:2] == "--" and flag.startswith(word))
            or (flag[:2] != "--" and word.startswith(flag))
            for word in words
        )
    ]


def add_accelerators(parser: argparse.ArgumentParser) -> None:
    """Add ``--accelerators``, the number of ranks of a run."""
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of ranks, each with its own loader (default: 1)",
    )


def add_results(parser: argparse._ActionsContainer, what: str) -> None:
    """Add ``--results``. ``what``: what the directory is for."""
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help=f"directory {what} (default: results)",
    )


def add_tags(parser: argparse._ActionsContainer) -> None:
    """Add ``--tag``, for verbs that record runs."""
    parser.add_argument(
        "--tag",
        action="append",
        default=[],
        dest="tags",
        metavar="KEY=VALUE",
        help="a label of the run for its record, its reports, CSV and OpenMetrics, e.g. box=nfs-b; "
        "repeatable",
    )


def add_details(parser: argparse._ActionsContainer) -> None:
    """Add ``--details``, for verbs that print the answer of a run."""
    parser.add_argument(
        "--details",
        action="store_true",
        help="print the evidence, too: the storage's curve, what each stage costs, where the time "
        "went, every finding (--format text; other formats always have it)",
    )


def add_calibration(parser: argparse.ArgumentParser, default: str, what: str) -> None:
    """Add ``--calibration``, the time to measure each ceiling."""
    parser.add_argument(
        "--calibration",
        type=duration,
        dest="calibration_s",
        default=duration(default),
        metavar="TIME",
        help=f"{what} (default: {default})",
    )


def check_measuring(args: argparse.Namespace) -> None:
    """Check the flags that ``run`` and ``sweep`` share.

    Raises UsageError with the flag and its value.
    """
    from ..errors import UsageError

    for name, least in (("repeat", 1), ("accelerators", 1), ("seed", 0)):
        if (value := getattr(args, name)) < least:
            raise UsageError(f"--{name} must be at least {least}, but is {value}")
    if args.calibration_s > MAX_CALIBRATION_S:
        raise UsageError(
            f"--calibration must be at most {MAX_CALIBRATION_S} s, but is {args.calibration_s:g} s"
        )


def add_break_lock(parser: argparse.ArgumentParser) -> None:
    """Add ``--break-lock``, for verbs that lock a directory or URL."""
    parser.add_argument(
        "--break-lock",
        action="store_true",
        help="take over the lock of a process that died on another host; needed on S3, NFS and "
        "other storage where a lock remains after its process. First the lock is watched for a "
        "heartbeat",
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
    """The ``type`` of an argument that is a count.

    argparse prints its errors in one line.
    """
    from ..units import MAX_BYTES

    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a whole number") from None
    if abs(value) > MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text[:40]} is out of range")
    return value


def number(text: str) -> float:
    """The ``type`` of an argument that is a finite number."""
    from ..documents import MAX_NUMBER

    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number") from None
    if not abs(value) <= MAX_NUMBER:  # NaN fails every comparison
        raise argparse.ArgumentTypeError(f"{text[:40]} is out of range")
    return value


def add_origin(parser: argparse.ArgumentParser) -> None:
    """Add ``--origin``, for verbs that open a dataset."""
    parser.add_argument(
        "--origin",
        metavar="URL",
        help="directory or URL of the data of a scanned dataset; without it, only data in the "
        "manifest's own directory is read",
    )


def parse_share(flag: str, text: str) -> float:
    """Parse a share above 0 and below 1: ``1%``, ``0.01``. Raises UsageError with the flag."""
    from ..errors import UsageError
    from ..units import MIN_SHARE

    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not MIN_SHARE <= share < 1:
        raise UsageError(
            f"{flag} must be more than 0 and less than 1, but is '{text}'",
            remedy="write it like 1% or 0.01",
        )
    return share


def parse_time(flag: str, text: str | None) -> float | None:
    """Parse a duration above 0 and return seconds; None if the flag was not given.

    Raises UsageError; for a duration of 0 or less it names the flag.
    """
    from ..errors import UsageError
    from ..units import parse_duration

    if text is None:
        return None
    seconds = parse_duration(text)
    if seconds <= 0:
        raise UsageError(
            f"{flag} must be more than 0, but is '{text}'", remedy="write it like 30min"
        )
    return seconds


def parse_rate(flag: str, text: str | None) -> float | None:
    """Parse bytes per second, like ``20GB/s``; None if the flag was not given.

    Raises UsageError; for a rate of 0 it names the flag.
    """
    from ..errors import UsageError
    from ..units import parse_size

    if text is None:
        return None
    rate = parse_size(text.strip().removesuffix("/s"))
    if rate <= 0:
        raise UsageError(
            f"{flag} must be more than 0, but is '{text}'", remedy="write it like 20GB/s"
        )
    return float(rate)
