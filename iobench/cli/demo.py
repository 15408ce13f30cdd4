"""``iobench demo``: generate a small dataset, run a workload on it, and print the verdict.

With ``--s3`` the data is on an S3 server that the demo starts and stops.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from ..runner.demo import BUCKET, s3_server
from ..storage.scratch import scratch
from .main import main
from .terminal import note
from .verbs import DemoRequest

_LOCAL = "demo-data"
USUAL: dict[str, float] = {"ablations": 12.0, "repeat": 4, "calibration": 2.0}
"""Enough for three rounds of ablations, and the demo stays short."""


def run(request: DemoRequest) -> int:
    if not request.s3:
        return _run_commands(
            request, _LOCAL, generate=not (Path(_LOCAL) / "manifest.json").is_file()
        )

    with (
        scratch("demo") as folder,
        s3_server(folder) as environment,
    ):
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]  # settings of another account must not reach this server
        os.environ.update(environment)
        return _run_commands(request, f"s3://{BUCKET}/data", generate=True)


def _run_commands(request: DemoRequest, place: str, *, generate: bool) -> int:
    """Run the commands, and print each one as a user would type it."""
    if generate:
        with contextlib.redirect_stdout(sys.stdout if request.format == "text" else sys.stderr):
            done = _run(request, ["generate", "demo", "--to", place], {"samples": request.samples})
        if done:
            return done
    words = ["run", "demo", "--data", place, "--results", str(request.results)]
    words += ["--details"] * request.details
    words += [word for tag in request.tags for word in ("--tag", tag)]
    asked = {
        "budget": request.budget_s,
        "repeat": request.repeat,
        "calibration": request.calibration_s,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    usual = USUAL if request.budget_s is None else {}
    return _run(request, words, usual | given, "--format", request.format)


def _run(
    request: DemoRequest, words: list[str], flags: Mapping[str, float | None], *more: str
) -> int:
    """Print and run a command with the flags that have a value, and with ``more`` unprinted."""
    for name, value in flags.items():
        if value is not None:
            words += [f"--{name}", f"{value:g}s" if isinstance(value, float) else str(value)]
    note(f"$ iobench {shlex.join(words)}", quiet=request.quiet)
    return main([*words, *["--quiet"] * request.quiet, *["--debug"] * request.debug, *more])
