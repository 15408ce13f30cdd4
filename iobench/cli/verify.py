"""``iobench verify``: every byte of every sample is what the manifest says."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from .common import add_break_lock, add_common

_EXAMPLES = """examples:
  iobench verify /mnt/fast/resnet50
  iobench verify /mnt/fast/resnet50 --json
  iobench verify s3://bucket/resnet50
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "verify",
        help="check every byte of a dataset",
        description="Read a whole dataset and compare every sample, and everything around the samples, with the manifest. "
        "Damage is named by shard and sample; exit status 1 if there is any.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("dir", metavar="DIR", help="the dataset's directory or URL")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes (default: one for each core)"
    )
    add_break_lock(parser)
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..storage import open_storage
    from ..storage.catalog import find_dataset
    from ..storage.reading import reading
    from ..units import format_bytes, format_count, format_rate
    from ..verify import verify
    from .progress import progress_bar

    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers is {args.workers}", remedy="give 1 or more")
    manifest, place = find_dataset(args.dir)
    with (
        reading(open_storage(args.dir), manifest, verb="verify", break_dead=args.break_lock),
        progress_bar(
            "verifying", enabled=sys.stderr.isatty() and not getattr(args, "quiet", False)
        ) as tell,
    ):
        report = verify(open_storage(place), manifest, workers=args.workers, progress=tell)
    if args.json:
        document = {
            "path": str(args.dir),
            "ok": report.ok,
            "shards": report.shards,
            "samples": report.samples,
            "bytes_read": report.bytes_read,
            "damages": [damage._asdict() for damage in report.damages],
            "stopped": report.stopped,
            "wall_s": report.wall_s,
        }
        print(json.dumps(document))
        return 0 if report.ok else 1
    what = f"{format_count(report.samples)} samples in {format_count(report.shards)} shard{'' if report.shards == 1 else 's'}"
    if report.ok:
        rate = format_rate(report.bytes_read / max(report.wall_s, 1e-9))
        print(
            f"ok: {what}, {format_bytes(report.bytes_read)}, are what the manifest says ({rate}): {args.dir}"
        )
        return 0
    for damage in report.damages:
        print(damage)
    more = " and more; the rest was not read" if report.stopped else ""
    count = len(report.damages)
    found = f"{count} difference{'' if count == 1 else 's'}{more}"
    print(
        f"DAMAGED: {found}, in {args.dir}. Remove it (iobench clean {args.dir}) and generate it again"
    )
    return 1
