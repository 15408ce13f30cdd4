"""iobench plan: what a run would do, without doing it."""

from __future__ import annotations

import argparse
from typing import Any

from .common import (
    add_common,
    add_origin,
    add_overrides,
    parse_share,
    parse_time,
    whole_number,
)

_EXAMPLES = """examples:
  iobench plan resnet50-h100 --accelerators 8
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --probe
  iobench plan llama3-405b --to /mnt/ckpt
  iobench plan llama3-405b --to /mnt/ckpt --interval 30min --stall-budget 1% --stall-budget 2%
  iobench plan llama3-8b --to /mnt/ckpt --ranks 2 --scale 1/64
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="what a run or a checkpoint study would do: bytes, steps, memory, demand, time; no side effects",
        description="Work out what a run, or a checkpoint of a model, means before anything is generated or read. Nothing is written, "
        "evicted or read, but for --probe, which reads 18 blocks.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "workload",
        help="a workload's name or YAML file, or a model's name (iobench list workloads, iobench list models)",
    )
    parser.add_argument("--data", help="where the dataset is, or would be")
    add_origin(parser)
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help="default: 1; of a model's checkpoint: its ranks",
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="time a few reads of the data, and say how many must be in flight",
    )
    parser.add_argument(
        "--repeat", type=whole_number, default=6, metavar="N", help="repetitions (default: 6)"
    )
    model = parser.add_argument_group("of a model's checkpoint")
    model.add_argument("--to", metavar="DIR", help="where checkpoints would go")
    model.add_argument(
        "--ranks",
        type=whole_number,
        metavar="N",
        help="that share the state (default: as published)",
    )
    model.add_argument(
        "--scale", metavar="SHARE", help="of the model's bytes, e.g. 1/64 (default: 1)"
    )
    model.add_argument(
        "--mtbf",
        metavar="TIME",
        help="mean time between interruptions, e.g. 3h (default: published, by accelerators)",
    )
    model.add_argument(
        "--interval",
        metavar="TIME",
        help="between saves (default: the one that suits each stall budget best)",
    )
    model.add_argument(
        "--stall-budget",
        action="append",
        metavar="SHARE",
        help="of the time that saving may take; repeatable (default: 1%% and 5%%)",
    )
    add_overrides(parser, "loader.workers=8")
    add_common(parser)
    parser.set_defaults(run=run)


_OF_A_RUN = ("data", "origin", "probe", "overrides")
_OF_A_CHECKPOINT = ("to", "ranks", "scale", "mtbf", "interval", "stall_budget")


def run(args: argparse.Namespace) -> int:
    from ..checkpoint.models import MODELS
    from ..errors import UnknownNameError, UsageError, nearest

    if args.workload in MODELS:
        _refuse(args, _OF_A_RUN, "a model's checkpoint")
        return _plan_model(args)
    from ..runner.plan import describe_plan
    from ..schema.base import known_specs
    from ..schema.workload import load_workload
    from .terminal import show, show_json

    try:
        workload = load_workload(args.workload, args.overrides)
    except UnknownNameError:
        if not nearest(args.workload, MODELS):
            raise
        raise UnknownNameError(
            "workload or model", args.workload, {*known_specs("workload"), *MODELS}
        ) from None
    _refuse(args, _OF_A_CHECKPOINT, "a workload")
    if args.origin and not args.data:
        raise UsageError("--origin is for the manifest that --data names", remedy="add --data DIR")
    accelerators = 1 if args.accelerators is None else args.accelerators
    plan = describe_plan(
        workload,
        args.data,
        origin=args.origin,
        accelerators=accelerators,
        repetitions=args.repeat,
    )
    if args.probe:
        from ..runner.plan import make_plan
        from ..runner.probe import probe

        if not plan.generated:
            raise UsageError(
                "--probe needs data that is there",
                remedy="name it with --data, or generate it first",
            )
        plan.probe = probe(
            make_plan(
                workload,
                args.data,
                origin=args.origin,
                accelerators=accelerators,
                repetitions=1,
                seed=0,
            )
        )
    if args.json:
        show_json(plan)
        return 0
    from ..report.plan import render_plan

    show(render_plan(plan))
    return 0


def _refuse(args: argparse.Namespace, names: tuple[str, ...], what: str) -> None:
    """Flags that say nothing about ``what`` are no flags of its plan."""
    from ..errors import UsageError

    for name in names:
        if getattr(args, name):
            flag = "--set" if name == "overrides" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} says nothing about {what} such as {args.workload}",
                remedy="leave it out; see: iobench plan --help",
            )


def _plan_model(args: argparse.Namespace) -> int:
    from ..errors import UsageError
    from ..runner.checkpoint_plan import STALL_BUDGETS, describe_checkpoint
    from ..schema.base import build
    from ..schema.checkpoint import CheckpointSpec
    from .terminal import show, show_json

    asked = {"model": args.workload, "scale": args.scale, "ranks": args.ranks}
    spec = build(
        CheckpointSpec,
        {key: value for key, value in asked.items() if value is not None},
        where="plan",
    )
    if args.accelerators is not None and args.accelerators < 1:
        raise UsageError(
            f"{args.accelerators} accelerators train nothing", remedy="give at least 1"
        )
    plan = describe_checkpoint(
        spec,
        args.to,
        ranks=args.ranks,
        accelerators=args.accelerators,
        mtbf_s=parse_time("--mtbf", args.mtbf),
        interval_s=parse_time("--interval", args.interval),
        budgets=[parse_share("--stall-budget", text) for text in args.stall_budget or ()]
        or STALL_BUDGETS,
    )
    if args.json:
        show_json(plan)
        return 0
    from ..report.plan import render_checkpoint_plan

    show(render_checkpoint_plan(plan))
    return 0
