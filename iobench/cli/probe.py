"""``iobench probe``: what a storage delivers with 1, 2, 4, ... reads in flight."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from .common import add_origin, duration, whole_number
from .hosts import add_hosts, launched, on_all_hosts, printed_lines
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.curve.reader import Together
    from ..runner.curve.target import Target
    from ..runner.hosts.control import Control
    from ..runner.hosts.launch import Launch
    from ..runner.hosts.meeting import Meeting
    from ..runner.hosts.serving import Serving

EXAMPLES = """examples:
  iobench probe /mnt/fast/resnet50
  iobench probe /mnt/fast --request 4KiB,128KiB,1MiB --time 60s
  iobench probe s3://bucket/resnet50 --max-in-flight 64
  iobench probe /mnt/fast/resnet50 --format csv > curve.csv
"""

_TIME = "30s"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="DIR",
        help="directory or URL of a dataset, or of any files or objects to read",
    )
    add_origin(parser)
    parser.add_argument(
        "--request",
        metavar="SIZE,...",
        help="sizes of the requests, e.g. 4KiB,128KiB,1MiB (default: the samples of a dataset, "
        "else 128KiB)",
    )
    parser.add_argument(
        "--max-in-flight",
        type=whole_number,
        default=256,
        metavar="N",
        help="largest number of reads in flight, on each host (default: 256)",
    )
    parser.add_argument(
        "--time",
        type=duration,
        dest="time_s",
        default=duration(_TIME),
        metavar="TIME",
        help=f"how long to measure at most, all curves together (default: {_TIME})",
    )
    add_hosts(parser, ranks=False)


def run(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..report.curve import sections
    from ..runner.curve.story import (
        DEFAULT_REQUEST,
        MAX_IN_FLIGHT,
        MAX_TIME_S,
        parse_requests,
        plan_probe,
        run_probe,
    )
    from ..runner.curve.target import open_target
    from .live import Live
    from .printing import print_report
    from .terminal import note

    if not 1 <= args.max_in_flight <= MAX_IN_FLIGHT:
        raise UsageError(
            f"--max-in-flight must be 1 to {MAX_IN_FLIGHT}, but is {args.max_in_flight}"
        )
    if args.time_s > MAX_TIME_S:
        raise UsageError(f"--time must be at most {MAX_TIME_S} s, but is {args.time_s:g} s")
    requests = parse_requests(args.request) if args.request is not None else []
    least = min(requests, default=DEFAULT_REQUEST)
    if printed_lines(args):
        return 0
    launch = launched(args)
    holds = launch is None or launch.index == 0
    with ExitStack() as held:

        def prepared() -> Target:
            return held.enter_context(
                open_target(args.url, origin=args.origin, least_bytes=least, hold=holds)
            )

        def measure(target: Target, together: Together | None = None) -> int:
            plan = plan_probe(
                target,
                requests,
                max_in_flight=args.max_in_flight,
                budget_s=args.time_s,
                hosts=len(together.names) if together else 1,
            )
            note(plan.announcement(), quiet=args.quiet)
            live = Live(quiet=args.quiet, lines=True)
            live.expect(min(plan.usual_s, plan.budget_s))
            try:
                probe = run_probe(plan, command=args.command_line, observer=live, together=together)
            finally:
                live.close()
            print_report(args.format, probe, sections(probe))
            return 0

        if launch is None:
            return measure(prepared())
        return _on_all_hosts(launch, args, prepared, measure, held)


def _on_all_hosts(
    launch: Launch,
    args: argparse.Namespace,
    prepared: Callable[[], Target],
    measure: Callable[[Target, Together], int],
    held: ExitStack,
) -> int:
    """All hosts read at the same time, as the first one says."""
    from ..runner.hosts.localreads import LocalReads
    from ..runner.hosts.reads import HostsTogether
    from ..runner.hosts.serving import Serving

    def same(target: Target) -> dict[str, str]:
        return {"data": target.storage.url, "objects": target.fingerprint()}

    def local(target: Target) -> LocalReads:
        folder = held.enter_context(TemporaryDirectory(prefix="iobench-probe-"))
        return LocalReads(target.storage, Path(folder))

    def lead(control: Control, target: Target) -> int:
        return measure(target, HostsTogether(control, local(target)))

    def join(meeting: Meeting, target: Target) -> Serving:
        return Serving(meeting, local(target))

    return on_all_hosts(launch, args, lambda _: prepared(), same, lead=lead, join=join)


VERB = Verb(
    help="throughput and latency over reads in flight",
    description="Read with 1, 2, 4, ... requests in flight until more of them bring nothing, and "
    "show the plateau (the most that the storage delivers), the knee (the fewest reads in flight "
    "that reach it) and the latencies. Large sequential requests are measured as well, which tells "
    "whether operations/s or bytes/s are spent. No workload is needed. Existing data is only read.",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
