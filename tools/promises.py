"""``make promises``: measure the figures of docs/promises.md and docs/statistics.md.

They are printed and written there. Four parts, each with its share of the time: the simulated
comparisons, the tests that the page names, the loop of injected faults, and fuzzing. Exit code 1
where a promise did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from iobench import __version__
from iobench.base.units import format_duration
from tests.faults.loop.driver import collect

from .claim_tables import figures as claim_figures

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/promises.md"
STATISTICS = ROOT / "docs/statistics.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

FAULTS_S = 270.0
FUZZ_MINUTES = 3.0
RACES = 3
"""Shares of the quarter of an hour that all of it may take on two cores."""

_TEST = re.compile(r"`(tests/[\w/]+\.py(?:::[^`]+)?)`")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.promises", description=__doc__)
    parser.add_argument("--faults-s", type=float, default=FAULTS_S, help="seconds of fault loops")
    parser.add_argument("--fuzz-minutes", type=float, default=FUZZ_MINUTES)
    parser.add_argument("--races", type=int, default=RACES, help="how often each race is run")
    parser.add_argument("--statistics", action="store_true", help="only docs/statistics.md")
    args = parser.parse_args()
    start = time.monotonic()
    lines, held = claim_figures()
    write(STATISTICS, lines, start)
    if args.statistics:
        return 0 if held else 1
    start = time.monotonic()
    lines = []
    for part in (tested(args.races), faults(args.faults_s), fuzzed(args.fuzz_minutes)):
        lines += part[0]
        held = held and part[1]
    write(PAGE, lines, start)
    return 0 if held else 1


def write(page: Path, lines: list[str], start: float) -> None:
    """Print the figures, and put them between the marks of the page."""
    took = format_duration(time.monotonic() - start)
    head = f"Version {__version__}, {datetime.now(UTC):%Y-%m-%d}, measured in {took}.\n"
    text = "\n".join([head, *lines])
    print(text)
    found = page.read_text(encoding="utf-8")
    before, after = found.partition(BEGIN)[0], found.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")


def tested(races: int) -> tuple[list[str], bool]:
    """The tests that the page names, and the figures that they recorded (record_property)."""
    named = sorted(set(_TEST.findall(PAGE.read_text(encoding="utf-8"))))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"),
                *("-p", "no:cacheprovider", f"--junitxml={report}", *named),
            ],
            cwd=ROOT,
            env={**os.environ, "IOBENCH_LOOPS": str(races)},
            stdout=sys.stderr,
            check=False,
        )
        tree = ElementTree.parse(report).getroot()
    found = Counter[str]()
    for case in tree.iter("testcase"):
        problem = next(
            (tag for tag in ("failure", "error", "skipped") if case.find(tag) is not None), ""
        )
        found[problem or "passed"] += 1
        if problem:
            print(f"{problem}: {case.get('classname')}::{case.get('name')}", file=sys.stderr)
    figures = Counter[str]()
    for each in tree.iter("property"):
        figures[str(each.get("name"))] += int(str(each.get("value")))
    lines = [
        *("| tests that this page names | |", "|---|---|"),
        f"| passed | {found['passed']} |",
        f"| failed | {found['failure'] + found['error']} |",
        f"| skipped | {found['skipped']} |",
        *(f"| {name} | {value} |" for name, value in sorted(figures.items())),
        "",
    ]
    wrong = [name for name in figures if name.endswith("found") and figures[name]]
    return lines, not (found["failure"] or found["error"] or wrong)


def faults(budget_s: float) -> tuple[list[str], bool]:
    """The Nth operation of each verb that writes fails, for N spread over all of them."""
    told = collect(budget_s)
    kinds = sorted({kind for by_kind in told["verbs"].values() for kind in by_kind})
    lines = [
        f"| faults injected and survived, by verb | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
    ]
    for verb, by_kind in told["verbs"].items():
        cells = [
            f"{by_kind[kind]['survived']} of {by_kind[kind]['injected']}" if kind in by_kind else ""
            for kind in kinds
        ]
        lines.append(f"| {verb} | {' | '.join(cells)} |")
    lines += [
        "",
        *("| in all | |", "|---|---|"),
        f"| faults injected | {told['injected']} |",
        f"| survived | {told['survived']} |",
        f"| files of others changed | {told['foreign_bytes_changed']} |",
        f"| processes left | {told['orphans']} |",
        "",
    ]
    for problem in told["problems"]:
        print(problem, file=sys.stderr)
    whole = told["injected"] == told["survived"] and not told["problems"]
    return lines, whole and not (told["foreign_bytes_changed"] or told["orphans"])


def fuzzed(minutes: float) -> tuple[list[str], bool]:
    """Executions and crashes of each parser."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--minutes", str(minutes), "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if not ended.stdout:
        return ["Fuzzing: not measured (atheris is not installed).", ""], True
    results = json.loads(ended.stdout)
    lines = ["| fuzzed parser | executions | crashes |", "|---|---|---|"]
    for result in results:
        lines.append(
            f"| {result['target']} | {result['executions']:,} | {len(result['crashes'])} |"
        )
    total, crashes = (
        sum(result["executions"] for result in results),
        sum(len(result["crashes"]) for result in results),
    )
    lines.append(f"| all | {total:,} | {crashes} |")
    return lines, crashes == 0 and ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
