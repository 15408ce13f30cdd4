"""``iobench whatif``: predict a recorded run with changed storage or settings, or more hosts."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from . import more_hosts
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..analyse.capacity.ceilings import Quantity

EXAMPLES = """examples:
  iobench whatif results/<run> --storage-bandwidth 2x
  iobench whatif results/<run> --storage-bandwidth 5GB/s --latency 2ms --workers 16
  iobench whatif results/<run> --cache 512GiB --json
  iobench whatif results/<run> --accelerators 8 --step-time 0.5x
  iobench whatif results/<1-host> results/<2-hosts> results/<4-hosts> --hosts 64
  iobench whatif results/<run> --hosts 64 --storage-limit 40GB/s --nic 25GB/s --html -o hosts.html
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        nargs="+",
        metavar="RUN_DIR",
        help="directory of a run, or its run.json; with --hosts, of several",
    )
    parser.add_argument(
        "--storage-bandwidth", metavar="RATE", help="bandwidth of the storage, e.g. 2x or 5GB/s"
    )
    parser.add_argument("--latency", metavar="TIME", help="latency of one read, e.g. 5ms or 0.5x")
    parser.add_argument(
        "--concurrency", metavar="N", help="reads in flight in each worker, e.g. 16 or 2x"
    )
    parser.add_argument(
        "--cache",
        metavar="SIZE",
        help="memory for cached data in each host, used from the second epoch on, e.g. 512GiB",
    )
    parser.add_argument(
        "--cache-kind",
        choices=("page", "pinned"),
        default="page",
        help="kind of cache: a page cache with LRU, or pinned data that is never evicted (default: "
        "page)",
    )
    parser.add_argument(
        "--workers", metavar="N", help="loader workers of each accelerator, e.g. 16 or 2x"
    )
    parser.add_argument(
        "--accelerators", metavar="N", help="accelerators on this host, e.g. 8 or 2x"
    )
    parser.add_argument(
        "--step-time", metavar="TIME", help="busy time of one batch, e.g. 100ms or 0.5x"
    )
    parser.add_argument(
        "--instance",
        metavar="TYPE",
        help="instance type behind whose network the storage is (iobench list instances)",
    )
    more_hosts.arguments(parser)


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ..analyse.capacity.ceilings import Change
    from ..analyse.capacity.whatif import what_if
    from ..errors import UsageError
    from ..report.whatif import document, sections
    from ..schema.instances import network_of
    from ..schema.record import load_training
    from ..units import parse_duration, parse_size
    from .printing import print_report

    if args.hosts is not None:
        return more_hosts.run(args)
    more_hosts.refuse_flags(args)
    change = Change(
        network_bytes_per_s=None
        if args.instance is None
        else network_of(args.instance, instead="--storage-bandwidth"),
        network_of=args.instance or "",
        storage_bandwidth=_quantity(
            args.storage_bandwidth,
            "--storage-bandwidth",
            lambda text: parse_size(text.removesuffix("/s")),
        ),
        latency=_quantity(args.latency, "--latency", parse_duration),
        concurrency=_quantity(args.concurrency, "--concurrency", _number),
        cache_bytes=None if args.cache is None else parse_size(args.cache),
        pinned=args.cache_kind == "pinned",
        workers=_quantity(args.workers, "--workers", _number),
        accelerators=_quantity(args.accelerators, "--accelerators", _number),
        step_time=_quantity(args.step_time, "--step-time", parse_duration),
    )
    directory = Path(args.directories[0])
    if not directory.exists():
        raise UsageError(
            f"{directory}: no such file or directory",
            remedy="name a run directory, e.g. results/<run>",
        )
    found = what_if(load_training(directory), change)
    print_report(args.format, document(found), sections(found))
    return 0


def _quantity(text: str | None, flag: str, parse: Callable[[str], float]) -> Quantity | None:
    """Parse a factor such as ``2x``, or else a value. Raises UsageError."""
    from ..analyse.capacity.ceilings import Quantity
    from ..errors import UsageError

    if text is None:
        return None
    if not text.strip().lower().endswith("x"):
        return Quantity(float(parse(text)))
    factor = _number(text.strip()[:-1])
    if not 0 < factor <= 1e6:
        raise UsageError(
            f"{flag} is '{text}', but a factor must be more than 0", remedy="write it like 2x"
        )
    return Quantity(factor, relative=True)


def _number(text: str) -> float:
    from ..errors import UsageError

    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not 0 <= value < 1e9:
        raise UsageError(
            f"'{text}' is not a number of 0 or more",
            remedy="write it like 16, or as a factor like 2x",
        )
    return value


VERB = Verb(
    help="a recorded run with changed storage or settings, or on more hosts",
    description=(
        "Predict the ceilings and the verdict of a recorded run with changes, by documented "
        "models, and show the error of the models on the recorded run. A factor such as 2x "
        "multiplies what was recorded. With --hosts: samples/s and utilization on more hosts, with "
        "intervals, and what binds there. Nothing is read or measured."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
