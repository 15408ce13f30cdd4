"""``iobench run``: measure a workload and find the stage that limits it."""

from __future__ import annotations

import argparse
import signal
from typing import TYPE_CHECKING

from .common import (
    add_accelerators,
    add_break_lock,
    add_calibration,
    add_details,
    add_origin,
    add_overrides,
    add_results,
    add_tags,
    check_measuring,
    duration,
    whole_number,
)
from .hosts import (
    accelerators_here,
    add_hosts,
    check_one_host,
    come_together,
    launched,
    printed_lines,
    take_part,
)
from .own_loader import add_own_loader, loader_overrides, scan_first, tell_headspace
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.budget import Given
    from ..runner.checkpoint import Mixed
    from ..runner.plan import Plan
    from ..schema.workload import Workload

_CALIBRATION = "3s"

EXAMPLES = """examples:
  iobench run demo --data demo-data
  iobench run demo --data demo-data --budget 20s
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --accelerators 2 --repeat 5
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --find-max
  iobench run unet3d-h100 --data /mnt/fast/unet3d --set reader.concurrency=16 \
--fail-on 'samples_per_s<20'
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --confirm
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --checkpoint llama3-8b \
--checkpoint-scale 1/64 --checkpoint-to /mnt/ckpt
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --loader mypkg.data:make_loader
  iobench run resnet50-h100 --data /mnt/fast/resnet50 --loader mypkg.data:make_loader --headspace
  iobench run resnet50-h100 --data 'throttled+/mnt/fast/resnet50?bandwidth=2GB&latency=5ms'
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", help="name of a workload (iobench list workloads) or YAML file")
    parser.add_argument(
        "--data", required=True, metavar="DIR", help="directory or URL of the dataset"
    )
    add_measuring(parser)
    add_own_loader(parser)
    add_overrides(parser, "loader.workers=8")


def add_measuring(parser: argparse.ArgumentParser, *, repeat: int = 6) -> None:
    """Add the flags of a run, whatever its workload."""
    add_origin(parser)
    add_accelerators(parser)
    add_hosts(parser)
    parser.add_argument(
        "-n",
        "--repeat",
        type=whole_number,
        metavar="N",
        help=f"number of repetitions (default: {repeat}, or what --budget has time for; [min, max] "
        "of 6 covers the median with 97 %%)",
    )
    parser.add_argument(
        "--find-max",
        action="store_true",
        help="find the largest number of accelerators that this storage can feed",
    )
    parser.add_argument(
        "--confirm",
        action="store_true",
        help="try the advice of this run: run the first changes that settings can apply in turns "
        "with today's settings, and print the promised and the found gain",
    )
    parser.add_argument(
        "--rules",
        choices=("quick", "mlperf"),
        default="quick",
        help="rule set; a run that breaks a rule of mlperf is INVALID (default: quick)",
    )
    parser.add_argument(
        "--fail-on",
        action="append",
        default=[],
        metavar="CONDITION",
        help="exit with status 4 if this holds, e.g. 'accelerator_utilization_sustained<0.9'; "
        "repeatable",
    )
    add_details(parser)
    add_results(parser, "for run directories")
    add_tags(parser)
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=42,
        metavar="N",
        help="seed of the first repetition; each has its own (default: 42)",
    )
    add_calibration(parser, _CALIBRATION, "time to measure each ceiling; 0s skips all ceilings")
    # None tells that it was not given: with --budget it is then fitted.
    parser.set_defaults(calibration_s=None, usual_repeat=repeat)
    parser.add_argument(
        "--budget",
        type=duration,
        metavar="TIME",
        help="time for the whole run, from the start of iobench to the verdict: a pilot tells how "
        "many steps, repetitions and ablations fit. What is given by --repeat, --calibration, "
        "--ablations, --set max_steps and --set epochs stays as it is",
    )
    parser.add_argument(
        "--ablations",
        type=duration,
        metavar="TIME",
        dest="ablations_s",
        help="time for all ablations together, which measure what each stage costs by leaving it "
        "out, and as much again for --confirm (default: as long as the repetitions together, and "
        "at least three rounds)",
    )
    parser.add_argument(
        "--no-ablations",
        action="store_true",
        help="leave no stage out; the verdict is then inferred from the ceilings, not tested",
    )
    saves = parser.add_argument_group("checkpoints during the run")
    saves.add_argument(
        "--checkpoint",
        metavar="MODEL",
        help="model whose state is saved during the run (iobench list models)",
    )
    saves.add_argument(
        "--checkpoint-every",
        type=whole_number,
        default=100,
        metavar="STEPS",
        help="number of steps between two saves (default: 100)",
    )
    saves.add_argument(
        "--checkpoint-to", metavar="DIR", help="directory or URL for the checkpoints"
    )
    saves.add_argument(
        "--checkpoint-writer",
        default="stream",
        metavar="NAME",
        help="checkpoint writer (iobench list writers; default: stream)",
    )
    saves.add_argument(
        "--checkpoint-scale",
        default="1",
        metavar="SHARE",
        help="share of the model's bytes to save, e.g. 1/64 (default: 1)",
    )
    add_break_lock(parser)


def run(args: argparse.Namespace) -> int:
    from ..schema.workload import load_workload

    workload = load_workload(args.workload, [*loader_overrides(args), *args.overrides])
    scan_first(args)
    return measure(workload, args, bound_only=args.headspace)


def measure(workload: Workload, args: argparse.Namespace, *, bound_only: bool = False) -> int:
    """Run the workload as the flags of ``add_measuring`` say; return the exit code.

    ``bound_only``: only find how much faster any loader could make it.
    """
    given = _given(args)
    check_measuring(args)
    if printed_lines(args):
        return 0
    from ..errors import UsageError

    launch = launched(args)
    if launch is not None and bound_only:
        check_one_host("--headspace", "add --hosts here, or start it on one host")
    if args.confirm and args.calibration_s == 0:
        raise UsageError(
            "--confirm tries the advice, which comes from the ceilings, but --calibration 0s skips "
            "them",
            remedy="leave --calibration out, or --confirm",
        )
    from ..accelerate.bind import use_allocator
    from ..analyse.verdict.validity import parse
    from ..runner.plan import make_plan

    for expression in args.fail_on:
        parse(expression)  # report a wrong condition before anything runs
    use_allocator(workload.accelerator.allocator, args.command_line[1:])

    def planned(accelerators: int, here: range | None = None) -> tuple[Plan, Mixed | None]:
        mixed = _mixed(args, accelerators)
        plan = make_plan(
            workload,
            args.data,
            origin=args.origin,
            accelerators=accelerators,
            repetitions=args.repeat,
            seed=args.seed,
            here=here,
        )
        return plan, mixed

    control = None
    if launch is None:
        plan, mixed = planned(accelerators_here(args, 1))
    else:
        from ..runner.hosts.job import same_of

        meeting, (plan, mixed), control = come_together(
            launch,
            args,
            lambda met: planned(met.accelerators, met.here),
            lambda both: same_of(*both),
            accelerators=accelerators_here(args, launch.hosts),
        )
        if control is None:
            return take_part(meeting, plan, mixed, args)
    # Batch schedulers stop jobs with SIGTERM. As after Ctrl-C, what was measured is saved.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if bound_only:
        return tell_headspace(plan, args)
    # These import torch, which takes seconds: only once the plan is known to be right.
    from ..runner.budget import Budget
    from ..runner.confirm import Confirm
    from ..runner.experiment import Options
    from ..runner.experiment import run as run_plan
    from ..runner.hosts.job import run_as_controller
    from .telling import RunTold

    options = Options(
        results=args.results,
        rules=args.rules,
        command=tuple(args.command_line),
        calibration_s=args.calibration_s,
        find_max=args.find_max,
        confirm=Confirm(budget_s=args.ablations_s) if args.confirm else None,
        ablations=not args.no_ablations,
        ablations_s=args.ablations_s,
        budget=Budget(seconds=args.budget, began_s=args.began_s, given=given),
        began_s=args.began_s,
        mixed=mixed,
        break_lock=args.break_lock,
    )
    live = RunTold(plan, options, quiet=args.quiet)
    if not options.budget.limited:
        live.announce()
    try:
        if control is None:
            doc, directory = run_plan(plan, options, live)
        else:
            doc, directory = run_as_controller(control, plan, options, live)
    finally:
        live.close()
    from .outcome import finish

    return finish(doc, directory, kind=args.format, fail_on=args.fail_on, details=args.details)


def _given(args: argparse.Namespace) -> frozenset[Given]:
    """Set the flags that were not given to their defaults, and return what was given.

    That is what ``--budget`` leaves as it is.
    """
    steps = {text.partition("=")[0].strip() for text in args.overrides} & {"max_steps", "epochs"}
    asked: dict[Given, bool] = {
        "repetitions": args.repeat is not None,
        "calibration": args.calibration_s is not None,
        "ablations": args.ablations_s is not None,
        "steps": bool(steps) or getattr(args, "time", None) is not None,
    }
    args.repeat = args.usual_repeat if args.repeat is None else args.repeat
    if args.calibration_s is None:
        args.calibration_s = duration(_CALIBRATION)
    return frozenset(name for name, is_given in asked.items() if is_given)


def _mixed(args: argparse.Namespace, ranks: int) -> Mixed | None:
    """Return the checkpoints to save while loading, or None if none are requested."""
    from ..errors import UsageError

    if args.checkpoint is None:
        if args.checkpoint_to is not None:
            raise UsageError(
                "--checkpoint-to can only be used with --checkpoint",
                remedy="add --checkpoint MODEL, see: iobench list models",
            )
        return None
    if args.checkpoint_to is None:
        raise UsageError(
            "--checkpoint needs a target for the checkpoints", remedy="add --checkpoint-to DIR"
        )
    if args.checkpoint_every < 1:
        raise UsageError(f"--checkpoint-every must be at least 1, but is {args.checkpoint_every}")
    from ..runner.checkpoint import Mixed
    from ..runner.checkpoint_plan import make_study_plan
    from ..schema.base import build
    from ..schema.checkpoint import CheckpointSpec, Training

    asked = {
        "model": args.checkpoint,
        "writer": args.checkpoint_writer,
        "scale": args.checkpoint_scale,
        "ranks": ranks,
        "restores": 0,
    }
    spec = build(CheckpointSpec, asked, where="--checkpoint")
    return Mixed(
        plan=make_study_plan(spec, args.checkpoint_to, Training()), every=args.checkpoint_every
    )


VERB = Verb(
    help="each stage alone and all together: the bottleneck",
    description=(
        "Run a workload on a dataset: measure the ceiling of each stage alone, then all stages "
        "together, and print the verdict."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
