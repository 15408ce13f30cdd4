"""``iobench plan``: what a run would do, without doing it."""

from __future__ import annotations

import argparse

from .common import add_origin, add_overrides, whole_number
from .verbs import PAGES, Verb

EXAMPLES = """examples:
  iobench plan resnet50-h100 --accelerators 8
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --accelerators 8 --json
  iobench plan resnet50-h100 --data /mnt/fast/resnet50 --probe

For a model's checkpoint: iobench checkpoint plan MODEL
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "workload",
        help="name of a workload (iobench list workloads) or YAML file",
    )
    parser.add_argument(
        "--data", metavar="DIR", help="directory or URL of the dataset, which need not exist yet"
    )
    add_origin(parser)
    parser.add_argument(
        "--accelerators",
        type=whole_number,
        metavar="N",
        help="number of ranks, each with its own loader (default: 1)",
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


def run(args: argparse.Namespace) -> int:
    from ..checkpoint.models import MODELS
    from ..errors import UsageError
    from ..report.plan import sections
    from ..runner.plan import describe_plan
    from ..schema.workload import load_workload
    from .printing import print_report

    if args.workload in MODELS:
        raise UsageError(
            f"{args.workload} is a model, and no workload",
            remedy=f"plan its checkpoint: iobench checkpoint plan {args.workload}",
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
    help="what a run would do: bytes, steps, memory, demand, time; no side effects",
    description="Compute what a run would do before anything is generated or read. Nothing is "
    "written or evicted from the page cache, and only --probe reads data (18 blocks).",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=PAGES,
)
