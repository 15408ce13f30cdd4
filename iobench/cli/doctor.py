"""``iobench doctor``: facts of this machine and storage, and what could look like slow storage."""

from __future__ import annotations

import argparse
import os

from .verbs import Verb

EXAMPLES = """\
examples:
  iobench doctor
  iobench doctor /mnt/fast
  iobench doctor /mnt/fast --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        default=".",
        metavar="PATH",
        help="directory on the storage to examine (default: the current directory)",
    )


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..measure.doctor import examine, findings, lines
    from .terminal import say, show_json

    if "://" in args.path:
        raise UsageError(
            f"'{args.path}' is a URL, but doctor examines directories",
            remedy="to measure reads from a URL: iobench probe URL",
        )
    if not os.path.exists(args.path):
        raise UsageError(
            f"no such directory: {args.path}",
            remedy="name an existing directory on the storage to examine",
        )
    facts = examine(args.path)
    found = findings(facts)
    if args.json:
        show_json({**facts, "findings": found})
        return 0
    rows = lines(facts)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        say(f"{label:<{width}}  {text}")
    say()
    for finding in found:
        say(f"{finding.level}: {finding.evidence} [{finding.rule}]")
        say(f"  -> {finding.remedy}")
    if not found:
        say("no problem was found")
    return 0


VERB = Verb(
    help="examine this machine and the storage behind a path",
    description=(
        "Show cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio "
        "and GPU, and what to change."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
