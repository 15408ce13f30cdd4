"""The flags of a gate, ``--fail-on`` and ``--if-inconclusive``, and the exit status."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

FAILED = 4


def add_gate(parser: argparse.ArgumentParser, of: str) -> None:
    """Add the flags. ``of``: the metrics that the gate looks at, for the help."""
    parser.add_argument(
        "--fail-on",
        metavar="CHANGE",
        help=f"exit with status 4 if the candidate is worse, with this threshold (e.g. 2%%): {of}",
    )
    parser.add_argument(
        "--if-inconclusive",
        choices=("fail", "warn", "pass"),
        default="fail",
        help="what --fail-on does where nothing is told, a metric is missing, or a run is INVALID: "
        "exit with status 4, warn and exit with status 0, or pass (default: fail)",
    )


def status_of(args: argparse.Namespace, failed: Iterable[str], inconclusive: Iterable[str]) -> int:
    """The exit status of a gate, after a line on stderr for each failure.

    ``failed``: what is worse, one line each. ``inconclusive``: what is inconclusive.
    """
    from .terminal import warn

    worse, unknown = list(failed), list(inconclusive)
    for line in worse:
        warn(f"--fail-on {args.fail_on}: {line}")
    if args.if_inconclusive != "pass":
        for line in unknown:
            warn(f"--fail-on {args.fail_on}: inconclusive: {line}")
    return FAILED if worse or (unknown and args.if_inconclusive == "fail") else 0
