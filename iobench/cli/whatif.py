"""``iobench whatif``: predict a recorded run with changed storage or settings, or more hosts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .common import parse_rate, parse_time, whole_number
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..analyse.capacity.ceilings import Change, Quantity
    from ..analyse.capacity.hosts import HostsChange
    from ..analyse.capacity.scaling import Barrier
    from ..analyse.figures.events import Events
    from ..schema.record import TrainingRecord

EXAMPLES = """examples:
  iobench whatif results/<run> --storage-bandwidth 2x
  iobench whatif results/<run> --storage-bandwidth 5GB/s --latency 2ms --workers 16
  iobench whatif results/<run> --cache 512GiB --json
  iobench whatif results/<run> --accelerators 8 --step-time 0.5x
  iobench whatif results/<1-host> results/<2-hosts> results/<4-hosts> --hosts 64
  iobench whatif results/<run> --hosts 64 --storage-limit 40GB/s --nic 25GB/s --html -o hosts.html
"""


_OF_HOSTS = (
    *("accelerators_per_host", "storage_limit", "nic", "barrier", "checkpoint_bytes"),
    *("host_write", "storage_write_limit", "mtbf", "anyway"),
)
"""What only ``--hosts`` understands."""

_OF_ONE_HOST = (
    *("storage_bandwidth", "latency", "concurrency", "workers", "accelerators", "step_time"),
)
"""Changes of a recorded run on its own hosts."""


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
    _host_arguments(parser)


def _host_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job on more hosts, as a group of their own."""
    group = parser.add_argument_group("more hosts")
    group.add_argument(
        "--hosts",
        type=whole_number,
        metavar="N",
        help="predict the job on N hosts; several runs with different numbers of hosts tell how it "
        "scales, and the error of the model",
    )
    group.add_argument(
        "--accelerators-per-host",
        type=whole_number,
        metavar="N",
        help="accelerators of each host (default: as in the run with most hosts)",
    )
    group.add_argument(
        "--storage-limit",
        metavar="RATE",
        help="what the storage delivers to all hosts together, e.g. 40GB/s",
    )
    group.add_argument(
        "--nic", metavar="RATE", help="what the network of one host lets through, e.g. 25GB/s"
    )
    group.add_argument(
        "--barrier",
        metavar="TIME,TIME",
        help="cost of a barrier of n accelerators as a,b of a + b ln(n), e.g. 0.7ms,0.2ms "
        "(default: as the runs tell)",
    )
    group.add_argument(
        "--checkpoint-bytes", metavar="SIZE", help="bytes of one checkpoint of the whole job"
    )
    group.add_argument(
        "--host-write", metavar="RATE", help="durable writes of one host, e.g. 2GB/s"
    )
    group.add_argument(
        "--storage-write-limit",
        metavar="RATE",
        help="durable writes of all hosts together that the storage sustains, e.g. 50GB/s",
    )
    group.add_argument(
        "--mtbf",
        metavar="TIME",
        help="mean time between interruptions of the whole job, e.g. 8h (default: by the rate that "
        "was published for Llama 3)",
    )
    group.add_argument(
        "--anyway", action="store_true", help="also more than 32 times what was measured"
    )


def run(args: argparse.Namespace) -> int:
    from ..analyse.capacity.ceilings import Change
    from ..analyse.capacity.whatif import what_if
    from ..report.whatif import sections
    from .printing import print_report

    if args.hosts is None:
        _refuse_flags(args)
        change = _change(args)
        runs: list[tuple[TrainingRecord, Events]] = [(_recorded(Path(args.directories[0])), {})]
    else:
        change = Change(more=_more_hosts(args))
        runs = [_with_events(Path(each)) for each in args.directories]
    found = what_if(runs, change)
    print_report(args.format, found, sections(found))
    return 0


def _change(args: argparse.Namespace) -> Change:
    """What changes on the run's own hosts. Raises UsageError."""
    from ..analyse.capacity.ceilings import Change
    from ..schema.instances import network_of
    from ..units import parse_duration, parse_size

    return Change(
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


def _refuse_flags(args: argparse.Namespace) -> None:
    """Without ``--hosts``. Raises UsageError for its other flags, and for more than one run."""
    from ..errors import UsageError

    given = [name for name in _OF_HOSTS if getattr(args, name)]
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} needs the number of hosts",
            remedy="add e.g. --hosts 64",
        )
    if len(args.directories) > 1:
        raise UsageError(
            "several runs tell how a job scales, but no number of hosts was given",
            remedy="add e.g. --hosts 64, or name one run",
        )


def _more_hosts(args: argparse.Namespace) -> HostsChange:
    """The job on more hosts. Raises UsageError for flags that do not go together."""
    from ..analyse.capacity.hosts import HostsChange
    from ..errors import UsageError
    from ..units import parse_size

    given = [name for name in _OF_ONE_HOST if getattr(args, name) is not None]
    if given:
        raise UsageError(
            f"--hosts and --{given[0].replace('_', '-')} can't be predicted together",
            remedy="leave one out; --storage-limit is the bandwidth for all hosts",
        )
    if args.cache_kind != "page":
        raise UsageError(
            "--hosts knows page caches alone", remedy="leave out --cache-kind, or --hosts"
        )
    return HostsChange(
        hosts=args.hosts,
        per_host=args.accelerators_per_host,
        storage_bytes_per_s=parse_rate("--storage-limit", args.storage_limit),
        host_network_bytes_per_s=_network(args),
        cache_bytes=None if args.cache is None else float(parse_size(args.cache)),
        barrier=_barrier(args.barrier),
        checkpoint_bytes=parse_rate("--checkpoint-bytes", args.checkpoint_bytes),
        host_write_bytes_per_s=parse_rate("--host-write", args.host_write),
        storage_write_bytes_per_s=parse_rate("--storage-write-limit", args.storage_write_limit),
        mtbf_s=parse_time("--mtbf", args.mtbf),
        anyway=args.anyway,
    )


def _recorded(named: Path) -> TrainingRecord:
    from ..errors import UsageError
    from ..schema.record import load_training

    if not named.exists():
        raise UsageError(
            f"{named}: no such file or directory",
            remedy="name a run directory, e.g. results/<run>",
        )
    return load_training(named)


def _with_events(named: Path) -> tuple[TrainingRecord, Events]:
    """A recorded run, computed again from its events, and these; empty if it has none."""
    from ..analyse.verdict.rebuild import conclude, rebuild
    from ..measure.timeline import read_events
    from ..schema.record import EVENTS_FILE

    doc = _recorded(named)
    file = (named.parent if named.is_file() else named) / EVENTS_FILE
    if not file.is_file():
        return conclude(doc), {}
    events = read_events(file)
    return rebuild(doc, events), events


def _network(args: argparse.Namespace) -> float | None:
    """Of one host, in bytes/s: as stated, or that of the instance type."""
    from ..errors import UsageError
    from ..schema.instances import network_of

    if args.instance is None:
        return parse_rate("--nic", args.nic)
    if args.nic is not None:
        raise UsageError("--nic and --instance both state the network", remedy="leave one out")
    return network_of(args.instance, instead="--nic")


def _barrier(text: str | None) -> Barrier | None:
    from ..analyse.capacity.scaling import Barrier
    from ..errors import UsageError
    from ..units import parse_duration

    if text is None:
        return None
    base, comma, more = text.partition(",")
    try:
        found = Barrier(parse_duration(base), parse_duration(more) if comma else 0.0)
    except UsageError:
        found = Barrier(-1.0, 0.0)
    if min(found) < 0:
        raise UsageError(
            f"--barrier is '{text}', but must be one time or two, of 0 or more",
            remedy="write it like 0.7ms,0.2ms",
        )
    return found


VERB = Verb(
    help="a recorded run with other storage, settings or hosts",
    description=(
        "Predict the ceilings and the verdict of a recorded run with changes, by documented "
        "models, and show the error of the models on the recorded run. A factor such as 2x "
        "multiplies what was recorded. With --hosts: samples/s and utilization on more hosts, with "
        "intervals, and the bottleneck there. Nothing is read or measured."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
