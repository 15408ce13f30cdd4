"""``iobench checkpoint``: what it costs a training to save and restore a model's state."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from .common import (
    add_break_lock,
    add_overrides,
    add_renamed,
    add_results,
    number,
    parse_rate,
    parse_share,
    parse_time,
    whole_number,
)
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
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
    add_renamed(parser, "--count", "--repeat", dest="count", type=whole_number)
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
    add_renamed(parser, "--price", "--accelerator-price-per-hour", dest="price", type=number)
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
    add_break_lock(parser)
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


def add_hosts(parser: argparse._ActionsContainer, *, hidden: bool = False) -> None:
    """Add the flags that say how many hosts share the storage, and what it can do."""
    for flag, (metavar, text) in HOSTS.items():
        kind = whole_number if metavar == "N" else str
        shown = argparse.SUPPRESS if hidden else text
        parser.add_argument(flag, type=kind, metavar=metavar, help=shown)


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
    from ..analyse.verdict.thresholds import parse
    from ..checkpoint.base import asynchronous_version
    from ..runner.checkpoint import run_study
    from ..runner.checkpoint_plan import make_study_plan
    from ..schema.base import apply_overrides, build
    from ..schema.checkpoint import CheckpointSpec
    from .live import Live
    from .outcome import finish

    for expression in args.fail_on:
        parse(expression)  # report a wrong condition before anything runs
    asked = {
        "model": args.model,
        "writer": args.writer,
        "ranks": args.ranks,
        "scale": args.scale,
        "count": args.count,
    }
    if args.asynchronous:
        asked["writer"] = asynchronous_version(args.writer)
    spec = build(CheckpointSpec, apply_overrides(asked, args.overrides), where="checkpoint")
    plan = make_study_plan(spec, args.to, asked_training(args))
    # Batch schedulers stop jobs with SIGTERM. As after Ctrl-C, what was measured is saved.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    live = Live(quiet=args.quiet or args.json, lines=True)
    try:
        doc, directory = run_study(
            plan,
            results=args.results,
            rules=args.rules,
            command=tuple(args.command_line),
            keep_data=args.keep_data,
            break_lock=args.break_lock,
            progress=live,
        )
    finally:
        live.close()
    return finish(doc, directory, kind=args.format, fail_on=args.fail_on)


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
    help="cost of checkpoints: time blocked, time until durable, restore, how often to save",
    description=(
        "Save a model's state repeatedly, restore it from cold storage, verify it, and compute "
        "what that costs a training."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
