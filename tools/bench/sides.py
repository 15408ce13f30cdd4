"""What the scripts of the bench share: cases of two sides, which take turns, and how they are shown
and kept.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from iobench.data.generator.engine import generate
from iobench.host import fio, host
from iobench.record.manifest import Manifest
from iobench.settings.base import build
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage

MIB = 1 << 20
SCRATCH = ".iobench-bench-"
"""How the names of temporary directories begin."""


class Figure(NamedTuple):
    bytes_per_s: float
    cpu_s_per_gb: float | None


class Case(NamedTuple):
    name: str
    target: str
    ours: Callable[[], Figure]
    peer: Callable[[], Figure]
    peer_name: str


class Made(NamedTuple):
    """A dataset that was generated."""

    manifest: Manifest
    root: Path

    @property
    def files(self) -> list[Path]:
        return [self.root / key for key in self.manifest.keys()]  # noqa: SIM118


class Data:
    """The datasets of all cases, generated once in a directory that is removed at the end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._made: dict[str, Made] = {}

    def dataset(self, name: str, **spec: Any) -> Made:
        if name not in self._made:
            root = self.root / name
            full = build(DatasetSpec, {"name": name, **spec}, where=name)
            self._made[name] = Made(generate(full, LocalStorage(root)).manifest, root)
        return self._made[name]

    def drop(self, name: str) -> None:
        shutil.rmtree(self.root / name, ignore_errors=True)
        self._made.pop(name, None)


def timed(work: Callable[[], int]) -> Figure:
    """Bytes of ``work`` over its wall and CPU time, children included."""
    before = cpu_s()
    started = time.perf_counter()
    done = work()
    wall, cpu = time.perf_counter() - started, cpu_s() - before
    return Figure(done / wall, cpu / (done / 1e9))


def cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended, by getrusage(2)."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def in_memory(files: Iterable[Path]) -> None:
    """Have the page cache hold these files."""
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.read(8 * MIB):
                pass


def flags_of(page: str | None, cases: Iterable[str], *, repeat: int = 5) -> argparse.ArgumentParser:
    """The flags that all scripts have. ``page``: the script's docstring."""
    parser = argparse.ArgumentParser(description=(page or "").partition("\n")[0])
    parser.add_argument(
        "--case", action="append", choices=sorted(cases), help="only these; repeatable"
    )
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument(
        "--dir", type=Path, default=Path("."), help="a directory on the disk to measure"
    )
    return parser


def fio_is_missing() -> bool:
    """Whether fio is missing; then a line says how to install it."""
    if not fio.available():
        print(f"fio is not installed: {fio.install_hint()}", file=sys.stderr)
    return not fio.available()


def compare(cases: Iterable[Case], repeat: int, *, warm_up: bool = True) -> None:
    """Both sides of each case in turn: prints the ratios as they come, and keeps all of them."""
    rows = []
    print(
        f"{'case':<58} {'ratio':<20} {'GB/s ours':<20} {'GB/s peer':<20} "
        f"{'CPU s/GB ours, peer':<20} target"
    )
    for case in cases:
        if warm_up:  # page cache, memory, code: the first of each is not counted
            case.ours(), case.peer()
        pairs = [(case.ours(), case.peer()) for _ in range(repeat)]
        row = {
            "case": case.name,
            "peer": case.peer_name,
            "target": case.target,
            "ours": [figure._asdict() for figure, _ in pairs],
            "theirs": [figure._asdict() for _, figure in pairs],
            "ratios": [a.bytes_per_s / b.bytes_per_s for a, b in pairs],
        }
        rows.append(row)
        cpu = [_cpu_cost(side) for side in zip(*pairs, strict=True)]
        gb = [_spread([f.bytes_per_s / 1e9 for f in side]) for side in zip(*pairs, strict=True)]
        print(
            f"{case.name:<58} {_spread(row['ratios']):<20} {gb[0]:<20} {gb[1]:<20} "
            f"{', '.join(cpu):<20} {case.target}"
        )
        print(f"{'':<58} against {case.peer_name}", flush=True)
    _keep(rows)


def _spread(values: list[float]) -> str:
    places = 2 if max(values) >= 0.1 else 3
    middle, low, high = (
        f"{v:.{places}f}" for v in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} [{low}, {high}]"


def _cpu_cost(figures: Iterable[Figure]) -> str:
    known = [figure.cpu_s_per_gb for figure in figures if figure.cpu_s_per_gb is not None]
    return f"{statistics.median(known):.3f}" if known else "inconclusive"


def _keep(rows: list[dict[str, Any]]) -> None:
    folder = Path("results/bench")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{datetime.now(UTC):%Y%m%d-%H%M%S}.json"
    path.write_text(
        json.dumps({"host": host.fingerprint(), "load": os.getloadavg(), "rows": rows}, indent=1),
        encoding="utf-8",
    )
    print(f"every repetition: {path}")
