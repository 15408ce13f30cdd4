"""How long do the tests of each file take? The tables of docs/testing.md.

Each FILE.xml is what ``pytest --junitxml=FILE.xml`` wrote, for example of one tier, and becomes a
table with the name of the file as its title.

    python -m tools.durations fast.xml slow.xml            # print the tables
    python -m tools.durations fast.xml slow.xml --write    # write them into docs/testing.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from iobench.base.units import counted

PAGE = Path(__file__).resolve().parent.parent / "docs/testing.md"
BEGIN, END = "<!-- durations -->", "<!-- end of durations -->"

SHORT_S = 3.0
"""Files whose tests take less together are summed up in one row."""


@dataclass
class Total:
    """The tests of one file. ``seconds``: of all of them, with their fixtures."""

    tests: int = 0
    seconds: float = 0.0

    def add(self, tests: int, seconds: float) -> None:
        self.tests, self.seconds = self.tests + tests, self.seconds + seconds


def by_file(report: Path) -> dict[str, Total]:
    """Return the tests of each file, by its path below the project.

    Raises OSError, and ElementTree.ParseError for a file that is no XML.
    """
    found: dict[str, Total] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = str(case.get("classname")).split(".")
        # The class of a test stands after its file; no folder has a capital letter.
        file = "/".join(part for part in parts if part.islower()) + ".py"
        found.setdefault(file, Total()).add(1, float(case.get("time") or 0.0))
    return found


def table(title: str, files: dict[str, Total]) -> list[str]:
    """Return a table in Markdown, the file that takes longest first."""
    rows = sorted(files.items(), key=lambda each: (-each[1].seconds, each[0]))
    long = [(name, total) for name, total in rows if total.seconds >= SHORT_S]
    short = [total for _, total in rows if total.seconds < SHORT_S]
    lines = [f"### {title}", "", "| file | tests | seconds |", "|---|---:|---:|"]
    lines += [f"| `{name}` | {each.tests:,} | {each.seconds:.1f} |" for name, each in long]
    lines.append(_row(f"{counted(len(short), 'file')} of less than {SHORT_S:g} s", short))
    lines.append(_row("all", files.values()))
    return [*lines, ""]


def _row(name: str, totals: Iterable[Total]) -> str:
    every = Total()
    for each in totals:
        every.add(each.tests, each.seconds)
    return f"| {name} | {every.tests:,} | {every.seconds:.1f} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Print or write the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.durations", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="FILE.xml")
    parser.add_argument("--write", action="store_true", help="into docs/testing.md")
    args = parser.parse_args(argv)
    lines = [line for report in args.reports for line in table(report.stem, by_file(report))]
    if not args.write:
        print("\n".join(lines))
        return 0
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text("\n".join([f"{before}{BEGIN}", "", *lines, f"{END}{after}"]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
