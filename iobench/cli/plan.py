"""``iobench plan``: what a run would do, without doing it."""

from __future__ import annotations

import argparse

from .checkpoint_plan import hide_model_arguments, show_plan
from .common import add_origin, add_overrides, warn_renamed, whole_number
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
    # Plans of a model belong to "checkpoint plan"; old command lines still work.
    hide_model_arguments(parser)
    add_overrides(parser, "loader.workers=8")


_OF_A_RUN = ("data", "origin", "probe", "overrides")
_OF_A_CHECKPOINT = ("to", "ranks", "scale", "mtbf", "interval", "stall_budget")


def run(args: argparse.Namespace) -> int:
    from ..checkpoint.models import MODELS
    from ..errors import UnknownNameError, UsageError, nearest

    if args.workload in MODELS:
        _refuse(args, _OF_A_RUN, "a model's checkpoint")
        warn_renamed("iobench plan MODEL", "iobench checkpoint plan MODEL")
        return show_plan(args, args.workload)
    from ..report.plan import sections
    from ..runner.plan import describe_plan
    from ..schema.base import known_specs
    from ..schema.workload import load_workload
    from .printing import print_report

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


def _refuse(args: argparse.Namespace, names: tuple[str, ...], what: str) -> None:
    """Raise UsageError if a flag is given that has no meaning for a plan of ``what``."""
    from ..errors import UsageError

    for name in names:
        if getattr(args, name):
            flag = "--set" if name == "overrides" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{flag} does not apply to the plan of {what} such as {args.workload}",
                remedy="leave it out, see: iobench plan --help, iobench checkpoint plan --help",
            )


VERB = Verb(
    help="what a run would do: bytes, steps, memory, demand, time; no side effects",
    description="Compute what a run would do before anything is generated or read. Nothing is "
    "written or evicted from the page cache, and only --probe reads data (18 blocks).",
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=PAGES,
)
