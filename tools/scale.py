"""``make scale``: the tables of docs/scale.md, from published measurements and the code of today.

Nothing is measured: each row is a published figure, and what the model makes of the others. A row
that misses its tolerance says so, and stays.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from iobench.ask.capacity.hosts import HostsModel
from iobench.ask.capacity.jobs import RecordedJob
from iobench.ask.capacity.scaling import Barrier, cycle_s, fit_barrier, fit_scaling, steps_of
from iobench.ask.capacity.sizing import demanded_bytes_per_s
from iobench.base.units import counted, format_percent
from iobench.judge.figures.instep import OwnStepTimes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/scale.md"
PUBLISHED = ROOT / "tests/published"
BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"

STEP_S = {
    ("unet3d", "h100"): 0.323,
    ("unet3d", "a100"): 0.636,
    ("unet3d", "b200"): 0.162,
    ("resnet", "h100"): 0.224,
    ("resnet", "a100"): 0.435,
    ("cosmoflow", "h100"): 0.0035,
    ("cosmoflow", "a100"): 0.00551,
}
BATCH = {"unet3d": 7, "resnet": 400, "cosmoflow": 1}
"""Of MLPerf Storage v1.0 and v3.0 (B200): the workloads' configuration files."""

RANKS_OF_A_HOST = 3
COSMOFLOW = Barrier(0.000734, 0.000173)
"""The barrier that the rows of CosmoFlow give."""

DLRM_TOKENS = 5  # 4 threads of the reader with one batch each, and the one being computed on
DLRM_LOADER_S = 0.0016
"""At 10 ms: published utilization and rate differ by so much in each step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published figure and its prediction. ``error`` and ``tolerance`` are in ``unit``."""

    case: str
    predicted: str
    published: str
    error: float
    unit: str  # "%" of the published figure, or "points" of utilization
    tolerance: float | None = None  # None: nothing was promised

    @property
    def held(self) -> bool | None:
        return None if self.tolerance is None else bool(abs(self.error) <= self.tolerance)

    @property
    def cells(self) -> str:
        limit = "-" if self.tolerance is None else f"{self.tolerance:g} {self.unit}"
        held = {True: "yes", False: "**miss**", None: "-"}[self.held]
        return (
            f"| {self.case} | {self.predicted} | {self.published} | {self.error:+.1f} {self.unit} "
            f"| {limit} | {held} |"
        )


@dataclass(frozen=True, kw_only=True)
class Published:
    """One row of ``mlperf-storage-v1.0.csv`` or ``mlperf-storage-v3.0.csv``."""

    organisation: str
    system: str
    model: str
    accelerator: str
    hosts: int
    accelerators: int
    samples_per_s: float
    au: float
    mib_per_s: float

    @property
    def step_s(self) -> float:
        return STEP_S[self.model, self.accelerator]

    @property
    def identity(self) -> float:
        """The utilization that follows from the rate: X t / (B N)."""
        return self.samples_per_s * self.step_s / (BATCH[self.model] * self.accelerators)


def mlperf(edition: str = "v1.0") -> list[Published]:
    """The rows whose workload and accelerator are known."""
    with (PUBLISHED / f"mlperf-storage-{edition}.csv").open(newline="") as file:
        return [
            Published(
                organisation=row["organisation"],
                system=row["system"],
                model=row["model"],
                accelerator=row["accelerator"],
                hosts=int(row["hosts"]),
                accelerators=int(row["accelerators"]),
                samples_per_s=float(row["samples_per_s"]),
                au=float(row["au_percent"]) / 100,
                mib_per_s=float(row["mib_per_s"]),
            )
            for row in csv.DictReader(file)
            if (row["model"], row["accelerator"]) in STEP_S
        ]


def loaders(workload: str) -> list[dict[str, float]]:
    with (PUBLISHED / "loaders-2026-05.csv").open(newline="") as file:
        return [
            {key: float(value) for key, value in row.items() if key != "workload" and value}
            for row in csv.DictReader(file)
            if row["workload"] == workload
        ]


def _share(case: str, predicted: float, published: float, tolerance: float | None = None) -> Row:
    """A utilization: the error is in points."""
    return Row(
        case=case,
        predicted=format_percent(predicted),
        published=format_percent(published),
        error=100 * (predicted - published),
        unit="points",
        tolerance=tolerance,
    )


def _figure(
    case: str, predicted: float, published: float, tolerance: float | None = None, unit: str = ""
) -> Row:
    """A rate or a time: the error is relative."""
    return Row(
        case=case,
        predicted=f"{_plain(predicted)} {unit}".strip(),
        published=f"{_plain(published)} {unit}".strip(),
        error=100 * (predicted / published - 1),
        unit="%",
        tolerance=tolerance,
    )


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def barriers() -> list[Row]:
    """V1: CosmoFlow on H100 over ranks. What is not computing is taken for the barrier."""
    rows = [
        row
        for row in mlperf()
        if row.system.startswith("F8000X") and (row.model, row.accelerator) == ("cosmoflow", "h100")
    ]
    rows.sort(key=lambda row: row.accelerators)
    step = rows[0].step_s

    def fitted(some: Sequence[Published], ranks: int) -> float:
        costs = [step * (1 / row.au - 1) for row in some]
        law = fit_barrier([row.accelerators for row in some], costs)
        return step / (step + law.cost_s(ranks))

    found = [
        _share(
            f"{counted(row.accelerators, 'rank')}, fitted to all six",
            fitted(rows, row.accelerators),
            row.au,
            1.5,
        )
        for row in rows
    ]
    return found + [
        _share(
            f"{counted(row.accelerators, 'rank')}, left out",
            fitted([each for each in rows if each is not row], row.accelerators),
            row.au,
        )
        for row in rows
    ]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Of 411 ranks: the own steps of some hosts, [hosts][ranks, steps], and what all did."""

    synced: list[OwnStepTimes]
    free: list[OwnStepTimes]
    slowest_s: dict[int, float]
    synced_step_s: float
    free_step_s: float


def trace() -> Trace:
    with np.load(PUBLISHED / "unet3d_h100_hosts_steps.npz") as file:
        found = {name: np.asarray(file[name], dtype=np.float64) for name in file.files}
    busy = STEP_S["unet3d", "h100"]

    def hosts(name: str) -> list[OwnStepTimes]:
        own = found[name] / 1e5
        return [
            OwnStepTimes(own[first : first + RANKS_OF_A_HOST], busy)
            for first in range(0, len(own), RANKS_OF_A_HOST)
        ]

    return Trace(
        synced=hosts("own_step_10us"),
        free=hosts("rare_own_step_10us"),
        slowest_s=dict(zip(found["ranks"].astype(int).tolist(), found["slowest_s"], strict=True)),
        synced_step_s=float(found["synced_step_s"]),
        free_step_s=float(found["free_step_s"]),
    )


def slowest(host: OwnStepTimes, ranks: int) -> float:
    """Seconds of the slowest of ``ranks``, from the steps of one host alone."""
    steps = steps_of([host], hosts=1, round_steps=1)
    assert steps is not None
    return float(steps.slowest_s(ranks)[0])


def stragglers() -> list[Row]:
    """V2: the slowest of N ranks, each from the three ranks of one host."""
    seen, busy = trace(), STEP_S["unet3d", "h100"]
    found = []
    for ranks, truth in seen.slowest_s.items():
        errors = [(slowest(host, ranks) - truth) / seen.synced_step_s for host in seen.synced]
        middle, worst = median(errors), max(errors, key=abs)
        for name, error in (("median host", middle), ("worst host", worst)):
            found.append(
                Row(
                    case=f"slowest of {ranks}, {name}",
                    predicted=f"{1e3 * (truth + error * seen.synced_step_s):.1f} ms",
                    published=f"{1e3 * truth:.1f} ms",
                    error=100 * error,
                    unit="%",
                    tolerance=1.0,
                )
            )
    ranks = max(seen.slowest_s)
    barrier = seen.synced_step_s - seen.slowest_s[ranks]
    truth = busy / seen.synced_step_s
    synced = [busy / (slowest(host, ranks) + barrier) for host in seen.synced]
    other = COSMOFLOW.cost_s(ranks)
    law = [busy / (slowest(host, ranks) + other) for host in seen.synced]
    free = [busy / float(host.own_s.mean()) for host in seen.free]
    for case, values, of, tolerance in (
        ("utilization with a barrier of 8.3 ms as given", synced, truth, 1.0),
        ("utilization with the barrier of CosmoFlow's ranks", law, truth, None),
        ("utilization with few barriers", free, busy / seen.free_step_s, 1.0),
        ("utilization with few barriers, as reported", free, 0.9782, None),
    ):
        found.append(_share(f"{case}, median host", median(values), of, tolerance))
        worst = max(values, key=lambda value: abs(value - of))
        found.append(_share(f"{case}, worst host", worst, of, tolerance))
    return found


def identities() -> list[Row]:
    """V3: the utilization that follows from the rate, and the one that was reported."""
    found = []
    for model in BATCH:
        rows = [row for row in mlperf() if row.model == model]
        gaps = [row.identity - row.au for row in rows]
        middle = sorted(rows, key=lambda row: row.identity - row.au)[len(rows) // 2]
        worst = max(rows, key=lambda row: abs(row.identity - row.au))
        inside = sum(abs(gap) <= 0.01 for gap in gaps)
        found.append(
            _share(
                f"{model}, {len(rows)} rows, {inside} of them within 1 point: the median gap",
                middle.identity,
                middle.au,
                1.0,
            )
        )
        found.append(
            _share(
                f"{model}: the largest gap, {worst.organisation} with {worst.accelerators}",
                worst.identity,
                worst.au,
            )
        )
    return found


PAIRS = (
    ("F8000X_8x7000GiB_nvme_2xHDR200_Nclient1", "F8000X_8x7000GiB_nvme_2xHDR200_Nclient3"),
    ("F9000X_10x7000GiB_nvme_2xNDR400_Nclient1", "F9000X_10x7000GiB_nvme_2xNDR400_Nclient3"),
    ("Hammerspace_unet3d_1Client_A100", "Hammerspace_unet3d_5Client_A100"),
    ("Hammerspace_unet3d_1Client_H100", "Hammerspace_unet3d_5Client_H100"),
    ("Hammerspace_resnet50_1Client_A100", "Hammerspace_resnet50_5Client_A100"),
    ("Hammerspace_resnet50_1Client_H100", "Hammerspace_resnet50_5Client_H100"),
    *((name, name) for name in ("AS13000_16x7.68TiB_NVMe_4xNDR400_3xStorageNode_AMDHost",)),
    (
        "Nutanix-Unified-Storage-4-Nodes-1-Host-unet3d-h100",
        "Nutanix-Unified-Storage-7-Nodes-10-Hosts-unet3d-h100",
    ),
    (
        "Nutanix-Unified-Storage-4-Nodes-1-Host-unet3d-h100",
        "Nutanix-Unified-Storage-32-Nodes-50-Hosts-unet3d-h100",
    ),
)
"""A system with one host, and the same with several (Nutanix: with more storage nodes, too)."""


def _job(row: Published) -> RecordedJob:
    """A published row as a recorded run: without single steps, and without ceilings."""
    cycle = row.accelerators * BATCH[row.model] / row.samples_per_s
    return RecordedJob(
        run_id=row.system,
        hosts=row.hosts,
        ranks=row.accelerators,
        batch_size=BATCH[row.model],
        busy_s=row.step_s,
        cycles_s=(cycle,),
        steps=None,
        in_step=False,  # what barriers cost one host is in its cycle
    )


def many_hosts() -> list[Row]:
    """The largest row of several hosts, from the largest row of one host."""
    rows, found = mlperf(), []
    for one, several in PAIRS:
        kinds = {(row.model, row.accelerator) for row in rows if row.system == one}
        for model, accelerator in sorted(kinds):
            same = [row for row in rows if (row.model, row.accelerator) == (model, accelerator)]
            most = [row for row in same if row.system == several and row.hosts > 1]
            if not most:
                continue
            base = max(
                (row for row in same if row.system == one and row.hosts == 1),
                key=lambda row: row.accelerators,
            )
            truth = max(most, key=lambda row: row.accelerators)
            point = HostsModel([_job(base)]).point(truth.hosts, truth.accelerators / truth.hosts)
            found.append(
                _figure(
                    f"{truth.organisation}, {model} {accelerator}: {base.accelerators} on 1 host, "
                    f"{truth.accelerators} on {truth.hosts}",
                    point.samples_per_s.high,
                    truth.samples_per_s,
                    unit="samples/s",
                )
            )
    return found


def more_clients() -> list[Row]:
    """V3.0: the rate gives the utilization, and the fewest clients give the rate of more."""
    rows = mlperf("v3.0")
    base = rows[0]
    found = [
        _share(
            f"{counted(row.hosts, 'client')}: utilization from samples/s", row.identity, row.au, 1.0
        )
        for row in rows
    ]
    for row in rows[1:]:
        point = HostsModel([_job(base)]).point(row.hosts, row.accelerators / row.hosts)
        case = f"{row.hosts} clients from {base.hosts}, if each gets as much"
        rate = point.samples_per_s.high
        found.append(_figure(case, rate, row.samples_per_s, None, "samples/s"))
    return found


def knees() -> list[Row]:
    """V4: DLRM over step times. The capacity is the mean of the two shortest ones."""
    rows = loaders("dlrm")
    capacity = sum(row["samples_per_s"] for row in rows[:2]) / 2

    def rate(row: dict[str, float], loader_s: float) -> float:
        batch = row["batch_size"]
        step = row["step_time_s"] + loader_s
        return batch / float(cycle_s(batch / capacity, step, tokens=DLRM_TOKENS))

    found = []
    for row in rows:
        case, last = f"step of {1e3 * row['step_time_s']:g} ms", row["step_time_s"] == 0.01
        found.append(
            _figure(case, rate(row, 0.0), row["samples_per_s"], None if last else 5.0, "samples/s")
        )
        if last:
            given = rate(row, DLRM_LOADER_S)
            case = f"{case}, 1.6 ms of loader given"
            found.append(_figure(case, given, row["samples_per_s"], 5.0, "samples/s"))
        smaller = min(capacity, row["batch_size"] / row["step_time_s"])
        found.append(
            _figure(
                f"{case.partition(',')[0]}, without a queue: the lower of both rates",
                smaller,
                row["samples_per_s"],
                None,
                "samples/s",
            )
        )
    return found


def scalings() -> list[Row]:
    """V5: four ranks from one and two."""
    found = []
    for name, tolerance in (("unet3d", 10.0), ("retinanet", None)):
        one, two, four = (row["samples_per_s"] for row in loaders(name))
        law = fit_scaling([1, 2], [one, two])
        case = f"{name}: 4 ranks from 1 and 2"
        found.append(_figure(case, law.rate(4), four, tolerance, "samples/s"))
    return found


def networks() -> list[Row]:
    """V6: shares of network cards, by the formulas of ``size``."""
    volumez = next(row for row in mlperf() if row.hosts == 137)
    sample = volumez.mib_per_s * 2**20 / volumez.samples_per_s
    demand = demanded_bytes_per_s(
        batch_size=BATCH["unet3d"],
        step_time_s=volumez.step_s,
        accelerators=volumez.accelerators,
        bytes_per_sample=sample,
    )
    host = 100e9 / 8
    read = 6.6 * 2**40
    return [
        _share(
            "Volumez, a host's 100 Gb/s at the utilization of the trace",
            demand * volumez.identity / volumez.hosts / host,
            0.66,
            1.0,
        ),
        _share(
            "Volumez, a host's 100 Gb/s at the utilization that was reported",
            demand * volumez.au / volumez.hosts / host,
            0.66,
        ),
        _share("3FS, a storage node's 2 x 200 Gb/s", read / 180 / 50e9, 0.81, 1.0),
        _share("3FS, a client's 200 Gb/s (500 clients)", read / 500 / 25e9, 0.58, 1.0),
    ]


SUBJECTS: tuple[tuple[str, str, Callable[[], list[Row]]], ...] = (
    ("Barriers: CosmoFlow over ranks", "YanRong F8000X, H100, 1 to 60 ranks.", barriers),
    (
        "Stragglers: UNet3D on 411 ranks",
        "Volumez, 137 hosts. Predicted from three ranks of one host, for 11 hosts; errors of times "
        "are shares of the whole step of 343.6 ms.",
        stragglers,
    ),
    (
        "Rate and utilization",
        "The utilization is rate x step time / (batch size x accelerators). Reported ones that are "
        "higher leave out time that passed. The median row and the worst one of each workload.",
        identities,
    ),
    (
        "Several hosts from one",
        "From one row with one host, if the storage gives each host as much. Without "
        "`--storage-limit` this is the upper end of the interval, and the verdict is undecided.",
        many_hosts,
    ),
    (
        "More clients and nodes: v3.0",
        "MLPerf Storage v3.0, UNet3D on B200: AIStore on 3, 6 and 12 nodes, one accelerator on "
        "each client. One run of each.",
        more_clients,
    ),
    ("The knee: DLRM over step times", "One host, Parquet from S3.", knees),
    ("Ranks of one host", "One host with 28 virtual CPUs, S3.", scalings),
    ("Shares of network cards", "What reaches a host or a storage node, by its link.", networks),
)


def lines() -> list[str]:
    """The tables of the page."""
    found = []
    for title, about, rows in SUBJECTS:
        table = rows()
        promised = [row for row in table if row.tolerance is not None]
        held = sum(row.held is True for row in promised)
        told = f" {held} of {len(promised)} tolerances hold." if promised else ""
        found += [
            *(f"### {title}", "", f"{about}{told}", ""),
            "| case | predicted | published | error | tolerance | within it |",
            "|---|--:|--:|--:|--:|---|",
            *(row.cells for row in table),
            "",
        ]
    return found


def main() -> int:
    found = PAGE.read_text(encoding="utf-8")
    before, after = found.partition(BEGIN)[0], found.partition(END)[2]
    text = "\n".join(lines())
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
