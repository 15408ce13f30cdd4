"""``iobench clean``: remove exactly the files that iobench made."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..units import counted
from .common import add_break_lock
from .terminal import say, show_json
from .verbs import Verb

if TYPE_CHECKING:
    from ..generator.cleaner import CleanReport

EXAMPLES = """examples:
  iobench clean /mnt/fast/resnet50 --dry-run
  iobench clean /mnt/fast/resnet50
  iobench clean s3://bucket/resnet50
  iobench clean /mnt/ckpt
"""
_SHOWN = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", help="directory or URL of a dataset or of checkpoints"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show what would be removed, but remove nothing"
    )
    add_break_lock(parser)


def run(args: argparse.Namespace) -> int:
    from ..generator import clean
    from ..units import format_bytes, format_count

    report = _checkpoints(args) or clean(args.dir, dry_run=args.dry_run, break_lock=args.break_lock)
    if args.json:
        show_json(report)
        return 0
    uploads = (
        f", and {format_count(report.unfinished)} unfinished uploads" if report.unfinished else ""
    )
    verb = "would remove" if report.dry_run else "removed"
    say(
        f"{verb} {counted(report.files, 'file')}, {format_bytes(report.bytes)}{uploads}: "
        f"{report.root}"
    )
    if report.foreign:
        more = len(report.foreign) - _SHOWN
        shown = ", ".join(report.foreign[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
        say(f"left in place, not made by iobench or on another mount: {shown}")
    return 0


def _checkpoints(args: argparse.Namespace) -> CleanReport | None:
    """Clean a directory or URL with iobench's checkpoints; return None for any other."""
    from ..checkpoint.place import MARKER, clean_exclusively
    from ..errors import StorageError
    from ..generator.cleaner import CleanReport
    from ..storage import open_storage
    from ..storage.catalog import exists

    storage = open_storage(args.dir)
    try:
        if not exists(storage, MARKER):
            return None
    except StorageError:
        return None  # the search for a dataset will report the problem
    removal = clean_exclusively(storage, dry_run=args.dry_run, break_lock=args.break_lock)
    return CleanReport(
        args.dir,
        removal.files,
        removal.bytes,
        removal.foreign,
        removal.root_removed,
        args.dry_run,
    )


VERB = Verb(
    help="remove a generated dataset or checkpoints",
    description=(
        "Remove a dataset or checkpoints, complete or partial: exactly the files that iobench "
        "made. Other files are kept and listed. A directory that iobench did not make is refused."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
