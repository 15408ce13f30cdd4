"""``iobench whatif RUN... --hosts N``: its flags, and how it reads the runs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ..analyse.capacity.more_hosts import JobSaves
from .common import parse_rate, parse_time, whole_number

if TYPE_CHECKING:
    from ..analyse.capacity.scaling import Barrier
    from ..analyse.figures.events import Events
    from ..schema.record import TrainingRecord

_FLAGS = (
    *("accelerators_per_host", "storage_limit", "nic", "barrier", "checkpoint_bytes"),
    *("host_write", "storage_write_limit", "mtbf", "anyway"),
)
"""What only ``--hosts`` understands."""

_OF_ONE_HOST = (
    *("storage_bandwidth", "latency", "concurrency", "workers", "accelerators", "step_time"),
)
"""Changes of a recorded run on its own hosts."""


def arguments(parser: argparse.ArgumentParser) -> None:
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


def refuse_flags(args: argparse.Namespace) -> None:
    """Without ``--hosts``. Raises UsageError for its other flags, and for more than one run."""
    from ..errors import UsageError

    given = [name for name in _FLAGS if getattr(args, name)]
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


def run(args: argparse.Namespace) -> int:
    """Predict, and print. Raises UsageError for flags and runs that do not go together."""
    from ..analyse.capacity.hosts import Stated
    from ..analyse.capacity.jobs import jobs_of
    from ..analyse.capacity.more_hosts import Question, predict
    from ..errors import UsageError
    from ..report.cluster import document, sections
    from ..units import parse_size
    from .printing import print_report

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
    question = Question(
        hosts=args.hosts,
        per_host=args.accelerators_per_host,
        stated=Stated(
            storage_bytes_per_s=parse_rate("--storage-limit", args.storage_limit),
            host_network_bytes_per_s=_network(args),
            cache_bytes=None if args.cache is None else float(parse_size(args.cache)),
        ),
        barrier=_barrier(args.barrier),
        saves=JobSaves(
            checkpoint_bytes=parse_rate("--checkpoint-bytes", args.checkpoint_bytes),
            host_bytes_per_s=parse_rate("--host-write", args.host_write),
            storage_bytes_per_s=parse_rate("--storage-write-limit", args.storage_write_limit),
            mtbf_s=parse_time("--mtbf", args.mtbf),
        ),
        anyway=args.anyway,
    )
    found = predict(jobs_of([_read(Path(each)) for each in args.directories]), question)
    print_report(args.format, document(found), sections(found))
    return 0


def _read(named: Path) -> tuple[TrainingRecord, Events]:
    """A recorded run, computed again from its events, and these; empty if it has none."""
    from ..analyse.verdict.rebuild import conclude, rebuild
    from ..errors import UsageError
    from ..measure.timeline import read_events
    from ..schema.record import EVENTS_FILE, load_training

    if not named.exists():
        raise UsageError(
            f"{named}: no such file or directory",
            remedy="name a run directory, e.g. results/<run>",
        )
    doc = load_training(named)
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
