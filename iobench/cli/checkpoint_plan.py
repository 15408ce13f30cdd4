"""``iobench plan MODEL``: the size and cost of a checkpoint before anything is written."""

from __future__ import annotations

import argparse

from .checkpoint import HOSTS, add_hosts, asked_hosts
from .common import parse_share, parse_time, whole_number

OF_A_CHECKPOINT = (
    *("--to", "--scale", "--mtbf", "--interval", "--ranks", "--stall-budget"),
    *HOSTS,
)
"""The flags that ``add_checkpoint`` adds."""


def add_checkpoint(parser: argparse._ActionsContainer) -> None:
    """Add the flags of the plan of a model's checkpoint."""
    texts = {
        "--to": ("DIR", "directory or URL for the checkpoints, to check its free space"),
        "--scale": ("SHARE", "share of the model's bytes, e.g. 1/64 (default: 1)"),
        "--mtbf": (
            "TIME",
            "mean time between interruptions of the whole job, e.g. 3h (default: from the "
            "published rate and the number of accelerators)",
        ),
        "--interval": (
            "TIME",
            "time between two checkpoints, e.g. 30min (default: the best for each stall budget)",
        ),
    }
    for flag, (metavar, text) in texts.items():
        parser.add_argument(flag, metavar=metavar, help=text)
    parser.add_argument(
        "--ranks",
        type=whole_number,
        metavar="N",
        help="number of ranks that share the state (default: as published)",
    )
    parser.add_argument(
        "--stall-budget",
        action="append",
        metavar="SHARE",
        help="largest share of the time that saves may take; repeatable (default: 1%% and 5%%)",
    )
    add_hosts(parser)


def show_plan(args: argparse.Namespace, model: str) -> int:
    """Print the plan of ``model``'s checkpoint. Raises UsageError, UnknownNameError."""
    from ..errors import UsageError
    from ..report.plan import checkpoint_sections
    from ..runner.checkpoint_plan import STALL_BUDGETS, describe_checkpoint
    from ..schema.base import build
    from ..schema.checkpoint import CheckpointSpec, Training
    from .printing import print_report

    asked = {"model": model, "scale": args.scale, "ranks": args.ranks}
    spec = build(
        CheckpointSpec,
        {key: value for key, value in asked.items() if value is not None},
        where="the plan of a checkpoint",
    )
    if args.accelerators is not None and args.accelerators < 1:
        raise UsageError(f"--accelerators must be at least 1, but is {args.accelerators}")
    training = {
        "accelerators": args.accelerators,
        "mtbf_s": parse_time("--mtbf", args.mtbf),
        "interval_s": parse_time("--interval", args.interval),
        **asked_hosts(args),
    }
    plan = describe_checkpoint(
        spec,
        args.to,
        ranks=args.ranks,
        training=build(Training, training, where="the plan of a checkpoint"),
        budgets=[parse_share("--stall-budget", text) for text in args.stall_budget or ()]
        or STALL_BUDGETS,
    )
    print_report(args.format, plan, checkpoint_sections(plan))
    return 0
