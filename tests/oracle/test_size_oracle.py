"""Figures on paper, and then in truth: the storage that ``iobench size`` says to buy passes the run
that it was bought for, and ``whatif`` predicts what a run with one change then measures.

The bought storage is emulated by ``throttled+`` at the rate and the latency that were bought. Its
run reaches the required utilization, and with a tenth less it does not, so the margin is no waste.
Large jobs are emulated in virtual time, read by read, with the rules of ``throttled+``.
"""

from __future__ import annotations

import heapq
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.margin import batch_sizes, lognormal_sigma
from iobench.ask.capacity.requirement import Demand, Requirement, requirement
from iobench.ask.capacity.whatif import what_if
from iobench.base.units import Quantity
from iobench.data.dataset import layout_of
from iobench.record.manifest import Manifest
from iobench.record.run import TrainingRecord
from iobench.settings.base import build
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.workload import Workload, load_workload
from tests.oracle.plants import ran, rate_of, verdict_of

RANKS = 2

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    # Small samples of one size in shards that are read in order, as ResNet-50's.
    "shards in order": (
        {"samples": 6000, "sample_size": {"mean": 2000}, "format": "tar", "shard_size": "2MB"},
        {
            "batch_size": 40,
            "accelerator": {"step_time": 0.3},
            "loader": {"workers": 2, "prefetch_factor": 1},
        },
        "",
    ),
    # A large file for each sample, of very different sizes, with a barrier: as 3D U-Net's.
    "files of different sizes": (
        {
            "samples": 300,
            "sample_size": {
                "distribution": "normal",
                "mean": 100_000,
                "stdev": 46_600,
                "min": 3000,
                "max": 197_000,
            },
        },
        {
            "batch_size": 2,
            "accelerator": {"step_time": 0.3},
            "loader": {"workers": 2, "prefetch_factor": 1},
            "reader": {"block_size": 65_536},
        },
        "",
    ),
    # Single small samples anywhere in the shards, at a latency with a long tail.
    "small random reads": (
        {"samples": 1500, "sample_size": {"mean": 2000}, "format": "tar", "shard_size": "1MB"},
        {
            "batch_size": 10,
            "accelerator": {"step_time": 0.3},
            "loader": {"workers": 2, "prefetch_factor": 1},
            "reader": {"access": "random", "concurrency": 4},
        },
        "latency=20ms&latency_p99=100ms",
    ),
}


def bought(manifest: Manifest, workload: Workload, latency: str) -> Requirement:
    given = dict(each.split("=") for each in latency.split("&")) if latency else {}
    seconds = {name: float(value.removesuffix("ms")) / 1e3 for name, value in given.items()}
    steps = manifest.sample_count // (workload.batch_size * RANKS)
    demand = Demand(
        accelerators=RANKS,
        steps=steps,
        alignment=1,  # throttled+ counts the bytes that the reader asks for
        latency_s=seconds.get("latency"),
        latency_p99_s=seconds.get("latency_p99"),
    )
    return requirement(workload, manifest.spec, demand, layout=layout_of(manifest.spec))


def utilization(results: Path, data: Path, job: dict[str, Any], rate: float, latency: str) -> float:
    url = f"throttled+{data}?bandwidth={round(rate)}" + (f"&{latency}" if latency else "")
    doc, _ = ran(results, url, accelerators=RANKS, seed=1, **job)
    return doc.metrics["accelerator_utilization_sustained"].median


@pytest.mark.parametrize("case", CASES)
def test_the_bought_storage_passes_and_a_tenth_less_does_not(
    tmp_path: Path, make_dataset: Any, case: str
) -> None:
    data, settings, latency = CASES[case]
    manifest, root = make_dataset(**data)
    job = {**settings, "reader": {"decode": False, **settings.get("reader", {})}}
    workload = build(Workload, {"name": "oracle", "dataset": "demo", **job}, where="oracle")
    need = bought(manifest, workload, latency)
    assert need.buy_bytes_per_s is not None
    rates = [need.buy_bytes_per_s, 0.9 * need.buy_bytes_per_s]
    enough, less = [utilization(tmp_path, root, job, rate, latency) for rate in rates]
    told = (need.margin, enough, less)
    assert enough >= need.required_accelerator_utilization, told
    assert less < need.required_accelerator_utilization, told


def emulated(workload: Workload, need: Requirement, rate: float, steps: int, seed: int) -> float:
    """The utilization of a job, in virtual time: each read is served by one link in order of
    arrival, and then takes its latency. Each worker has ``concurrency`` threads, which share the
    reads of its batch; a batch begins when the worker has delivered the last one and the queue has
    room. Ranks wait for each other after each step.
    """
    draw = np.random.default_rng(seed)
    ranks, workers = need.accelerators, workload.loader.workers
    queue = workers * workload.loader.prefetch_factor
    step_s = workload.accelerator.step_time
    assert step_s is not None
    sizes = batch_sizes(load_dataset_spec(workload.dataset).sample_size, workload.batch_size)
    requests = max(1, round(need.reads_per_s / need.samples_per_s * workload.batch_size))
    batch_bytes = need.read_bytes_per_s / need.samples_per_s * workload.batch_size
    service = draw.choice(sizes, (ranks, steps)) * batch_bytes / requests / rate
    sigma = lognormal_sigma(need.latency_s or 1.0, need.latency_p99_s)

    def latency() -> float:
        if need.latency_s is None:
            return 0.0
        return need.latency_s * math.exp(draw.normal(0.0, sigma)) if sigma else need.latency_s

    link_free = 0.0
    ready = np.full((ranks, steps), np.inf)
    left: dict[tuple[int, int], int] = {}  # reads of a batch that were not issued
    open_reads: dict[tuple[int, int], int] = {}  # that have not ended
    issued, ends = [0] * ranks, np.zeros(steps)
    taken = np.zeros(ranks, dtype=int)
    threads: list[tuple[float, int, int]] = []  # a thread is free: (time, rank, batch)
    waiting = [set[int]() for _ in range(ranks)]  # batches whose worker is busy
    done = [[-1] * workers for _ in range(ranks)]

    def begin(rank: int, batch: int, now: float) -> None:
        left[rank, batch] = open_reads[rank, batch] = requests
        for _ in range(min(workload.reader.concurrency, requests)):
            left[rank, batch] -= 1
            heapq.heappush(threads, (now, rank, batch))

    def issue(rank: int, now: float) -> None:
        while issued[rank] < min(steps, taken[rank] + queue):
            batch = issued[rank]
            issued[rank] += 1
            if batch < workers or done[rank][batch % workers] == batch - workers:
                begin(rank, batch, now)
            else:
                waiting[rank].add(batch)

    steps_due: list[tuple[float, int, int]] = []
    ended: list[tuple[float, int, int]] = []
    released = np.zeros(ranks)
    arrived = 0

    def take(rank: int, now: float) -> None:
        step = int(taken[rank])
        if step < steps and ready[rank, step] <= now and released[rank] <= now:
            taken[rank] += 1
            released[rank] = np.inf  # until the barrier
            heapq.heappush(steps_due, (now + step_s, rank, step))
            issue(rank, now)

    for rank in range(ranks):
        issue(rank, 0.0)
    while threads or ended or steps_due:
        at = [each[0][0] if each else np.inf for each in (threads, ended, steps_due)]
        if at[0] <= min(at[1:]):
            now, rank, batch = heapq.heappop(threads)
            link_free = max(now, link_free) + float(service[rank, batch])
            heapq.heappush(ended, (link_free + latency(), rank, batch))
        elif at[1] <= at[2]:
            now, rank, batch = heapq.heappop(ended)
            open_reads[rank, batch] -= 1
            if left[rank, batch]:
                left[rank, batch] -= 1
                heapq.heappush(threads, (now, rank, batch))
            if not open_reads[rank, batch]:
                ready[rank, batch] = now
                done[rank][batch % workers] = batch
                if batch + workers in waiting[rank]:
                    waiting[rank].discard(batch + workers)
                    begin(rank, batch + workers, now)
                take(rank, now)
        else:
            now, rank, step = heapq.heappop(steps_due)
            arrived += 1
            if arrived == ranks:
                arrived, ends[step] = 0, now
                released[:] = now
                for each in range(ranks):
                    take(each, now)
    return steps * step_s / float(ends[-1])


@pytest.mark.parametrize(
    ("name", "ranks", "latency", "overrides"),
    [
        ("resnet50-h100", 8, (0.005, 0.04), ()),
        ("unet3d-b200", 3, (0.005, 0.02), ()),
        ("retinanet-b200", 8, (0.002, 0.03), ()),
        ("resnet50-h100", 4, (0.001, 0.01), ("reader.access=random", "batch_size=100")),
        ("cosmoflow-h100", 32, (0.002, 0.008), ()),
    ],
)
def test_large_jobs_read_by_read(
    name: str, ranks: int, latency: tuple[float, float], overrides: tuple[str, ...]
) -> None:
    """The bought rate passes, and the mean, without the margin, does not."""
    workload, steps = load_workload(name, overrides), 200
    spec = load_dataset_spec(workload.dataset)
    demand = Demand(accelerators=ranks, steps=steps, latency_s=latency[0], latency_p99_s=latency[1])
    need = requirement(workload, spec, demand, layout=layout_of(spec))
    assert need.buy_bytes_per_s is not None, need.not_measured
    required = need.required_accelerator_utilization
    bought = emulated(workload, need, need.buy_bytes_per_s, steps, 1)
    mean = emulated(workload, need, need.read_bytes_per_s, steps, 1)
    assert bought >= required, (need.margin, bought, mean)
    assert mean < required, (need.margin, bought, mean)


# What if one thing of a recorded run were different


def predicted(doc: TrainingRecord, **change: Any) -> float:
    found = verdict_of(what_if([(doc, {})], Change(**change)).what_if).predicted_samples_per_s
    assert found is not None
    return found


def test_twice_the_bandwidth_on_paper_and_in_truth(tmp_path: Path, make_dataset: Any) -> None:
    """50 MB/s recorded, 100 MB/s predicted and measured; 10 samples of 100 kB in 2 ms are asked
    for, 500 MB/s.
    """
    _, root = make_dataset(samples=500, sample_size={"mean": 100_000})
    job: dict[str, Any] = {"accelerator": {"step_time": "2ms"}, "loader": {"workers": 2}}
    slow, _ = ran(tmp_path, f"throttled+{root}?bandwidth=50MB", calibration_s=0.6, epochs=3, **job)
    fast, _ = ran(tmp_path, f"throttled+{root}?bandwidth=100MB", epochs=3, **job)
    found = what_if([(slow, {})], Change(storage_bandwidth=Quantity(2, relative=True)))
    assert verdict_of(found.what_if).bottleneck == "storage"
    assert found.model_error == pytest.approx(0, abs=0.1)
    assert rate_of(fast) == pytest.approx(1000, rel=0.1)
    for figure in (
        verdict_of(found.what_if).predicted_samples_per_s,
        found.corrected_samples_per_s,
    ):
        assert figure == pytest.approx(rate_of(fast), rel=0.1)


def test_reads_in_flight_and_latency_on_paper_and_in_truth(
    tmp_path: Path, make_dataset: Any
) -> None:
    """2 workers with 1 read of 20 ms in flight get 100 samples/s: 4 in flight make it 400, half the
    latency 200.
    """
    _, root = make_dataset(samples=480, sample_size={"mean": 10_000})
    job: dict[str, Any] = {
        "batch_size": 12,
        "accelerator": {"step_time": "5ms"},
        "loader": {"workers": 2},
    }
    url, one, four = f"throttled+{root}?latency", {"concurrency": 1}, {"concurrency": 4}
    slow, _ = ran(tmp_path, f"{url}=20ms", reader=one, calibration_s=0.5, **job)
    more, _ = ran(tmp_path, f"{url}=20ms", reader=four, epochs=3, **job)
    near, _ = ran(tmp_path, f"{url}=10ms", reader=one, **job)
    half, twice = Quantity(0.5, relative=True), Quantity(2, relative=True)
    for change, doc, arithmetic in (
        ({"concurrency": Quantity(4)}, more, 2 * 4 / 0.02),
        ({"latency": half}, near, 2 / 0.01),
    ):
        # The first batches of an epoch come together, and the last as well.
        assert rate_of(doc) == pytest.approx(arithmetic, rel=0.15)
        assert predicted(slow, **change) == pytest.approx(rate_of(doc), rel=0.15)
    assert predicted(slow, storage_bandwidth=twice) == pytest.approx(100, rel=0.15)
