"""``iobench verify``: compare every byte of a dataset with its manifest."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..units import counted
from .common import add_break_lock, add_origin, whole_number
from .hosts import add_hosts, hosts_document, launched, on_all_hosts, printed_lines, say_hosts
from .terminal import say, show_json
from .verbs import Verb

if TYPE_CHECKING:
    from ..runner.hosts.control import Control
    from ..runner.hosts.launch import Launch
    from ..runner.hosts.meeting import Meeting
    from ..runner.hosts.serving import Serving
    from ..runner.hosts.sharing import HostShare
    from ..schema.manifest import Manifest
    from ..storage.base import Storage
    from ..verify import VerifyReport

    Found = tuple[Manifest, Storage, Storage]
    """A dataset: its manifest, where that is, and where its shards are."""

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
        help="number of processes on each host (default: one for each core)",
    )
    add_break_lock(parser)
    add_hosts(parser, ranks=False)


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..storage import open_storage
    from ..storage.locks.lock import reading
    from ..verify import verify

    if args.workers is not None and args.workers < 1:
        raise UsageError(f"--workers must be at least 1, but is {args.workers}")
    if printed_lines(args):
        return 0
    launch = launched(args)
    with ExitStack() as held:

        def prepared() -> Found:
            manifest, place = _found(args)
            home = open_storage(args.dir)
            held.enter_context(reading(home, manifest, verb="verify", break_dead=args.break_lock))
            return manifest, home, open_storage(place)

        def report(found: Found, hosts: Sequence[HostShare] = (), **more: Any) -> int:
            from .live import progress_bar

            manifest, _, storage = found
            with progress_bar("verifying", quiet=args.quiet) as tell:
                done = verify(storage, manifest, workers=args.workers, progress=tell, **more)
            return _print(args, manifest, storage, done, hosts)

        if launch is not None:
            return _on_all_hosts(launch, args, prepared, report)
        return report(prepared())


def _found(args: argparse.Namespace) -> tuple[Manifest, str]:
    """The manifest, and where its shards are."""
    from ..dataset import find_dataset
    from ..errors import MissingObjectError, StorageError, UnreadableError

    try:
        return find_dataset(args.dir, origin=args.origin)
    except MissingObjectError:
        raise  # without one of its tables it is not a dataset
    except StorageError as error:
        raise UnreadableError(error.what, remedy=error.remedy) from error


def _on_all_hosts(
    launch: Launch,
    args: argparse.Namespace,
    prepared: Callable[[], Found],
    report: Callable[..., int],
) -> int:
    """Each host compares a share of the shards; the first one reports what all have found."""
    from ..runner.hosts.sharing import SharedTasks, Sharing
    from ..schema.manifest import hash_bytes
    from ..verify import check_share
    from ..verify.report import PartialReport

    def same(found: Found) -> dict[str, str]:
        manifest, home, storage = found
        header = hash_bytes(manifest.header.model_dump_json().encode())
        return {"data": f"{home.url} at {storage.url}", "dataset": header}

    def lead(control: Control, found: Found) -> int:
        shared = SharedTasks(control, PartialReport, weigh=lambda part: part.bytes_read)
        return report(found, shared.hosts, run=shared)

    def join(meeting: Meeting, found: Found) -> Serving:
        manifest, _, storage = found
        name = meeting.hosts[meeting.launch.index].label
        return Sharing(
            meeting,
            lambda order, check: check_share(
                storage, manifest, order.tasks, host=name, workers=args.workers, check=check
            ),
        )

    return on_all_hosts(launch, args, lambda _: prepared(), same, lead=lead, join=join)


def _print(
    args: argparse.Namespace,
    manifest: Manifest,
    storage: Storage,
    report: VerifyReport,
    hosts: Sequence[HostShare],
) -> int:
    """Print the report; return the exit code for it."""
    from ..errors import DatasetError, UnreadableError

    code = DatasetError.exit_code if report.damages else UnreadableError.exit_code
    if args.json:
        _print_json(args.dir, storage.url, report, hosts)
    else:
        _print_text(args.dir, storage.url if manifest.header.origin else "", report)
        say_hosts(hosts)
    return 0 if report.ok else code


def _print_json(path: str, place: str, report: VerifyReport, hosts: Sequence[HostShare]) -> None:
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
        **hosts_document(hosts),
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
