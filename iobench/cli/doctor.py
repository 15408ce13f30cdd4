"""``iobench doctor``: what is this machine, and this storage, and would something here be taken for slow storage?"""

from __future__ import annotations

import argparse
import os

EPILOG = """\
examples:
  iobench doctor
  iobench doctor /mnt/fast
  iobench doctor /mnt/fast --json
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    from .common import add_common

    parser = subparsers.add_parser(
        "doctor",
        help="look at this machine and the storage behind a path",
        description="Cores, limits, memory, huge pages, file system, device, O_DIRECT, page cache, fio, GPU, and what to change.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "path",
        nargs="?",
        default=".",
        metavar="PATH",
        help="a directory on the storage in question (default: here)",
    )
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    import json

    from ..errors import UsageError
    from ..measure.doctor import examine, findings, lines

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
        print(
            json.dumps({**facts, "findings": [finding.model_dump() for finding in found]}, indent=2)
        )
        return 0
    rows = lines(facts)
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        print(f"{label:<{width}}  {text}")
    print()
    for finding in found:
        print(f"{finding.level}: {finding.evidence} [{finding.rule}]")
        print(f"  -> {finding.remedy}")
    if not found:
        print("nothing to change was found")
    return 0
