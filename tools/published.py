"""``make published``: measure published comparisons again, and write docs/published.md.

``python -m tools.published [--only NAME]``. Each file there is a sweep (``iobench sweep``) and the
ratios that a public thread has published of it. A ratio is compared with its tolerance, or only by
its direction, and the answer is an interval's: it may be inconclusive. What was published is never
compared as an absolute figure, since disks and machines are others. With ``--only`` the page is not
written.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field, JsonValue, model_validator

from iobench import __version__
from iobench.ask.compare.claims import Sides, answer_of, claim
from iobench.base.units import counted, format_duration
from iobench.record.sweep import Sweep, load_sweep, setting_text
from iobench.record.verdict import Estimate
from iobench.settings.base import Strict, build
from iobench.settings.yamlfile import read_yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "sweeps" / "published"
PAGE = ROOT / "docs" / "published.md"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

SAME = 0.05
"""What is shown to be closer to 1 than this has no direction."""

HEADS = ("thread", "compared", "published", "measured", "held against", "verdict")


class Ratio(Strict):
    """Rate of the candidate over that of the baseline.

    ``tolerance``: the largest factor to the published ratio, less 1; None: only the direction is
    compared. ``fitted``: the simulated storage was chosen to give this ratio, so nothing is told.
    """

    compared: str
    candidate: dict[str, JsonValue]
    baseline: dict[str, JsonValue]
    published: float = Field(gt=0)
    tolerance: float | None = Field(default=None, gt=0, le=0.5)
    fitted: bool = False

    @model_validator(mode="after")
    def _has_a_direction(self) -> Ratio:
        if self.tolerance is None and not self.fitted and 0.9 <= self.published <= 1.1:
            raise ValueError("a ratio near 1 has no direction: it needs a 'tolerance'")
        return self

    def verdict(self, found: Estimate | None) -> str:
        """What the interval of the measured ratio tells of the published one."""
        if self.fitted:
            return "given"
        if found is None or found.low is None or found.high is None:
            return "inconclusive"
        low, high = found.low, found.high
        if self.tolerance is not None:
            low, high = low / self.published, high / self.published
            least, most = 1 / (1 + self.tolerance), 1 + self.tolerance
            if least <= low and high <= most:
                return "reproduced"
            return "not reproduced" if high < least or low > most else "inconclusive"
        if self.published < 1:
            low, high = 1 / high, 1 / low
        if low > 1:
            return "direction reproduced"
        against = high < 1 or answer_of(low, high, SAME) == "equal"
        return "not reproduced" if against else "inconclusive"

    @property
    def held_against(self) -> str:
        if self.fitted:
            return "nothing: the storage was chosen so"
        return "its direction" if self.tolerance is None else f"{100 * self.tolerance:g} %"


class Published(Strict):
    """One file: what was published where, what is reproduced here, and the sweep that does it.

    ``storage``: options of the simulated storage; empty: the local disk.
    """

    name: str
    title: str
    source: str
    published: str
    here: str
    workload: str
    storage: str = ""
    samples: int = Field(ge=1)
    set: dict[str, JsonValue]
    sweep: dict[str, list[JsonValue]]
    repeat: int = Field(default=5, ge=4)
    ratios: list[Ratio] = Field(min_length=1)

    @property
    def overrides(self) -> list[str]:
        return [f"{key}={setting_text(value)}" for key, value in self.set.items()]

    def words(self, folder: Path | str) -> list[str]:
        """The arguments of the command, with its data below a folder."""
        to = f"throttled+{folder}?{self.storage}" if self.storage else str(folder)
        axes = [
            f"{key}={','.join(map(setting_text, values))}" for key, values in self.sweep.items()
        ]
        return [
            *("sweep", self.workload, "--to", to, "--samples", str(self.samples)),
            *(word for text in self.overrides for word in ("--set", text)),
            *(word for text in axes for word in ("--sweep", text)),
            *("--repeat", str(self.repeat), "--calibration", "0"),
        ]


def files() -> list[Published]:
    """All files, by name. Raises SpecError."""
    return [
        build(Published, read_yaml(path), where=str(path)) for path in sorted(FOLDER.glob("*.yaml"))
    ]


def figures(sweep: Sweep, settings: dict[str, JsonValue]) -> tuple[list[float], str]:
    """The rates of a point, and why there are none."""
    for point in sweep.points:
        if any(each == settings for each in (point.settings, *point.also)):
            return point.figures, point.failed or point.dropped
    return [], "the sweep has no such point"


def row(spec: Published, ratio: Ratio, sweep: Sweep) -> tuple[str, ...]:
    """The cells of one comparison."""
    (candidate, why), (baseline, other) = (
        figures(sweep, each) for each in (ratio.candidate, ratio.baseline)
    )
    found = claim(sweep.metric, Sides(candidate=candidate, baseline=baseline), threshold=SAME).ratio
    measured = f"not measured: {why or other or 'too few trials'}"
    if found is not None:
        ends = "" if found.low is None else f" [{found.low:.2f}, {found.high:.2f}]"
        measured = f"{found.value:.2f} x{ends}"
    return (
        f"[{spec.name}]({spec.source})",
        ratio.compared,
        f"{ratio.published:.2f} x",
        measured,
        ratio.held_against,
        ratio.verdict(found),
    )


def measured(spec: Published, folder: Path) -> Sweep | None:
    """Run the sweep; None, with a line on stderr, if it fails."""
    results = folder / "results"
    command = [sys.executable, "-m", "iobench", *spec.words(folder / "data")]
    done = subprocess.run(
        [*command, "--results", str(results), "--quiet"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    found = sorted(results.glob("*/sweep.json"))
    if done.returncode or not found:
        print(f"{spec.name}: {done.stderr.strip()[-300:]}", file=sys.stderr)
        return None
    return load_sweep(found[-1].parent)


def line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page(rows: Sequence[Sequence[str]], seconds: float, load: float) -> list[str]:
    """What stands between the marks of the page. ``load``: of the machine before."""
    table = [line(HEADS), "|---" * len(HEADS) + "|", *map(line, rows)]
    cores = len(os.sched_getaffinity(0))
    told = (
        f"Version {__version__}, {time.strftime('%Y-%m-%d')}, measured by `make published` in "
        f"{format_duration(seconds)} on {counted(cores, 'core')}, with a load of {load:.1f} before."
    )
    return [*textwrap.wrap(told, 100), "", *table, "", *described()]


def described() -> list[str]:
    """What was published, and what is reproduced here."""
    found: list[str] = []
    for spec in files():
        found += [f"### {spec.title}", ""]
        for text in (f"[{spec.name}]({spec.source}): {spec.published}", f"Here: {spec.here}"):
            found += [*textwrap.wrap(text, 100, break_on_hyphens=False), ""]
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; exit with 1 if something was not measured."""
    known = files()
    parser = argparse.ArgumentParser(description="Published comparisons, measured again.")
    parser.add_argument("--only", action="append", choices=[each.name for each in known])
    parser.add_argument("--folder", type=Path, help="where the data lies (default: a new one)")
    args = parser.parse_args(words)
    rows, began, complete = [], time.monotonic(), True
    load = os.getloadavg()[1]
    print(f"{line(HEADS)}\n{'|---' * len(HEADS)}|", flush=True)
    for spec in known:
        if args.only and spec.name not in args.only:
            continue
        with tempfile.TemporaryDirectory(prefix="iobench-published-", dir=args.folder) as folder:
            sweep = measured(spec, Path(folder))
        complete = complete and sweep is not None
        for ratio in spec.ratios if sweep is not None else ():
            rows.append(row(spec, ratio, sweep))
            print(line(rows[-1]), flush=True)
    if complete and not args.only:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text = "\n".join(page(rows, time.monotonic() - began, load))
        PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
