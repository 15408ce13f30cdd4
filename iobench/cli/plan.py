"""iobench plan: what a run would do, without doing it."""

from __future__ import annotations

import argparse
from typing import Any

_EXAMPLES = """examples:
  iobench plan resnet50-h100 --accelerators 8
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --probe
  iobench plan llama3-405b --to /mnt/ckpt
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
    parser.add_argument("workload", help="a workload's name or YAML file, or a model's name (iobench list workloads, iobench list models)")
    parser.add_argument("--data", help="where the dataset is, or would be")
    parser.add_argument("--accelerators", type=int, default=1, metavar="N")
    parser.add_argument("--probe", action="store_true", help="time a few reads of the data, and say how many must be in flight")
    parser.add_argument("--repeat", type=int, default=6, metavar="N", help="repetitions (default: 6)")
    model = parser.add_argument_group("of a model's checkpoint")
    model.add_argument("--to", metavar="DIR", help="where checkpoints would go")
    model.add_argument("--ranks", type=int, metavar="N", help="that share the state (default: as published)")
    model.add_argument("--scale", default="1", metavar="SHARE", help="of the model's bytes, e.g. 1/64 (default: 1)")
    model.add_argument("--mtbf", metavar="TIME", help="mean time between interruptions, e.g. 3h (default: published, by accelerators)")
    from .common import add_common, add_overrides

    add_overrides(parser, "loader.workers=8")
    add_common(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from ..checkpoint.models import MODELS

    if args.workload in MODELS:
        return _plan_model(args)
    from ..run.plan import describe_plan
    from ..spec.workload import load_workload
    from .common import print_json

    workload = load_workload(args.workload, args.overrides)
    plan = describe_plan(workload, args.data, accelerators=args.accelerators, repetitions=args.repeat)
    if args.probe:
        from ..errors import UsageError
        from ..run.plan import make_plan
        from ..run.probe import probe

        if not plan["generated"]:
            raise UsageError("--probe needs data that is there", remedy="name it with --data, or generate it first")
        plan["probe"] = probe(make_plan(workload, args.data, accelerators=args.accelerators, repetitions=1, seed=0))
    if args.json:
        print_json(plan)
        return 0
    from ..report.plan import render_plan

    print(render_plan(plan))
    return 0


def _plan_model(args: argparse.Namespace) -> int:
    from ..run.checkpoint_plan import describe_checkpoint
    from ..spec.base import build
    from ..spec.checkpoint import CheckpointSpec
    from ..units import parse_duration
    from .common import print_json

    asked = {"model": args.workload, "scale": args.scale, **({"ranks": args.ranks} if args.ranks is not None else {})}
    spec = build(CheckpointSpec, asked, where="plan")
    mtbf = None if args.mtbf is None else parse_duration(args.mtbf)
    accelerators = args.accelerators if args.accelerators > 1 else None
    plan = describe_checkpoint(spec, args.to, ranks=args.ranks, accelerators=accelerators, mtbf_s=mtbf)
    if args.json:
        print_json(plan)
        return 0
    from ..report.plan import render_checkpoint_plan

    print(render_checkpoint_plan(plan))
    return 0
