"""``python -m tools.branches``: the branch coverage that was recorded, by package of iobench.

``make coverage`` records it first. A branch is a place where the code can go on in one of two ways;
the figure is the share of ways that a test took. Statements are shown beside it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import coverage


@dataclass
class Tally:
    """Of one package or file."""

    branches: int = 0
    taken: int = 0
    statements: int = 0
    run: int = 0

    def add(self, summary: dict[str, int]) -> None:
        self.branches += summary["num_branches"]
        self.taken += summary["covered_branches"]
        self.statements += summary["num_statements"]
        self.run += summary["covered_lines"]

    def line(self, name: str) -> str:
        return (
            f"{name:<32}{share(self.taken, self.branches):>9}{self.branches:>10}"
            f"{share(self.run, self.statements):>12}{self.statements:>12}"
        )


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def package_of(path: Path) -> str:
    """``iobench/storage/s3/url.py`` belongs to ``storage``."""
    return path.parts[1]


def table(files: dict[str, dict[str, dict[str, int]]]) -> list[str]:
    """Lines of text, of the ``files`` of coverage's JSON report."""
    packages: defaultdict[str, Tally] = defaultdict(Tally)
    whole = Tally()
    for name, found in files.items():
        packages[package_of(Path(name))].add(found["summary"])
        whole.add(found["summary"])
    return [
        f"{'package':<32}{'branches':>9}{'of':>10}{'statements':>12}{'of':>12}",
        *(tally.line(name) for name, tally in sorted(packages.items())),
        whole.line("all"),
    ]


def main() -> int:
    measured = coverage.Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        measured.json_report(outfile=str(report))
        files = json.loads(report.read_text())["files"]
    print("\n".join(table(files)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
