"""``iobench check``: the first answer about a storage, within a given time."""

from __future__ import annotations

import argparse
import signal
import time
from typing import TYPE_CHECKING

from .common import add_accelerators, add_details, add_overrides, add_results, add_tags, duration
from .live import Live
from .verbs import DOCUMENTS, Verb

if TYPE_CHECKING:
    from ..runner.checking.data import CheckPlace

EXAMPLES = """examples:
  iobench check /mnt/fast
  iobench check /mnt/fast --workload cosmoflow-h100 --accelerators 4 --budget 15min
  iobench check s3://bucket/prefix --budget 10min --keep-data
  iobench check /mnt/fast/resnet50                      # a dataset: it is read, and stays
"""
_BUDGET = "5min"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url",
        metavar="DIR",
        help="directory or URL: either of a dataset, or one below which data may be generated",
    )
    parser.add_argument(
        "--workload",
        metavar="WORKLOAD",
        help="name of a workload (iobench list workloads) or YAML file. Default: one that trains "
        "on the dataset that lies there, otherwise resnet50-h100, which reads many small images "
        "and is the best known",
    )
    add_accelerators(parser)
    parser.add_argument(
        "--budget",
        type=duration,
        dest="budget_s",
        default=duration(_BUDGET),
        metavar="TIME",
        help="time for everything: generating data, measuring, and removing the data "
        f"(default: {_BUDGET})",
    )
    parser.add_argument(
        "--size",
        metavar="SIZE",
        help="total bytes of the data to generate, e.g. 20GiB (default: what the time allows, and "
        "at most 20 %% of the free space)",
    )
    parser.add_argument(
        "--keep-data",
        action="store_true",
        help="keep the generated data, and print where it is",
    )
    add_details(parser)
    add_results(parser, "for the run directory")
    add_tags(parser)
    add_overrides(parser, "loader.workers=8")


def run(args: argparse.Namespace) -> int:
    from shlex import quote

    from ..errors import UsageError
    from ..runner.checking.data import (
        GENERATE_SHARE,
        MIN_BUDGET_S,
        find_place,
        left_behind,
        provided,
    )
    from ..runner.plan import check_asked
    from ..units import format_bytes, parse_size
    from .hosts import check_one_host
    from .terminal import say

    check_one_host("check")
    began = time.monotonic()
    if args.budget_s < MIN_BUDGET_S:
        raise UsageError(
            f"--budget {args.budget_s:g}s is too short", remedy=f"give at least {MIN_BUDGET_S:g}s"
        )
    size_bytes = None if args.size is None else parse_size(args.size)
    place = find_place(args.url, args.workload, args.overrides)
    check_asked(place.workload, accelerators=args.accelerators, repetitions=1)
    # Batch schedulers stop jobs with SIGTERM. As after Ctrl-C, the data is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    told = Live(quiet=args.quiet, lines=True)
    generating_s = GENERATE_SHARE * args.budget_s
    told.note(_announcement(args, place, generating_s))
    for folder, nbytes in left_behind(place):
        what = f"a check that was killed has left {format_bytes(nbytes)}"
        told.note(f"{what}: iobench clean {quote(folder)}")
    try:
        with provided(
            place,
            accelerators=args.accelerators,
            seconds=generating_s,
            keep=args.keep_data,
            observer=told,
            size_bytes=size_bytes,
        ) as data:
            ends_s = began + args.budget_s - data.removal_s
            code = _measure(args, place, data.url, ends_s, told)
            if args.keep_data and not place.found and args.format == "text":
                say(f"data:    {data.url}")
    finally:
        told.close()
    return code


def _announcement(args: argparse.Namespace, place: CheckPlace, generating_s: float) -> str:
    from ..runner.checking.data import SPACE_SHARE
    from ..units import counted, format_duration

    what = f"{place.workload.name} with {counted(args.accelerators, 'accelerator')}"
    budget = format_duration(args.budget_s)
    if place.found:
        return f"check of the dataset at {place.url} by {what}: {budget} to measure"
    rest = format_duration(args.budget_s - generating_s)
    end = "" if args.keep_data else " and to remove the data"
    size = f"at most {SPACE_SHARE:.0%} of the free space" if args.size is None else args.size
    return (
        f"check of {place.url} by {what} within {budget}: at most {format_duration(generating_s)} "
        f"to generate data ({size}), the other {rest} to measure{end}"
    )


def _measure(
    args: argparse.Namespace, place: CheckPlace, url: str, ends_s: float, told: Live
) -> int:
    """Run the workload on the dataset at ``url`` until about ``ends_s``, and print the report."""
    from ..runner.budget import Budget
    from ..runner.experiment import Options
    from ..runner.experiment import run as run_plan
    from ..runner.plan import make_plan
    from .outcome import finish
    from .telling import RunTold

    plan = make_plan(place.workload, url, accelerators=args.accelerators, repetitions=1, seed=_SEED)
    told.note("a pilot of a few seconds tells how many steps fit into the time")
    told.close()
    options = Options(
        results=args.results,
        command=tuple(args.command_line),
        budget=Budget(seconds=args.budget_s, began_s=ends_s - args.budget_s, strict=False),
    )
    live = RunTold(plan, options, quiet=args.quiet)
    try:
        doc, directory = run_plan(plan, options, live)
    finally:
        live.close()
    return finish(doc, directory, kind=args.format, fail_on=(), details=args.details)


_SEED = 42

VERB = Verb(
    help="a first answer about a storage, with data of its own",
    description=(
        "Generate a dataset below DIR that fits the time and the space, measure the storage and "
        "run the workload on it, print the verdict, and remove the data. A dataset that lies in "
        "DIR already is read as it is, and never removed. Nothing else in DIR is touched. The "
        "size is found by generating a little first. At most 20 % of the free space is used, "
        "unless --size says how much. "
        "Ctrl-C removes what was generated, and keeps what was measured."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
