"""Run a verb again and again, and let its 1st, 2nd, 3rd ... file operation fail.

``python -m tests.faults.loop.driver --all --json --budget 300`` runs every verb with every kind of
fault and prints what came of it. ``collect`` does the same for a caller in Python, and ``start``
one verb. Each verb is run by a process of its own (``attempts.py``), with ``shim.c`` preloaded; on
S3 a proxy in this process resets its requests (``objects.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.loop import objects, scenarios
from tests.faults.loop.shim import Shim, build_shim

VERBS = tuple(one.verb for one in scenarios.ALL)
REMOTE_VERBS = tuple(one.verb for one in objects.ALL)
LIMIT_S = 7200.0
_ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Tally:
    """Attempts in which an operation failed, and those of them after which all was well."""

    injected: int = 0
    survived: int = 0
    operations: int = 0  # that this kind can hit in a run without faults; 0: not counted


@dataclass
class Report:
    """Of one verb. ``problems``: what should not be, one line each."""

    verb: str
    kinds: dict[str, Tally] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    foreign_bytes_changed: int = 0  # of files of others that were changed, touched or removed
    orphans: int = 0  # processes that were left

    @classmethod
    def parse(cls, text: str) -> Report:
        data = json.loads(text)
        kinds = {name: Tally(**tally) for name, tally in data.pop("kinds").items()}
        return cls(**data, kinds=kinds)


def start(
    verb: str,
    *,
    points: int = 0,
    kinds: Sequence[str] = (),
    budget_s: float | None = None,
    library: Path | None = None,
    limit_s: float = LIMIT_S,
) -> Report:
    """Loop over one verb.

    ``points``: so many places for each kind, spread over all of them (0: every one). ``budget_s``:
    no attempt begins later than that. ``library``: the compiled shim. Raises RuntimeError where the
    loop itself fails, FileNotFoundError where there is no gcc or no S3 server, TimeoutExpired.
    """
    with tempfile.TemporaryDirectory(prefix="loop-") as name:
        scratch = Path(name)
        Shim.create(scratch / "state")
        environment = os.environ | {
            "LD_PRELOAD": str(library or build_shim(scratch)),
            "IOBENCH_FAULT_STATE": str(scratch / "state"),
            "IOBENCH_FAULT_NAMES": str(scratch / "names"),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        }
        command = [sys.executable, "-m", "tests.faults.loop.attempts", verb]
        command += ["--points", str(points), "--scratch", name, "--kinds", ",".join(kinds)]
        command += ["--budget", str(LIMIT_S if budget_s is None else budget_s)]
        with _server(verb, scratch) as (options, more):
            out = _output([*command, *options], environment | more, limit_s)
    return Report.parse(out)


def _output(command: list[str], environment: dict[str, str], limit_s: float) -> str:
    """What the program prints. At the time limit it is ended with all that it has started."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        raise RuntimeError(f"the loop over {command[3]} failed: {err[-2000:]}")
    return out


@contextmanager
def _server(verb: str, scratch: Path) -> Iterator[tuple[list[str], dict[str, str]]]:
    """What an attempt on S3 needs: options of its program, and variables."""
    if verb not in REMOTE_VERBS:
        yield [], {}
        return
    with objects.proxied(scratch) as place:
        yield ["--url", place.url, "--folder", str(place.folder)], dict(place.environment)


def collect(budget_s: float) -> dict[str, Any]:
    """Every verb with every kind, as many places as fit into ``budget_s``, spread evenly.

    ``verbs``: {verb: {kind: {injected, survived, operations}}}; ``foreign_bytes_changed``: of files
    of others that were changed, touched or removed; ``orphans``: processes that were left;
    ``problems``: one line each. Takes about ``budget_s``: no attempt begins later. Raises as
    ``start`` does.
    """
    deadline = time.monotonic() + budget_s
    reports = []
    with tempfile.TemporaryDirectory(prefix="loop-") as name:
        library = build_shim(Path(name))
        verbs = (*VERBS, *REMOTE_VERBS)
        for number, verb in enumerate(verbs):
            share = max(0.0, deadline - time.monotonic()) / (len(verbs) - number)
            reports.append(start(verb, budget_s=share, library=library))
    return {
        "verbs": {
            report.verb: {name: asdict(tally) for name, tally in report.kinds.items()}
            for report in reports
        },
        "injected": sum(t.injected for report in reports for t in report.kinds.values()),
        "survived": sum(t.survived for report in reports for t in report.kinds.values()),
        "foreign_bytes_changed": sum(report.foreign_bytes_changed for report in reports),
        "orphans": sum(report.orphans for report in reports),
        "problems": [
            f"{report.verb}: {problem}" for report in reports for problem in report.problems
        ],
    }


def main() -> int:
    """Exit 1 where anything did not survive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("verb", nargs="?", choices=(*VERBS, *REMOTE_VERBS))
    parser.add_argument("--all", action="store_true", help="every verb")
    parser.add_argument("--points", type=int, default=0, help="places of each kind; 0: every one")
    parser.add_argument("--kinds", default="", help="only these, with commas")
    parser.add_argument("--budget", type=float, help="seconds in total")
    parser.add_argument("--json", action="store_true", help="one JSON document, on one line")
    args = parser.parse_args()
    if args.all == (args.verb is not None):
        parser.error("name a verb, or give --all")
    if args.all:
        found = collect(args.budget or LIMIT_S)
    else:
        kinds = [name for name in args.kinds.split(",") if name]
        found = asdict(start(args.verb, points=args.points, kinds=kinds, budget_s=args.budget))
    print(json.dumps(found, indent=None if args.json else 1))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
