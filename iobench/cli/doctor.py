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
        help="a directory on the storage in question (default: here)",
    )


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..measure.doctor import examine, findings, lines
    from .terminal import say, show_json

    if "://" in args.path:
        raise UsageError(
            f"'{args.path}' is a URL, doctor looks at directories",
            remedy="for a read's latency: iobench plan --probe",
        )
    if not os.path.exists(args.path):
        raise UsageError(
            f"no such directory: {args.path}",
            remedy="name one that is there, on the storage in question",
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
        say("nothing to change was found")
    return 0


VERB = Verb(
    help="look at this machine and the storage behind a path",
    description=(
        "Cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio, GPU, "
        "and what to change."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
