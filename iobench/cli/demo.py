"""``iobench demo``: generate a small dataset, run a workload on it, and print the verdict.

With ``--s3`` the data is on an S3 server that the demo starts and stops.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

from ..runner.demo import BUCKET, s3_server
from .main import main
from .terminal import note
from .verbs import DemoRequest

_LOCAL = "demo-data"
_REPEAT, _CALIBRATION_S = 4, 2.0
_ABLATIONS = "12s"
"""Enough for three rounds, and the demo stays short."""


def run(request: DemoRequest) -> int:
    if not request.s3:
        return _run_commands(
            request, _LOCAL, generate=not (Path(_LOCAL) / "manifest.json").is_file()
        )

    with (
        tempfile.TemporaryDirectory(prefix="iobench-demo-") as folder,
        s3_server(Path(folder)) as environment,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # settings of another account must not reach this server
        os.environ.update(environment)
        return _run_commands(request, f"s3://{BUCKET}/data", generate=True)


def _run_commands(request: DemoRequest, place: str, *, generate: bool) -> int:
    """Run the commands, and print each one as a user would type it."""
    common = [
        flag for flag, given in (("--quiet", request.quiet), ("--debug", request.debug)) if given
    ]
    if generate:
        words = [
            "generate",
            "demo",
            "--to",
            place,
            *(["--samples", str(request.samples)] if request.samples is not None else []),
        ]
        note(f"$ iobench {shlex.join(words)}", quiet=request.quiet)
        with contextlib.redirect_stdout(sys.stdout if request.format == "text" else sys.stderr):
            done = main([*words, *common])
        if done:
            return done
    words = ["run", "demo", "--data", place, "--results", str(request.results)]
    words += ["--details"] if request.details else []
    repeat, calibration_s = request.repeat, request.calibration_s
    if request.budget_s is not None:
        words += ["--budget", f"{request.budget_s:g}s"]
    else:
        words += ["--ablations", _ABLATIONS]
        repeat = _REPEAT if repeat is None else repeat
        calibration_s = _CALIBRATION_S if calibration_s is None else calibration_s
    words += ["--repeat", str(repeat)] if repeat is not None else []
    words += ["--calibration", f"{calibration_s:g}s"] if calibration_s is not None else []
    words += [word for tag in request.tags for word in ("--tag", tag)]
    note(f"$ iobench {shlex.join(words)}", quiet=request.quiet)
    return main([*words, *common, "--format", request.format])
