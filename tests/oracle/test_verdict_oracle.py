"""Verdict oracles, written by someone who did not write the verdict: each truth is arithmetic on
what was planted.

Windows are 2 s and more, steps 20 ms and more, and what must not bind is faster by factors, so that
a loaded machine of 2 cores cannot turn an answer round.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.record import TrainingRecord
from iobench.schema.workload import Workload

MB = 1_000_000
SAMPLE = 100_000

Measure = Callable[..., TrainingRecord]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    def go(
        url: Path | str,
        *,
        accelerators: int = 1,
        repetitions: int = 1,
        calibration_s: float = 0.8,
        **workload: Any,
    ) -> TrainingRecord:
        spec = build(
            Workload,
            {"name": "oracle", "dataset": "demo", "batch_size": 10, **workload},
            where="oracle",
        )
        plan = make_plan(spec, str(url), accelerators=accelerators, repetitions=repetitions, seed=5)
        options = Options(
            results=tmp_path / "results",
            calibration_s=calibration_s,
            knock_outs=False,  # the files of causes test what is left out
        )
        doc, _ = run(plan, options)
        assert (doc.status, doc.error) == ("ok", "")
        assert doc.job.verdict is not None
        return doc

    return go


def binds(doc: TrainingRecord) -> str:
    assert doc.job.verdict is not None
    return doc.job.verdict.binds


def median(doc: TrainingRecord, metric: str) -> float:
    return doc.metrics[metric].median


@pytest.fixture(scope="module")
def files(make_dataset: Any) -> Path:
    """500 files of 100 kB: one read request is one sample."""
    path: Path = make_dataset(samples=500, sample_size={"mean": SAMPLE})[1]
    return path


# Storage of known speed


def test_the_reported_bandwidth_is_the_throttles(measure: Measure, make_dataset: Any) -> None:
    """Incompressible data, so a codec changes no size: 50 MB at 20 MB/s take 2.5 s; the accelerator
    could take 50 MB/s.
    """
    _, root = make_dataset(
        samples=500, sample_size={"mean": SAMPLE}, format="tar", samples_per_shard=50, codec="lz4"
    )
    doc = measure(
        f"throttled+{root}?bandwidth=20MB",
        accelerator={"step_time": "20ms"},
        reader={"direct": False},
        calibration_s=0.4,
    )
    assert_delivered(doc, root, bandwidth=20, direct=False)
    assert binds(doc) == "storage"


def assert_delivered(doc: TrainingRecord, root: Path, *, bandwidth: int, direct: bool) -> None:
    """All of the 500 samples, each byte once, at the speed of the link (MB/s)."""
    on_disk = sum(path.stat().st_size for path in (root / "data").rglob("*") if path.is_file())
    assert doc.job.loader.direct is direct
    assert median(doc, "read_bytes_per_s") == pytest.approx(bandwidth * MB, rel=0.05)
    assert doc.job.repetitions[0].bytes_read == pytest.approx(on_disk, rel=0.03), (
        "every byte is read once, and counted where it is read"
    )
    assert doc.job.repetitions[0].samples == 500
    assert median(doc, "samples_per_s") == pytest.approx(
        500 / (on_disk / (bandwidth * MB)), rel=0.05
    )


def test_random_access_into_shards_counts_what_alignment_adds(
    measure: Measure, make_dataset: Any
) -> None:
    """O_DIRECT reads whole blocks of 4096 bytes: a sample of 6,000 bytes at any offset costs 8 to
    12 KiB, and the throttle makes it pay.
    """
    _, root = make_dataset(
        samples=4000, sample_size={"mean": 6000}, format="tar", samples_per_shard=1000
    )
    doc = measure(
        f"throttled+{root}?bandwidth=16MB",
        accelerator={"step_time": "20ms"},
        batch_size=50,
        reader={"access": "random", "direct": True},
        calibration_s=0.5,
    )
    moved = doc.job.repetitions[0].bytes_read
    assert 4000 * 8192 <= moved <= 4000 * 12288
    assert median(doc, "read_bytes_per_s") == pytest.approx(16 * MB, rel=0.05)
    assert median(doc, "samples_per_s") == pytest.approx(4000 / (moved / (16 * MB)), rel=0.05)
    assert binds(doc) == "storage"


@pytest.mark.parametrize(
    ("bandwidth", "accelerators", "step_ms"),
    [(25, 1, 20), (20, 2, 40)],
    ids=["25MB-1x20ms", "20MB-2x40ms"],
)
def test_utilization_of_a_starved_accelerator_is_bandwidth_arithmetic(
    measure: Measure, files: Path, bandwidth: int, accelerators: int, step_ms: int
) -> None:
    """AU = X / (N x G x s): storage feeds X bytes/s, N accelerators ask for G samples/s of s bytes
    each.
    """
    step_s, steps = step_ms / 1000, 500 // 10 // accelerators
    demand = accelerators * (10 / step_s) * SAMPLE
    truth = bandwidth * MB / demand
    doc = measure(
        f"throttled+{files}?bandwidth={bandwidth}MB",
        accelerators=accelerators,
        accelerator={"step_time": f"{step_ms}ms"},
        loader={"workers": 2},
        reader={"direct": True},
        calibration_s=0.4,
    )
    assert_delivered(doc, files, bandwidth=bandwidth, direct=True)
    assert median(doc, "accelerator_utilization") == pytest.approx(truth, abs=0.02)
    # Over everything, the last step comes on top of the time that reading takes.
    whole = steps * step_s / (500 * SAMPLE / (bandwidth * MB) + step_s)
    assert median(doc, "accelerator_utilization_sustained") == pytest.approx(whole, abs=0.02)
    assert binds(doc) == "storage"
    assert doc.job.verdict is not None
    assert doc.job.verdict.starved
    assert doc.job.verdict.headroom == pytest.approx(truth, rel=0.05)
    # What a 90 % utilization draws from storage is 90 % of the appetite.
    assert doc.job.verdict.accelerators_fed == int(bandwidth * MB / (0.9 * demand / accelerators))


def test_operations_per_second_bind_as_bandwidth_does(measure: Measure, files: Path) -> None:
    """250 reads/s of one sample each, and 500 samples/s asked for."""
    doc = measure(
        f"throttled+{files}?iops=250", accelerator={"step_time": "20ms"}, calibration_s=0.4
    )
    assert median(doc, "samples_per_s") == pytest.approx(250, rel=0.05)
    assert median(doc, "accelerator_utilization") == pytest.approx(0.5, abs=0.02)
    assert binds(doc) == "storage"


@pytest.fixture(scope="module")
def latent(tmp_path_factory: pytest.TempPathFactory, make_dataset: Any) -> TrainingRecord:
    """Two workers, each with one read of 20 ms in flight: a batch of 10 takes a worker 200 ms, and
    two of them 50 ms each are asked for.
    """
    _, root = make_dataset(samples=200, sample_size={"mean": 10_000})
    spec = {
        "name": "oracle",
        "dataset": "demo",
        "batch_size": 10,
        "accelerator": {"step_time": "50ms"},
        "reader": {"concurrency": 1},
    }
    plan = make_plan(
        build(Workload, spec, where="oracle"),
        f"throttled+{root}?latency=20ms",
        accelerators=1,
        repetitions=1,
        seed=1,
    )
    return run(plan, Options(results=tmp_path_factory.mktemp("latent"), calibration_s=0.4))[0]


def test_latency_binds_by_littles_law(latent: TrainingRecord) -> None:
    """2 in flight / 20 ms = 100 samples/s of the 200 asked for. The 20 batches come in 10 pairs,
    and two steps follow the last pair.
    """
    assert median(latent, "samples_per_s") == pytest.approx(200 / (10 * 0.2 + 2 * 0.05), rel=0.05)
    assert median(latent, "accelerator_utilization_sustained") == pytest.approx(
        20 * 0.05 / (10 * 0.2 + 2 * 0.05), abs=0.02
    )
    assert latent.job.ceilings["fetch"].samples_per_s == pytest.approx(100, rel=0.05)
    assert binds(latent) == "storage"


def test_where_only_latency_binds_the_advice_is_concurrency(latent: TrainingRecord) -> None:
    """No bandwidth is missing: twice the reads in flight are twice the rate, and more devices would
    change nothing.
    """
    assert latent.job.verdict is not None
    advised = " | ".join(advice.change for advice in latent.job.verdict.advice)
    assert "concurrency" in advised or "in flight" in advised, advised


# Fast storage


@pytest.mark.parametrize("accelerators", [1, 2])
def test_a_fed_accelerator_is_as_busy_as_the_clock_says(
    measure: Measure, files: Path, accelerators: int
) -> None:
    """25 steps of 100 ms on storage that is faster by far: the run takes what its steps take (and
    torch's 0.5 to 1 ms a batch).
    """
    step_s, batch = 0.1, 20 // accelerators
    doc = measure(
        files,
        accelerators=accelerators,
        accelerator={"step_time": "100ms"},
        batch_size=batch,
        loader={"workers": 1},
        calibration_s=0.5,
    )
    assert doc.job.repetitions[0].steps == 25 * accelerators
    assert median(doc, "busy_s") == pytest.approx(25 * step_s, abs=1e-6)
    assert median(doc, "accelerator_utilization") == pytest.approx(1.0, abs=0.05)
    assert median(doc, "samples_per_s") == pytest.approx(20 / step_s, rel=0.05)
    assert 25 * step_s <= median(doc, "wall_s") <= 25 * step_s + 0.5
    assert doc.job.ceilings["accelerator"].samples_per_s == pytest.approx(20 / step_s, rel=0.02)
    assert binds(doc) == "accelerator"
    assert doc.job.verdict is not None
    assert not doc.job.verdict.starved


def test_the_strict_utilization_is_the_outside_clocks(tmp_path: Path, files: Path) -> None:
    """Busy time over a wall time taken here, around the whole repetition: never more than that, and
    no more than start-up below.
    """
    spec = {
        "name": "oracle",
        "dataset": "demo",
        "batch_size": 8,
        "accelerator": {"step_time": "40ms"},
        "loader": {"workers": 1},
    }
    plan = make_plan(
        build(Workload, spec, where="oracle"),
        f"throttled+{files}?bandwidth=30MB",
        accelerators=1,
        repetitions=1,
        seed=1,
    )
    began = time.monotonic()
    doc, _ = run(plan, Options(results=tmp_path, calibration_s=0, knock_outs=False))
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
    spec = {
        "name": "oracle",
        "dataset": "demo",
        "batch_size": 100,
        "epochs": 4,
        "accelerator": {"step_time": "250ms"},
    }
    plan = make_plan(
        build(Workload, spec, where="oracle"),
        f"throttled+{root}?bandwidth=20MB",
        accelerators=1,
        repetitions=1,
        seed=1,
    )
    doc, _ = run(plan, Options(results=tmp_path, calibration_s=0))
    served = median(doc, "samples_per_s") / 400
    assert served <= 0.5
    assert median(doc, "accelerator_utilization_sustained") == pytest.approx(served, abs=0.05)


# Preparation


def _unpacked_per_s(root: Path) -> float:
    """Samples that Python's own gzip undoes per second, in one process."""
    packed = [path.read_bytes() for path in sorted((root / "data").rglob("*.gz"))[:20]] or [
        path.read_bytes()
        for path in sorted(path for path in (root / "data").rglob("*") if path.is_file())[:20]
    ]
    began = time.process_time()
    for data in packed:
        gzip.decompress(data)
    return len(packed) / (time.process_time() - began)


def test_decompression_binds(measure: Measure, make_dataset: Any) -> None:
    """One worker undoes gzip at a few hundred MB/s; 4 GB/s are asked for, and a quarter of that is
    read.
    """
    _, root = make_dataset(samples=200, sample_size={"mean": MB}, codec="gzip:6", compress_ratio=4)
    doc = measure(
        root, accelerator={"step_time": "20ms"}, batch_size=80, loader={"workers": 1}, epochs=2
    )
    assert binds(doc) == "prep"
    prep, fetch = doc.job.ceilings["prep"].samples_per_s, doc.job.ceilings["fetch"].samples_per_s
    assert prep is not None
    assert fetch is not None
    assert prep < fetch
    assert 0.3 < prep / _unpacked_per_s(root) < 4  # another library may be faster, not by an order
    assert median(doc, "accelerator_utilization_sustained") < 0.6
    assert doc.job.verdict is not None
    assert doc.job.verdict.prep_stall is not None
    assert doc.job.verdict.fetch_stall is not None
    assert doc.job.verdict.prep_stall > doc.job.verdict.fetch_stall
    assert doc.job.verdict.sentence.startswith("Data preparation")


def test_decoding_binds_even_where_storage_is_capped_above_it(
    measure: Measure, make_dataset: Any
) -> None:
    """One worker decodes some 2,000 JPEGs of 50 kB a second; storage is capped at 20,000 of them,
    the accelerator asks for 5,000.
    """
    _, root = make_dataset(
        samples=800,
        sample_size={"mean": 50_000},
        format="tar",
        content="jpeg",
        samples_per_shard=50,
    )
    doc = measure(
        f"throttled+{root}?bandwidth=1GB",
        accelerator={"step_time": "20ms"},
        batch_size=100,
        loader={"workers": 1},
        reader={"crop": 3000},
    )
    assert binds(doc) == "prep"
    assert doc.job.verdict is not None
    assert doc.job.verdict.headroom is not None
    assert doc.job.verdict.headroom > 1.5  # the storage is not to blame, and the document says so


# The harness


def test_tiny_batches_bind_the_harness(measure: Measure, make_dataset: Any) -> None:
    """One sample of 200 bytes to a batch, torch's default transport: the round trip to the worker
    is all that costs anything.
    """
    _, root = make_dataset(
        samples=4000, sample_size={"mean": 200}, format="tar", samples_per_shard=4000
    )
    doc = measure(
        root,
        accelerator={"kind": "null"},
        batch_size=1,
        loader={"workers": 1, "transport": "tensor"},
        cache="warm",
        calibration_s=0.8,
    )
    assert doc.job.verdict is not None
    assert binds(doc) == "harness", doc.job.verdict.sentence


def test_large_tensors_through_torchs_transport_bind_the_harness(
    measure: Measure, make_dataset: Any
) -> None:
    """8 MB batches: torch copies each into fresh shared memory; the reader fetches from a warm
    cache into reused buffers.
    """
    _, root = make_dataset(
        samples=100, sample_size={"mean": MB}, format="tar", samples_per_shard=100
    )
    doc = measure(
        root,
        accelerator={"kind": "null"},
        batch_size=8,
        loader={"workers": 1, "transport": "tensor"},
        cache="warm",
        epochs=4,
    )
    assert doc.job.verdict is not None
    assert binds(doc) == "harness", doc.job.verdict.sentence
