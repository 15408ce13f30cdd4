"""``iobench verify``: compare every byte of a dataset with its manifest."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..units import counted
from .common import add_break_lock, add_origin, whole_number
from .terminal import say, show_json
from .verbs import Verb

if TYPE_CHECKING:
    from ..verify import VerifyReport

EXAMPLES = """examples:
  iobench verify /mnt/fast/resnet50
  iobench verify /mnt/fast/resnet50 --json
  iobench verify s3://bucket/resnet50
  iobench verify imagenet.manifest --origin /mnt/fast/imagenet/train

exit status: 0 no damage, 1 something is damaged, 5 something could not be read, and there is no
damage in the rest
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DIR", help="directory or URL of the dataset")
    add_origin(parser)
    parser.add_argument(
        "--workers",
        type=whole_number,
        metavar="N",
        help="number of processes (default: one for each core)",
    )
    add_break_lock(parser)


def run(args: argparse.Namespace) -> int:
    from ..dataset import find_dataset
    from ..errors import (
        DatasetError,
        MissingObjectError,
        StorageError,
        UnreadableError,
        UsageError,
    )
    from ..storage import open_storage
    from ..storage.locks.reading import reading
    from ..verify import verify
    from .live import progress_bar

    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers must be at least 1, but is {args.workers}")
    try:
        manifest, place = find_dataset(args.dir, origin=args.origin)
    except MissingObjectError:
        raise  # without one of its tables it is not a dataset
    except StorageError as error:
        raise UnreadableError(error.what, remedy=error.remedy) from error
    storage = open_storage(place)
    with (
        reading(open_storage(args.dir), manifest, verb="verify", break_dead=args.break_lock),
        progress_bar("verifying", quiet=args.quiet) as tell,
    ):
        report = verify(storage, manifest, workers=args.workers, progress=tell)
    code = DatasetError.exit_code if report.damages else UnreadableError.exit_code
    if args.json:
        _print_json(args.dir, storage.url, report)
    else:
        _print_text(args.dir, storage.url if manifest.header.origin else "", report)
    return 0 if report.ok else code


def _print_json(path: str, place: str, report: VerifyReport) -> None:
    document = {
        "path": path,
        "data": place,
        "ok": report.ok,
        "shards": report.shards,
        "samples": report.samples,
        "bytes_read": report.bytes_read,
        "damages": report.damages,
        "unreadable": report.unreadable,
        "stopped": report.stopped,
        "wall_s": report.wall_s,
    }
    show_json(document)


def _print_text(path: str, origin: str, report: VerifyReport) -> None:
    """Print the report as text.

    ``origin`` is the place of data that iobench did not write and must not remove; '' if it did.
    """
    from ..units import format_bytes, format_rate

    where = f"{path} (read at {origin})" if origin else path
    if report.ok:
        rate = format_rate(report.bytes_read / max(report.wall_s, 1e-9))
        what = f"{counted(report.samples, 'sample')} in {counted(report.shards, 'shard')}"
        size = format_bytes(report.bytes_read)
        say(f"ok: {what}, {size}, as the manifest says ({rate}): {where}")
        return
    for line in (*report.damages, *report.unreadable):
        say(str(line))
    rest = "; the rest was not checked" if report.stopped else ""
    if report.damages:
        found = _count(len(report.damages), "difference", rest)
        remedy = (
            f"Restore the data at {origin}, or scan it again"
            if origin
            else f"Remove it (iobench clean {path}) and generate it again"
        )
        say(f"DAMAGED: {found}, in {where}. {remedy}")
        rest = ""
    if report.unreadable:
        found = _count(len(report.unreadable), "shard", rest)
        say(
            f"NOT READ: {found} could not be read, in {where}. They may be undamaged: remove "
            "the causes above, and verify again"
        )


def _count(count: int, what: str, rest: str) -> str:
    more = " and more" if rest else ""
    return f"{count} {what}{'' if count == 1 else 's'}{more}{rest}"


VERB = Verb(
    help="check every byte of a dataset",
    description=(
        "Read a whole dataset and compare every sample, and everything around the "
        "samples, with the manifest. Damage is listed with its shard and sample. What could not be "
        "read (permissions, a failing device, a server that does not answer) is listed separately, "
        "because it may be undamaged."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
)
