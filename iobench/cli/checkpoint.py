"""``iobench checkpoint``: what it costs a training to save and restore a model's state."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from .common import (
    add_break_lock,
    add_overrides,
    add_results,
    add_tags,
    duration,
    number,
    parse_rate,
    parse_share,
    parse_time,
    whole_number,
)
from .hosts import add_hosts as add_many_hosts
from .hosts import launched, on_all_hosts, printed_lines
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.checkpoint_plan import StudyPlan
    from ..runner.hosts.control import Control
    from ..runner.hosts.meeting import Meeting
    from ..runner.study import StudyRanks
    from ..schema.checkpoint import Training

EXAMPLES = """examples:
  iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64
  iobench checkpoint llama3-8b --to /mnt/ckpt --ranks 8 --writer dcp
  iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 --writer dcp --async --set steps=50 \
--set step_time=200ms
  iobench checkpoint llama3-70b --to s3://bucket/ckpt --writer stream --repeat 10
  iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 --accelerators 1024 \
--accelerator-price-per-hour 2.5
  iobench checkpoint llama3-8b --to /mnt/ckpt --scale 1/64 --accelerators 1024 \
--hosts-writing 128 --storage-write-limit 40GB/s
  iobench checkpoint llama3-8b --to /mnt/fs/ckpt --ranks-per-host 8 --hosts h1,h2 --print

The target must be new, empty, or hold checkpoints of iobench. The checkpoints of this study are
removed at the end; --keep-data keeps the last one. Checkpoints that were there before are kept; to
remove them: iobench clean DIR

exit status: 0 ok, 1 failed, 2 usage, 3 the study is invalid, 4 a --fail-on condition holds
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="model to checkpoint (iobench list models)")
    parser.add_argument(
        "--to", required=True, metavar="DIR", help="directory or URL for the checkpoints"
    )
    parser.add_argument(
        "--writer",
        default="stream",
        metavar="NAME",
        help="checkpoint writer (iobench list writers; default: stream)",
    )
    parser.add_argument(
        "--async",
        dest="asynchronous",
        action="store_true",
        help="use the asynchronous version of the writer: training continues while it writes",
    )
    parser.add_argument(
        "--ranks",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of ranks that share the state (default: 1)",
    )
    parser.add_argument(
        "--scale",
        default="1",
        metavar="SHARE",
        help="share of the model's bytes to save, e.g. 1/64 (default: 1)",
    )
    parser.add_argument(
        "-n",
        "--repeat",
        dest="count",
        type=whole_number,
        default=10,
        metavar="N",
        help="number of saves, and of restores (default: 10)",
    )
    parser.add_argument(
        "--budget",
        type=duration,
        metavar="TIME",
        help="time for the whole study: at most --repeat saves and restores, as many of both as "
        "there is time for, and one of each at least",
    )
    parser.add_argument(
        "--keep-data", action="store_true", help="keep the last checkpoint in the target"
    )
    meaning = parser.add_argument_group(
        "the real training, to compute how often to save and what that costs"
    )
    meaning.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help="accelerators in the real training, for its failures and its cost (default: as "
        "published)",
    )
    add_hosts(meaning)
    meaning.add_argument(
        "--mtbf",
        metavar="TIME",
        help="mean time between interruptions of the whole job, e.g. 3h (default: as published)",
    )
    meaning.add_argument(
        "--restart",
        default="0s",
        metavar="TIME",
        help="time to restart after an interruption, without the restore (default: 0s)",
    )
    meaning.add_argument(
        "--interval", metavar="TIME", help="time between two checkpoints today, e.g. 30min"
    )
    meaning.add_argument(
        "--accelerator-price-per-hour",
        dest="price",
        type=number,
        metavar="USD",
        help="price of one accelerator for one hour",
    )
    meaning.add_argument(
        "--samples-per-s",
        type=number,
        metavar="RATE",
        help="samples/s of the whole training, to count lost samples",
    )
    meaning.add_argument(
        "--stall-budget",
        default="1%",
        metavar="SHARE",
        help="largest share of the time that saves may take (default: 1%%)",
    )
    meaning.add_argument(
        "--notice",
        default="2m",
        metavar="TIME",
        help="time between the notice and the end of a spot instance (default: 2m)",
    )
    parser.add_argument(
        "--rules",
        choices=("quick", "mlperf"),
        default="quick",
        help="rule set; a study that breaks a rule of mlperf is INVALID (default: quick)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with status 4 if this holds, e.g. 'blocked_s>5'; repeatable",
    )
    add_results(parser, "for run directories")
    add_tags(parser)
    add_break_lock(parser)
    many = add_many_hosts(parser, ranks=False)
    many.add_argument(
        "--ranks-per-host",
        type=whole_number,
        metavar="N",
        help="number of ranks on each host, in place of --ranks, which counts those of all",
    )
    add_overrides(parser, "fsync=false")


HOSTS = {
    "--hosts-writing": (
        "N",
        "hosts that save at the same time, each its part of the model (default: the whole job is "
        "taken to get what one host gets)",
    ),
    "--hosts-restoring": (
        "N",
        "hosts that read at the same time after an interruption; replicas read a part again "
        "(default: those that write)",
    ),
    "--storage-write-limit": (
        "RATE",
        "what the storage takes from all hosts together, e.g. 40GB/s (default: not known)",
    ),
    "--storage-read-limit": (
        "RATE",
        "what the storage gives all hosts together, e.g. 80GB/s (default: not known)",
    ),
}


def add_hosts(parser: argparse._ActionsContainer) -> None:
    """Add the flags that say how many hosts share the storage, and what it can do."""
    for flag, (metavar, text) in HOSTS.items():
        kind = whole_number if metavar == "N" else str
        parser.add_argument(flag, type=kind, metavar=metavar, help=text)


def asked_hosts(args: argparse.Namespace) -> dict[str, float | None]:
    """Return what the flags of ``add_hosts`` say, by the keys of ``Training``.

    Raises UsageError.
    """
    from ..errors import UsageError
    from ..schema.checkpoint import MAX_HOSTS

    for flag, value in (
        ("--hosts-writing", args.hosts_writing),
        ("--hosts-restoring", args.hosts_restoring),
    ):
        if value is not None and not 1 <= value <= MAX_HOSTS:
            raise UsageError(f"{flag} must be 1 to {MAX_HOSTS:,}, but is {value}")
    return {
        "hosts_writing": args.hosts_writing,
        "hosts_restoring": args.hosts_restoring,
        "storage_write_bytes_per_s": parse_rate("--storage-write-limit", args.storage_write_limit),
        "storage_read_bytes_per_s": parse_rate("--storage-read-limit", args.storage_read_limit),
    }


def run(args: argparse.Namespace) -> int:
    if printed_lines(args):
        return 0
    launch = launched(args)
    from ..analyse.verdict.validity import parse
    from ..checkpoint import asynchronous_version
    from ..runner.budget import Budget
    from ..runner.checkpoint import StudyOptions, run_study
    from ..runner.checkpoint_plan import make_study_plan
    from ..schema.base import apply_overrides, build
    from ..schema.checkpoint import CheckpointSpec
    from .live import Live
    from .outcome import finish

    for expression in args.fail_on:
        parse(expression)  # report a wrong condition before anything runs
    here = ranks_here(args, 1 if launch is None else launch.hosts)
    # Batch schedulers stop jobs with SIGTERM. As after Ctrl-C, what was measured is saved.
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def planned(ranks: int, own: range | None = None) -> StudyPlan:
        asked = {
            "model": args.model,
            "writer": args.writer,
            "ranks": ranks,
            "scale": args.scale,
            "count": args.count,
        }
        if args.asynchronous:
            asked["writer"] = asynchronous_version(args.writer)
        spec = build(CheckpointSpec, apply_overrides(asked, args.overrides), where="checkpoint")
        return make_study_plan(spec, args.to, asked_training(args), own)

    def measured(plan: StudyPlan, ranks: StudyRanks | None = None) -> int:
        live = Live(quiet=args.quiet or args.json, lines=True)
        try:
            doc, directory = run_study(
                plan,
                StudyOptions(
                    results=args.results,
                    rules=args.rules,
                    command=tuple(args.command_line),
                    keep_data=args.keep_data,
                    break_lock=args.break_lock,
                    budget=Budget(seconds=args.budget, began_s=args.began_s),
                ),
                observer=live,
                ranks=ranks,
            )
        finally:
            live.close()
        return finish(doc, directory, kind=args.format, fail_on=args.fail_on)

    if launch is None:
        return measured(planned(here))
    from ..runner.hosts.saving import HostsSaves, SavesAgent, same_of_study

    def of_all(meeting: Meeting) -> StudyPlan:
        first = sum(host.accelerators for host in meeting.hosts[: meeting.launch.index])
        return planned(meeting.accelerators, range(first, first + here))

    def lead(control: Control, plan: StudyPlan) -> int:
        return measured(plan, HostsSaves(control))

    return on_all_hosts(
        launch, args, of_all, same_of_study, lead=lead, join=SavesAgent, accelerators=here
    )


def ranks_here(args: argparse.Namespace, hosts: int) -> int:
    """The ranks of this host. Raises UsageError for numbers that contradict each other."""
    from ..errors import UsageError

    if args.ranks_per_host is None:
        ranks = hosts if args.ranks == 1 else args.ranks
        if ranks % hosts:
            raise UsageError(
                f"{ranks} ranks can't be shared by {hosts} hosts",
                remedy="use a multiple of the number of hosts, or --ranks-per-host",
            )
        return int(ranks // hosts)
    if args.ranks_per_host < 1 or args.ranks != 1:
        raise UsageError(
            "--ranks is the number of all ranks, and --ranks-per-host that of each host",
            remedy="use one of them, with a number of at least 1",
        )
    number: int = args.ranks_per_host
    return number


def asked_training(args: argparse.Namespace) -> Training:
    """Return the training that the flags describe, in base units. Raises UsageError."""
    from ..errors import UsageError
    from ..schema.base import build
    from ..schema.checkpoint import Training
    from ..units import parse_duration

    for flag, value in (
        ("--accelerator-price-per-hour", args.price),
        ("--samples-per-s", args.samples_per_s),
        ("--accelerators", args.accelerators),
    ):
        if value is not None and not 0 < value < 1e15:
            raise UsageError(f"{flag} must be more than 0, but is {value}")
    asked = {
        "accelerators": args.accelerators,
        "mtbf_s": parse_time("--mtbf", args.mtbf),
        "restart_s": parse_duration(args.restart),
        "interval_s": parse_time("--interval", args.interval),
        "usd_per_accelerator_hour": args.price,
        "samples_per_s": args.samples_per_s,
        "stall_budget": parse_share("--stall-budget", args.stall_budget),
        "notice_s": parse_duration(args.notice),
        **asked_hosts(args),
    }
    return build(Training, asked, where="checkpoint")


VERB = Verb(
    help="cost of checkpoints: blocked, durable, restored",
    description=(
        "Save a model's state repeatedly, restore it from cold storage, verify it, and compute "
        "what that costs a training."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
