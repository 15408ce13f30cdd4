"""The claims of compare, ab and history under the noise of clouds: ``python -m tools.cloud_noise``.

Without files, series are generated that have published statistics (``CLOUDS``). With files, they
are read: the CSV files of Azure's VM noise dataset of 2024 (columns value, runtime, starttime,
VM_id), which have a licence of their own (CC-BY) and are not a part of this repository::

    python -m tools.cloud_noise test_suite=fio/.../vm_lifespan=long/vm_region=eastus/.../MiBs.csv

Each series is cut into windows of ``RUNS`` values, one value for each run. In a window nothing
changes but the noise, so whatever is called different is a false answer. Then the values of B, or
of the newer half, are made 10 % less, and the share is told in which that is found.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from iobench.ask.compare.changes import change_points
from iobench.ask.compare.claims import Sides, claim
from iobench.ask.compare.sequential import Sequential
from iobench.base.errors import IobenchError, UsageError
from tests.simulated import Floats, at_most, noise
from tools.claim_rates import (
    HISTORIES,
    MAX_ROUNDS,
    MAX_WRONG,
    METRIC,
    THRESHOLD,
    drift,
)

RUNS = 2 * MAX_ROUNDS
"""Values of a window: all rounds of ``ab``, each with A and B."""

EARLIER = 10
"""Runs before a comparison of one run each, from which the drift is known."""

CHANGE = 0.9

Side = npt.NDArray[np.bool_]
"""Which runs are those of B."""

WINDOWS = 400
"""Windows that are generated of each cloud."""


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """How the level of a machine moves from run to run. Each part is of the logarithm.

    ``cv``: standard deviation of what differs from run to run, and ``correlation`` of neighbouring
    runs in it (AR(1)). ``bursts``: share of the runs that lie in a burst of other load, which takes
    away ``burst`` of the rate, for ``burst_runs`` runs on average. ``steps``: number of runs after
    which, on average, the level changes between 1 and 1 - ``step`` for good.
    """

    name: str
    cv: float
    correlation: float = 0.0
    bursts: float = 0.0
    burst: float = 0.3
    burst_runs: float = 3.0
    steps: float = 0.0
    step: float = 0.0
    source: str = ""


CLOUDS = (
    Cloud(
        name="disks of VMs",
        cv=0.01,
        correlation=0.5,
        source="TUNA (EuroSys 2025): below 1 % on 43,617 VMs of Azure; the correlation is a CHOICE",
    ),
    Cloud(
        name="caches of VMs",
        cv=0.1439,
        correlation=0.3,
        source="TUNA: 14.39 %, the largest of its components; the correlation is a CHOICE",
    ),
    Cloud(
        name="storage stacks",
        cv=0.03,
        correlation=0.3,
        source="Cao et al. (FAST 2017): a range above 10 % in a quarter of the configurations",
    ),
    Cloud(
        name="noisy neighbours",
        cv=0.01,
        bursts=0.05,
        source="TUNA: configurations that lose 30 %; how often and how long is a CHOICE",
    ),
    Cloud(
        name="burst credits",
        cv=0.01,
        steps=20,
        step=0.25,
        source="Amazon EBS gp2: 250 MiB/s with credits, 187.5 without; how often is a CHOICE",
    ),
)


def series(rng: np.random.Generator, cloud: Cloud, count: int, runs: int) -> Floats:
    """(count, runs): the rate of each run, in the order of time."""
    logs = noise(rng, (count, runs), sd=cloud.cv, correlation=cloud.correlation)
    if cloud.bursts:
        begin = cloud.bursts / (cloud.burst_runs * (1 - cloud.bursts))
        inside = _states(rng, (count, runs), cloud.bursts, begin, 1 / cloud.burst_runs)
        logs += np.log1p(-cloud.burst) * inside
    if cloud.steps:
        logs += np.log1p(-cloud.step) * _states(
            rng, (count, runs), 0.5, 1 / cloud.steps, 1 / cloud.steps
        )
    return np.exp(logs)


def _states(
    rng: np.random.Generator, shape: tuple[int, int], share: float, begin: float, end: float
) -> Floats:
    """1 where a chain of two states is in the second one; ``share``: of it in the long run."""
    drawn = rng.random(shape)
    found = np.zeros(shape)
    found[:, 0] = drawn[:, 0] < share
    for at in range(1, shape[1]):
        was = found[:, at - 1]
        found[:, at] = np.where(was > 0, drawn[:, at] >= end, drawn[:, at] < begin)
    return found


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Of ``windows``: the share called different where nothing is, and where B is 10 % slower.

    ``promised``: whether docs/statistics.md promises at most 5 % false ones.
    """

    method: str
    promised: bool
    windows: int
    false: float
    found: float

    @property
    def held(self) -> bool:
        return not self.promised or self.false <= at_most(MAX_WRONG, self.windows)

    @property
    def cells(self) -> str:
        kept = "yes" if self.promised else "no"
        shares = f"{100 * self.false:.1f} | {100 * self.found:.1f}"
        return f"{self.method} | {kept} | {self.windows} | {shares}"


def _different(window: Floats, second: Side, factor: float, earlier: int) -> bool | None:
    """What ``compare`` says of the runs of a window behind the earlier ones: B is worse, or not."""
    runs = window[earlier:]
    sides = Sides(
        candidate=(factor * runs[second]).tolist(),
        baseline=runs[~second].tolist(),
        drift=drift(window[:earlier]) if earlier else None,
    )
    found = claim(METRIC, sides, threshold=THRESHOLD)
    return None if found.answer != "different" else not found.better


_TEST = Sequential(MAX_ROUNDS, THRESHOLD)


def _in_turns(window: Floats, factor: float) -> bool | None:
    """What ``ab`` says: A B, B A, A B, ..."""
    logs = np.log(window[1::2] / window[::2])
    logs[1::2] *= -1
    ratios = (logs + np.log(factor)).tolist()
    rounds = next(n for n in _TEST.looks if _TEST.ends(ratios[:n]))
    found = _TEST.claim(METRIC, ratios[:rounds], higher_is_better=True)
    return None if found.answer != "different" else not found.better


def _changed(window: Floats, factor: float) -> bool | None:
    """What ``compare --over-time`` says: of no change, whether there is one; else, one there."""
    values, middle = window.copy(), len(window) // 2
    values[middle:] *= factor
    places = [change.at for change in change_points(values.tolist())]
    right = bool(places) if factor == 1 else any(abs(at - middle) <= 1 for at in places)
    return True if right else None


Says = Callable[[Floats, float], "bool | None"]


def answers(windows: Floats) -> list[Answers]:
    """What each method says of windows of one level and its noise."""
    blocks, turns = np.arange(8) >= 4, np.isin(np.arange(8) % 4, (1, 2))
    pair = np.arange(2) == 1
    methods: tuple[tuple[str, bool, Says], ...] = (
        ("ab", True, _in_turns),
        ("compare, 4 and 4 in turns", True, lambda row, f: _different(row[:8], turns, f, 0)),
        ("compare, 4 after 4", False, lambda row, f: _different(row[:8], blocks, f, 0)),
        (
            f"compare, 1 after 1 and {EARLIER} earlier ones",
            False,
            lambda row, f: _different(row[: EARLIER + 2], pair, f, EARLIER),
        ),
        ("compare --over-time, 40 runs", False, _changed),
    )
    found = []
    for method, promised, says in methods:
        rows = windows[:HISTORIES] if says is _changed else windows
        found.append(
            Answers(
                method=method,
                promised=promised,
                windows=len(rows),
                false=float(np.mean([says(row, 1.0) is not None for row in rows])),
                found=float(np.mean([says(row, CHANGE) is True for row in rows])),
            )
        )
    return found


def generated(cloud: Cloud, *, windows: int = WINDOWS) -> Floats:
    """Windows of a cloud: the same ones each time."""
    return series(np.random.default_rng((8, CLOUDS.index(cloud))), cloud, windows, RUNS)


def statistics(windows: Floats) -> str:
    """Spread, correlation of neighbours, and steps of the windows, in words."""
    logs = np.log(windows)
    around = logs - logs.mean(axis=1, keepdims=True)
    spread = float(np.sqrt((around**2).sum() / (logs.size - len(logs))))
    square = float((around**2).sum())
    neighbours = float((around[:, 1:] * around[:, :-1]).sum()) / square if square else 0.0
    middle = np.median(logs, axis=1, keepdims=True)
    odd = float((logs < middle + np.log1p(-0.1)).mean())
    return (
        f"spread {100 * spread:.1f} %, correlation of neighbours {neighbours:.2f}, "
        f"{100 * odd:.1f} % of the runs more than 10 % below the median"
    )


def read(path: Path) -> Iterator[list[float]]:
    """The values of each machine in a file, in the order of time. Raises UsageError."""
    found: dict[str, list[tuple[str, float]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                value = float(row["value"])
                if value > 0:
                    found.setdefault(row["VM_id"], []).append((row["starttime"], value))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} has no series: {error}",
            remedy="name CSV files with the columns value, starttime and VM_id",
        ) from None
    for _, values in sorted(found.items()):
        yield [value for _, value in sorted(values)]


def windows_of(machines: Iterable[Sequence[float]]) -> Floats:
    """Windows that do not overlap. Raises UsageError if no series is long enough."""
    found = [
        values[start : start + RUNS]
        for values in machines
        for start in range(0, len(values) - RUNS + 1, RUNS)
    ]
    if not found:
        raise UsageError(
            f"no machine has {RUNS} values: a window has so many",
            remedy="name files of machines that lived long (vm_lifespan=long)",
        )
    return np.asarray(found, dtype=np.float64)


HEADS = ("series", "method", "promised", "windows", "false different", "0.9 found")


def rows(all_windows: Iterable[tuple[str, Floats]]) -> tuple[list[str], bool]:
    """The rows of the table, in per cent, and whether every promise held."""
    found = [(name, each) for name, windows in all_windows for each in answers(windows)]
    return [f"{name} | {each.cells}" for name, each in found], all(each.held for _, each in found)


def of_clouds() -> tuple[list[str], bool]:
    """The rows of all generated series, and whether every promise held."""
    return rows((cloud.name, generated(cloud)) for cloud in CLOUDS)


def main(words: Sequence[str] | None = None) -> int:
    """Print statistics of the series, and the table; exit with 1 if a promise did not hold."""
    parser = argparse.ArgumentParser(description="Claims about runs under the noise of clouds.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    args = parser.parse_args(words)
    try:
        found = [(path.stem, windows_of(read(path))) for path in args.files]
    except IobenchError as error:
        print(error, file=sys.stderr)
        return 2
    if not args.files:
        found = [(cloud.name, generated(cloud)) for cloud in CLOUDS]
    for name, windows in found:
        print(f"{name}: {statistics(windows)}")
    lines, held = rows(found)
    print("\n".join(["", *(f"| {line} |" for line in (" | ".join(HEADS), *lines))]))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
