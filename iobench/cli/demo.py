"""``iobench demo``: generate a small dataset, run a workload on it, and print the verdict.

With ``--s3`` the data is on an S3 server that the demo starts and stops.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from .common import add_calibration, add_details, add_results, add_tags, duration, whole_number
from .terminal import note
from .verbs import DOCUMENTS, Verb

EXAMPLES = """examples:
  iobench demo
  iobench demo --s3
"""
_LOCAL = "demo-data"
_REPEAT, _CALIBRATION = 4, "2s"
_ABLATIONS = "12s"
"""Enough for three rounds, and the demo stays short."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--s3", action="store_true", help="run on an S3 server on loopback instead of local disk"
    )
    parser.add_argument(
        "--samples",
        type=whole_number,
        metavar="N",
        help="number of samples to generate (default: as in the dataset)",
    )
    parser.add_argument(
        "-n",
        "--repeat",
        type=whole_number,
        metavar="N",
        help=f"number of repetitions (default: {_REPEAT}, or what --budget has time for)",
    )
    add_calibration(parser, _CALIBRATION, "time to measure each ceiling")
    parser.set_defaults(calibration_s=None)
    parser.add_argument(
        "--budget",
        type=duration,
        metavar="TIME",
        help="time for the run, beside the generation of the data",
    )
    add_details(parser)
    add_results(parser, "for the run directory")
    add_tags(parser)


def run(args: argparse.Namespace) -> int:
    if not args.s3:
        return _run_commands(args, _LOCAL, generate=not (Path(_LOCAL) / "manifest.json").is_file())
    from ..runner.demo import BUCKET, s3_server

    with (
        tempfile.TemporaryDirectory(prefix="iobench-demo-") as folder,
        s3_server(Path(folder)) as environment,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # settings of another account must not reach this server
        os.environ.update(environment)
        return _run_commands(args, f"s3://{BUCKET}/data", generate=True)


def _run_commands(args: argparse.Namespace, place: str, *, generate: bool) -> int:
    """Run the commands, and print each one as a user would type it."""
    from .main import main

    common = [flag for flag, given in (("--quiet", args.quiet), ("--debug", args.debug)) if given]
    if generate:
        words = [
            "generate",
            "demo",
            "--to",
            place,
            *(["--samples", str(args.samples)] if args.samples is not None else []),
        ]
        note(f"$ iobench {shlex.join(words)}", quiet=args.quiet)
        with contextlib.redirect_stdout(sys.stdout if args.format == "text" else sys.stderr):
            done = main([*words, *common])
        if done:
            return done
    words = ["run", "demo", "--data", place, "--results", str(args.results)]
    words += ["--details"] if args.details else []
    repeat, calibration_s = args.repeat, args.calibration_s
    if args.budget is not None:
        words += ["--budget", f"{args.budget:g}s"]
    else:
        words += ["--ablations", _ABLATIONS]
        repeat = _REPEAT if repeat is None else repeat
        calibration_s = duration(_CALIBRATION) if calibration_s is None else calibration_s
    words += ["--repeat", str(repeat)] if repeat is not None else []
    words += ["--calibration", f"{calibration_s:g}s"] if calibration_s is not None else []
    words += [word for tag in args.tags for word in ("--tag", tag)]
    note(f"$ iobench {shlex.join(words)}", quiet=args.quiet)
    return main([*words, *common, "--format", args.format])


VERB = Verb(
    help="generate a small dataset, and run a workload on it",
    description=(
        "Generate the dataset 'demo' (270 MiB) and run the workload 'demo' on it. On local disk "
        f"the dataset stays in ./{_LOCAL}. With --s3, a real S3 server (rclone) is started on "
        "loopback over a temporary directory, and everything is removed at the end."
    ),
    examples=EXAMPLES,
    arguments=arguments,
    run=run,
    formats=DOCUMENTS,
)
