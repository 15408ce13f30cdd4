"""``iobench advise``: recommend settings from a folder of runs, or try the advice of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from .common import add_break_lock, add_origin, add_overrides, add_results, add_tags
from .verbs import DOCUMENTS, Verb

EXAMPLES = """examples:
  iobench advise results/<sweep>
  iobench advise results/<sweep> --default loader.workers=2 --dataset-size 20TiB
  iobench advise results/<sweep> --workload resnet50-h100 --first-batch 1s --shuffle-window 256MiB \
--json
  iobench advise results/<run> --confirm
  iobench advise results/<run> --confirm --data s3://bucket/resnet50
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="directory of a sweep, with one directory below it for each run; with --confirm, of "
        "one run",
    )
    parser.add_argument("--workload", metavar="NAME", help="use only the runs of this workload")
    parser.add_argument(
        "--default",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="setting in use today, against which gains are computed (default: as in the sweep, "
        "else as in the workload); repeatable",
    )
    parser.add_argument(
        "--dataset-size",
        metavar="SIZE",
        help="stored bytes of the real dataset if the sweep used a smaller one, e.g. 20TiB",
    )
    parser.add_argument(
        "--first-batch",
        metavar="TIME",
        default="3s",
        help="longest acceptable wait for the first shard (default: 3s)",
    )
    parser.add_argument(
        "--shuffle-window",
        metavar="SIZE",
        help="bytes among which each worker shuffles, e.g. 256MiB",
    )
    tried = parser.add_argument_group("advice of one run")
    tried.add_argument(
        "--confirm",
        action="store_true",
        help="try the advice of a run: repeat it with the first changes that settings can apply, "
        "in turns with its own settings, in a new run directory; exit with status 4 unless every "
        "promise was kept",
    )
    tried.add_argument(
        "--data", metavar="DIR", help="directory or URL of the run's dataset, if it has moved"
    )
    add_origin(parser)
    tried.add_argument(
        "--budget",
        metavar="TIME",
        help="time for the turns (default: as long as the run's repetitions took, and at least "
        "three turns)",
    )
    add_results(tried, "for the new run directory")
    add_tags(tried)
    add_break_lock(parser)
    add_overrides(
        parser,
        "storage.endpoint=http://127.0.0.1:9000, for data at a URL; or "
        "accelerator.model=MODULE:CLASS, where the run's record names code",
    )


def run(args: argparse.Namespace) -> int:
    if args.confirm:
        return _confirm(args)
    return _recommend(args)


def _recommend(args: argparse.Namespace) -> int:
    """Print what a folder of runs recommends."""
    from ..analyse.tuning.recommend import TuningTarget, recommend
    from ..analyse.tuning.sweepfolder import read_sweep
    from ..errors import UsageError
    from ..report.advise import sections
    from ..units import parse_duration, parse_size
    from .printing import print_report
    from .terminal import say

    for flag, given in (
        ("--data", args.data),
        ("--tag", args.tags),
        ("--origin", args.origin),
        ("--budget", args.budget),
        ("--set", args.overrides),
    ):
        if given:
            raise UsageError(
                f"{flag} can only be used with --confirm", remedy="add --confirm, or leave it out"
            )
    target = TuningTarget(
        dataset_bytes=None if args.dataset_size is None else float(parse_size(args.dataset_size)),
        first_batch_s=parse_duration(args.first_batch),
        shuffle_window_bytes=None
        if args.shuffle_window is None
        else float(parse_size(args.shuffle_window)),
    )
    for flag, value in (
        ("--dataset-size", target.dataset_bytes),
        ("--first-batch", target.first_batch_s),
        ("--shuffle-window", target.shuffle_window_bytes),
    ):
        if value is not None and value <= 0:
            raise UsageError(f"{flag} must be more than 0, but is {value:g}")
    sweep = read_sweep(
        Path(args.directory), workload=args.workload, default=_settings(args.default)
    )
    found = recommend(sweep, target)
    print_report(args.format, found, sections(found))
    if (
        args.format == "text"
        and sweep.default is not None
        and found.changes
        and (Path(args.directory) / "sweep.json").is_file()
    ):
        say()
        say(f"confirm: iobench sweep --confirm {args.directory}")
    return 0


def _settings(texts: list[str]) -> dict[str, str]:
    from ..errors import UsageError

    pairs = [text.partition("=") for text in texts]
    for text, (key, equals, value) in zip(texts, pairs, strict=True):
        if not (key and equals and value):
            raise UsageError(
                f"--default '{text}' is not of the form KEY=VALUE",
                remedy="write it like --default loader.workers=2",
            )
    return {key.strip(): value.strip() for key, _, value in pairs}


def _confirm(args: argparse.Namespace) -> int:
    """Try the advice of one run, and print what was promised and found."""
    import signal

    from ..analyse.verdict.rebuild import conclude
    from ..errors import UsageError
    from ..report.tried import by_hand, confirmed_sections
    from ..runner.confirm import NOTHING, Confirm, applicable
    from ..runner.earlier import plan_again
    from ..runner.experiment import Options
    from ..runner.experiment import run as run_plan
    from ..schema.base import apply_overrides
    from ..schema.code import code_in, code_of
    from ..schema.record import load_training
    from ..schema.sweep import SWEEP_FILE
    from .common import parse_time
    from .hosts import check_one_host
    from .live import Live
    from .printing import print_report
    from .terminal import say, warn

    check_one_host("advise --confirm")
    directory = Path(args.directory)
    if (directory / SWEEP_FILE).is_file():
        raise UsageError(
            f"{directory} is a sweep, not one run",
            remedy=f"confirm its advice with: iobench sweep --confirm {directory}",
        )
    budget_s = parse_time("--budget", args.budget)
    earlier = conclude(load_training(directory))
    advice = earlier.job.verdict.advice if earlier.job.verdict is not None else []
    if not applicable(advice):
        remedy = "; ".join(f"{item.text}: {item.basis}" for item in by_hand(earlier))
        raise UsageError(
            f"there is nothing to confirm: {NOTHING}",
            remedy=remedy or f"its advice is in: iobench report {directory}",
        )
    given, code = apply_overrides({}, args.overrides), code_in(args.overrides)
    named = code_of(earlier.job.workload.model_dump(mode="json"))
    keys = [text.partition("=")[0].strip() for text in args.overrides]
    if other := [
        key
        for key in keys
        if key.partition(".")[0] != "storage" and not (key in code and named.get(key) == code[key])
    ]:
        raise UsageError(
            f"'{other[0]}' can't be changed when advice is confirmed: only keys of 'storage', and "
            "what the run names as code, can be given again",
            remedy="leave it out, or run the workload with that setting and --confirm",
        )
    storage = given.get("storage")
    plan = plan_again(
        earlier,
        data=args.data,
        origin=args.origin,
        storage=storage if isinstance(storage, dict) else None,
        code=code,
        repetitions=1,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    live = Live(quiet=args.quiet or args.json, lines=True)
    repeated_s = earlier.timings.get("measure", 0.0)
    options = Options(
        results=args.results,
        command=tuple(args.command_line),
        calibration_s=0.0,
        ablations=False,
        prove=False,
        confirm=Confirm(
            advice=tuple(advice),
            by=earlier.run_id,
            usual_s=repeated_s,
            budget_s=budget_s,
        ),
        break_lock=args.break_lock,
    )
    try:
        doc, new = run_plan(plan, options, live)
    finally:
        live.close()
    then, now = earlier.host.node, doc.host.node
    if then != now:
        warn(f"the gains were promised on host {then}, and tried on host {now}")
    print_report(args.format, doc, confirmed_sections(doc))
    if args.format == "text":
        say()
        say(f"results: {new}")
    return 0 if all(each.answer == "kept" for each in doc.job.confirmations) else 4


VERB = Verb(
    help="recommended settings, reasons and predicted gains",
    description=(
        "Recommend settings from runs of one workload with different settings: the smallest "
        "settings within 5 % of the best, whether a codec is worth its cost, how large a shard "
        "should be, and the Pareto front of speed, CPU time and bytes. Each comes with its reason."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
