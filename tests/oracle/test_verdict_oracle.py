"""Verdict oracles, written by someone who did not write the verdict: each truth is arithmetic on
what was planted.

Windows are 2 s and more, steps 20 ms and more, and what must not bind is faster by factors, so that
a loaded machine of 2 cores cannot turn an answer round.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from iobench.record.run import TrainingRecord
from tests.oracle.plants import MB, judged, ran, verdict_of

SAMPLE = 100_000


def measure(results: Path, url: object, **more: Any) -> TrainingRecord:
    """A run of one repetition with ceilings; the files of causes test what is left out."""
    return ran(results, url, **{"calibration_s": 0.8, **more})[0]


def median(doc: TrainingRecord, metric: str) -> float:
    return doc.metrics[metric].median


@pytest.fixture(scope="module")
def files(make_dataset: Any) -> Path:
    """500 files of 100 kB: one read request is one sample."""
    path: Path = make_dataset(samples=500, sample_size={"mean": SAMPLE})[1]
    return path


# Storage of known speed


def test_random_access_into_shards_counts_what_alignment_adds(
    tmp_path: Path, make_dataset: Any
) -> None:
    """O_DIRECT reads whole blocks of 4096 bytes: a sample of 6,000 bytes at any offset costs 8 to
    12 KiB, and the throttle makes it pay.
    """
    _, root = make_dataset(
        samples=4000, sample_size={"mean": 6000}, format="tar", samples_per_shard=1000
    )
    doc = measure(
        tmp_path,
        f"throttled+{root}?bandwidth=16MB",
        accelerator={"step_time": "20ms"},
        batch_size=50,
        reader={"access": "random", "direct": True},
    )
    moved = doc.job.repetitions[0].bytes_read
    assert 4000 * 8192 <= moved <= 4000 * 12288
    assert median(doc, "read_bytes_per_s") == pytest.approx(16 * MB, rel=0.05)
    assert median(doc, "samples_per_s") == pytest.approx(4000 / (moved / (16 * MB)), rel=0.05)
    judged(doc, "storage")


@pytest.mark.parametrize(
    ("bandwidth", "accelerators", "step_ms"),
    [(25, 1, 20), (20, 2, 40)],
    ids=["25MB-1x20ms", "20MB-2x40ms"],
)
def test_utilization_of_a_starved_accelerator_is_bandwidth_arithmetic(
    tmp_path: Path, files: Path, bandwidth: int, accelerators: int, step_ms: int
) -> None:
    """AU = X / (N x G x s): storage feeds X bytes/s, N accelerators ask for G samples/s of s bytes
    each.
    """
    step_s, steps = step_ms / 1000, 500 // 10 // accelerators
    demand = accelerators * (10 / step_s) * SAMPLE
    truth = bandwidth * MB / demand
    doc = measure(
        tmp_path,
        f"throttled+{files}?bandwidth={bandwidth}MB",
        accelerators=accelerators,
        accelerator={"step_time": f"{step_ms}ms"},
        loader={"workers": 2},
        reader={"direct": True},
    )
    on_disk = sum(path.stat().st_size for path in (files / "data").rglob("*") if path.is_file())
    assert doc.job.loader.direct is True
    assert median(doc, "read_bytes_per_s") == pytest.approx(bandwidth * MB, rel=0.05)
    assert doc.job.ceilings["fetch"].bytes_per_s == pytest.approx(bandwidth * MB, rel=0.05)
    # Every byte is read once, and counted where it is read.
    assert doc.job.repetitions[0].bytes_read == pytest.approx(on_disk, rel=0.03)
    assert median(doc, "samples_per_s") == pytest.approx(
        500 / (on_disk / (bandwidth * MB)), rel=0.05
    )
    assert median(doc, "accelerator_utilization") == pytest.approx(truth, abs=0.02)
    # Over everything, the last step comes on top of the time that reading takes.
    whole = steps * step_s / (500 * SAMPLE / (bandwidth * MB) + step_s)
    assert median(doc, "accelerator_utilization_sustained") == pytest.approx(whole, abs=0.02)
    judged(doc, "storage")
    assert verdict_of(doc).headroom == pytest.approx(truth, rel=0.05)
    # What a 90 % utilization draws from storage is 90 % of the appetite.
    fed = int(bandwidth * MB / (0.9 * demand / accelerators))
    assert verdict_of(doc).accelerators_fed == fed


# Fast storage


@pytest.mark.parametrize("accelerators", [1, 2])
def test_a_fed_accelerator_is_as_busy_as_the_clock_says(
    tmp_path: Path, files: Path, accelerators: int
) -> None:
    """25 steps of 100 ms on storage that is faster by far: the run takes what its steps take (and
    torch's 0.5 to 1 ms a batch).
    """
    step_s, batch = 0.1, 20 // accelerators
    doc = measure(
        tmp_path,
        files,
        accelerators=accelerators,
        accelerator={"step_time": "100ms"},
        batch_size=batch,
        loader={"workers": 1},
    )
    assert doc.job.repetitions[0].steps == 25 * accelerators
    assert median(doc, "busy_s") == pytest.approx(25 * step_s, abs=1e-6)
    assert median(doc, "accelerator_utilization") == pytest.approx(1.0, abs=0.05)
    assert median(doc, "samples_per_s") == pytest.approx(20 / step_s, rel=0.05)
    assert 25 * step_s <= median(doc, "wall_s") <= 25 * step_s + 0.5
    assert doc.job.ceilings["accelerator"].samples_per_s == pytest.approx(20 / step_s, rel=0.02)
    judged(doc, "accelerator", starved=False)


def test_a_storage_of_twice_the_demand_feeds_two(tmp_path: Path, make_dataset: Any) -> None:
    """200 MB/s, of which an accelerator takes 100. Steps of 160 ms, so that a worker's round trip
    (0.5 to 2 ms) is next to nothing; a batch is 4 requests, so with 4 in flight, no worker's first
    batch waits for one read ahead.
    """
    _, shards = make_dataset(
        samples=600, sample_size={"mean": 400_000}, format="tar", samples_per_shard=60
    )
    doc = measure(
        tmp_path,
        f"throttled+{shards}?bandwidth=200MB",
        accelerator={"step_time": "160ms"},
        batch_size=40,
        loader={"workers": 2},
        reader={"concurrency": 4},
    )
    # The fill of an epoch of 15 steps takes a twentieth of the time, so no more is said than that.
    assert verdict_of(doc).starved is False
    assert median(doc, "accelerator_utilization") == pytest.approx(1.0, abs=0.02)
    # The cap gives back what a pause left unused, to a short window, too.
    assert verdict_of(doc).headroom == pytest.approx(2.0, rel=0.1)
    assert verdict_of(doc).accelerators_fed == 2  # 200 MB/s / (0.9 x 100 MB/s)


def test_the_strict_utilization_is_the_outside_clocks(tmp_path: Path, files: Path) -> None:
    """Busy time over a wall time taken here, around the whole repetition: never more than that, and
    no more than start-up below.
    """
    began = time.monotonic()
    doc, _ = ran(
        tmp_path,
        f"throttled+{files}?bandwidth=30MB",
        batch_size=8,
        accelerator={"step_time": "40ms"},
        loader={"workers": 1},
    )
    outside = time.monotonic() - began
    busy = -(-500 // 8) * 0.040
    assert median(doc, "wall_s") <= outside
    assert median(doc, "wall_s") == pytest.approx(outside, abs=1.5)
    assert busy / outside <= median(doc, "accelerator_utilization_strict") <= busy / (outside - 1.5)


def test_a_partial_batch_is_not_a_whole_steps_work(tmp_path: Path, make_dataset: Any) -> None:
    """110 samples in batches of 100: a whole batch, and one of a tenth that must not count as a
    whole step's work.

    Storage feeds 200 samples/s of the 400 asked for: who gets half of his appetite is not busy for
    more than half of the time.
    """
    _, root = make_dataset(samples=110, sample_size={"mean": SAMPLE})
    doc, _ = ran(
        tmp_path,
        f"throttled+{root}?bandwidth=20MB",
        batch_size=100,
        epochs=4,
        accelerator={"step_time": "250ms"},
    )
    served = median(doc, "samples_per_s") / 400
    assert served <= 0.5
    assert median(doc, "accelerator_utilization_sustained") == pytest.approx(served, abs=0.05)
