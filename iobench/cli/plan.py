"""``iobench plan``: what a run would do, without doing it."""

from __future__ import annotations

import argparse
from pathlib import Path

from .checkpoint_plan import OF_A_CHECKPOINT, add_checkpoint, show_plan
from .common import add_origin, add_overrides, given, whole_number
from .verbs import PAGES, Verb

EXAMPLES = """examples:
  iobench plan resnet50-h100 --accelerators 8
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --probe
  iobench plan llama3-405b --to /mnt/ckpt
  iobench plan llama3-405b --interval 30min --stall-budget 1% --stall-budget 2%
  iobench plan llama3-405b --hosts-writing 64 --storage-write-limit 100GB/s
  iobench plan llama3-8b --to /mnt/ckpt --ranks 2 --scale 1/64
"""


_OF_A_RUN = ("--data", "--origin", "--probe", "-n", "--repeat", "--set")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        metavar="WORKLOAD|MODEL",
        help="name of a workload (iobench list workloads) or YAML file; or model to checkpoint "
        "(iobench list models)",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="directory or URL of the dataset, which need not exist yet"
    )
    add_origin(parser)
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help="number of ranks, each with its own loader (default: 1); of a checkpoint: "
        "accelerators in the real training, for its failure rate (default: as published)",
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="measure how long a few reads take, and compute how many must be in flight",
    )
    parser.add_argument(
        "-n",
        "--repeat",
        type=whole_number,
        default=6,
        metavar="N",
        help="number of repetitions (default: 6)",
    )
    add_overrides(parser, "loader.workers=8")
    add_checkpoint(parser.add_argument_group("of a model's checkpoint"))


def run(args: argparse.Namespace) -> int:
    from ..checkpoint.models import MODELS
    from ..errors import UnknownNameError, UsageError, nearest
    from ..report.plan import sections
    from ..runner.plan import describe_plan
    from ..schema.base import known_specs
    from ..schema.workload import load_workload
    from .printing import print_report

    of_checkpoint = given(args, OF_A_CHECKPOINT)
    if args.workload in MODELS:
        if others := given(args, _OF_A_RUN):
            raise UsageError(
                f"{others[0]} is of a run, and {args.workload} is a model, whose checkpoint is "
                "planned",
                remedy=f"leave {others[0]} out, or name a workload",
            )
        return show_plan(args, args.workload)
    known = known_specs("workload")
    if args.workload not in known and not Path(args.workload).exists():
        near_a_model = nearest(args.workload, MODELS) and not nearest(args.workload, known)
        if of_checkpoint or near_a_model:
            raise UnknownNameError("model", args.workload, MODELS)
    if of_checkpoint:
        raise UsageError(
            f"{of_checkpoint[0]} is of a checkpoint, and {args.workload} is a workload",
            remedy=f"leave {of_checkpoint[0]} out, or name a model (iobench list models)",
        )
    workload = load_workload(args.workload, args.overrides)
    if args.origin and not args.data:
        raise UsageError("--origin can only be used with --data", remedy="add --data DIR")
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
                "--probe needs an existing dataset",
                remedy="name one with --data, or generate it first",
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
    print_report(args.format, plan, sections(plan))
    return 0


VERB = Verb(
    help="bytes, memory and time of a run or of a checkpoint",
    description="Compute what a run would do before anything is generated or read. Nothing is "
    "written or evicted from the page cache, and only --probe reads data (18 blocks). Of a model: "
    "what its checkpoint needs, i.e. bytes of each rank, memory, free space in the target, and the "
    "write rate for a stall budget.",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=PAGES,
)
