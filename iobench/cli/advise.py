"""``iobench advise``: recommend settings from a folder of runs."""

from __future__ import annotations

import argparse

from .verbs import DOCUMENTS, Verb

EXAMPLES = """examples:
  iobench advise results/<sweep>
  iobench advise results/<sweep> --default loader.workers=2 --dataset-size 20TiB
  iobench advise results/<sweep> --workload resnet50-h100 --first-batch 1s --shuffle-window 256MiB \
--json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="directory of a sweep, with one directory below it for each run",
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


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from ..analyse.tuning.recommend import Target, recommend
    from ..analyse.tuning.sweepfolder import read_sweep
    from ..errors import UsageError
    from ..report.advise import sections
    from ..units import parse_duration, parse_size
    from .printing import print_report
    from .terminal import say

    target = Target(
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


VERB = Verb(
    help="recommended layout and settings, with reasons and predicted gains",
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
