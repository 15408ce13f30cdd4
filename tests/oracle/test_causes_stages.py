"""Stages other than the storage as the cause: saves, the CPU, an epoch's first batches; and each of
fetch, prep and accelerator, dominant by a known factor. Rows that hold for any storage are repeated
on S3 and NFS.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.record.verdict import Verdict
from tests.oracle.places import Place, place, wrapped
from tests.oracle.plants import (
    first_advice,
    followed,
    gain_of,
    judged,
    measured,
    on_cores,
    planted,
    rate_with,
    saving,
    verdict_of,
)

__all__ = ["place"]


@pytest.fixture(scope="module", autouse=True)
def plug_ins() -> Iterator[None]:
    with planted():
        yield


def test_half_of_the_time_in_saves(tmp_path: Path, place: Place) -> None:
    """30 steps of 100 ms, and after the 10th and the 20th a save of some 3 MB at 2 MB/s. The
    accelerator never waits for a batch, and without saves the job would be twice as fast. Fast ones
    take 0.02 to 0.2 s each.
    """
    workload: dict[str, Any] = {"accelerator": {"step_time": "100ms"}, "max_steps": 30}
    files = place.dataset(samples=600, sample_size={"mean": 10_000})
    mixed = saving(place.target(f"{tmp_path.name}-slow"), bandwidth="2MB", every=10)
    doc = measured(tmp_path / "results", files, calibration_s=0.3, mixed=mixed, **workload)
    verdict = verdict_of(doc)
    saves = [repetition.checkpoint_s for repetition in doc.job.repetitions]
    truth = 1 + sum(save or 0 for save in saves) / len(saves) / 3
    assert truth == pytest.approx(2, rel=0.1)
    assert (verdict.bottleneck, first_advice(doc).id) == ("checkpoint", "faster-saves")
    assert gain_of(doc, "checkpoint") == pytest.approx(truth, rel=0.1)
    assert gain_of(doc, "storage") == pytest.approx(1, abs=0.1)
    assert verdict.fetch_stall == pytest.approx(0, abs=0.05)
    fast = saving(place.target(f"{tmp_path.name}-fast"), bandwidth="10GB", every=10)
    found = rate_with(tmp_path / "results", files, mixed=fast, **workload)
    followed(doc, found, "half of the time in saves", slack=0.1)


def test_an_epoch_of_four_steps(tmp_path: Path, place: Place) -> None:
    """An epoch is 4 batches, each of them for one worker, of 10 reads of 40 ms one after the other,
    and 4 steps of 100 ms: half of the time, the workers fill and the accelerator waits. In an epoch
    of 80 steps, they fill for a twentieth of it.
    """
    short, long = (
        wrapped(
            "throttled", place.dataset(samples=count, sample_size={"mean": 10_000}), latency="40ms"
        )
        for count in (40, 800)
    )
    workload: dict[str, Any] = {
        "accelerator": {"step_time": "100ms"},
        "loader": {"workers": 8, "prefetch_factor": 1},
        "reader": {"concurrency": 1},
    }
    doc = measured(tmp_path, short, calibration_s=0.3, epochs=5, **workload)
    judged(doc, "fill", gain=2, rel=0.1)
    found = rate_with(tmp_path, long, repetitions=1, **workload)
    followed(doc, found, "4 steps in an epoch; then 80", slack=0.1, advice="longer-epochs")


def test_stages_that_share_the_cpu(tmp_path: Path, place: Place) -> None:
    """On one core each sample takes 8 ms of CPU to read and 8 ms to prepare: 62 samples/s, where
    each stage alone could do 125. Twice the cores are twice the rate, which is then measured. A
    server needs little of that CPU.
    """
    data = place.dataset(samples=300, sample_size={"mean": 10_000}, codec="burning:80")
    url = wrapped("burning", data, cpu=8)
    workload: dict[str, Any] = {
        "batch_size": 4,
        "accelerator": {"step_time": "8ms"},
        "loader": {"workers": 4},
        "reader": {"concurrency": 1},
    }
    with on_cores(1):
        doc = measured(tmp_path, url, **workload)
    judged(doc, "cpu", gain=2)
    with on_cores(2):
        found = rate_with(tmp_path, url, **workload)
    followed(doc, found, "two stages share one core; then two cores", advice="cores")


RATE = 400
"""Samples/s of the dominant stage."""

WORKERS = 3

SEEDS = range(int(os.environ.get("IOBENCH_SEEDS", "1")))
"""20 by hand; all 180 together they take half an hour."""

FACTORS = (1.3, 1.5, 2.0) if len(SEEDS) > 1 else (1.5,)


def dominated(
    results: Path, dataset: Callable[..., object], dominant: str, factor: float, *, seed: int = 7
) -> Verdict:
    """The verdict on a run in which one stage can do 400 samples/s, and each other one ``factor``
    times that. ``dataset`` makes one with the given specification.

    Workers read three batches ahead, so that the stages overlap and the planted factors are those
    of the pipeline. One round of ablations decides, and nothing is calibrated.
    """
    rates = dict.fromkeys(("storage", "prep", "accelerator"), RATE * factor)
    rates[dominant] = RATE
    level = round(WORKERS / rates["prep"] * 10_000)  # tenths of a millisecond
    data = dataset(samples=1000, sample_size={"mean": 10_000}, codec=f"sleeping:{level}")
    doc = measured(
        results,
        wrapped("throttled", str(data), iops=rates["storage"]),
        repetitions=1,
        calibration_s=0,
        seed=seed,
        batch_size=4,
        max_steps=None if dominant == "accelerator" else 150,  # so that it fills for less than 5 %
        accelerator={"step_time": 4 / rates["accelerator"]},
        loader={"workers": WORKERS},
        reader={"concurrency": 12},
    )
    return verdict_of(doc)


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("dominant", ["storage", "prep", "accelerator"])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_dominant_stage(
    tmp_path: Path,
    make_dataset: Any,
    request: pytest.FixtureRequest,
    dominant: str,
    factor: float,
    seed: int,
) -> None:
    """From a factor of 1.5 on the answer is right; below, it may be that it can't be told, or that
    two stages are named, but it is never another stage alone.
    """
    verdict = dominated(
        tmp_path, lambda **spec: make_dataset(**spec)[1], dominant, factor, seed=seed
    )
    named = [verdict.bottleneck, *verdict.also]
    request.node.user_properties += [
        ("bottleneck", " ".join(named)),
        *((stage, f"{gain.value:.3f}") for stage, gain in verdict.gains.items()),
    ]
    if factor >= 1.5:
        assert verdict.bottleneck == dominant, verdict.gains
    else:
        assert verdict.bottleneck == "undecided" or dominant in named, (named, verdict.gains)
