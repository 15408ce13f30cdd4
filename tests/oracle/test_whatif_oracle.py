"""What-if oracles: a run is recorded on storage of known speed, one thing is changed on paper, and
then in truth.

Windows are a second and more; what must not bind is faster by factors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.analyse.capacity.ceilings import Change, Quantity
from iobench.analyse.capacity.whatif import what_if
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.record import TrainingRecord
from iobench.schema.workload import Workload

SAMPLE = 100_000


def measure(
    results: Path, url: str, *, calibration_s: float = 0.6, **workload: Any
) -> TrainingRecord:
    spec = build(Workload, {"name": "oracle", "dataset": "demo", **workload}, where="oracle")
    plan = make_plan(spec, url, accelerators=1, repetitions=1, seed=3)
    doc, _ = run(plan, Options(results=results, calibration_s=calibration_s, knock_outs=False))
    assert (doc.status, doc.error) == ("ok", "")
    return doc


def predicted(doc: TrainingRecord, change: Change) -> float:
    verdict = what_if(doc, change).document.job.verdict
    assert verdict is not None
    assert verdict.predicted_samples_per_s is not None
    return verdict.predicted_samples_per_s


def test_twice_the_bandwidth_on_paper_and_in_truth(tmp_path: Path, make_dataset: Any) -> None:
    """50 MB/s recorded, 100 MB/s predicted and measured; 10 samples of 100 kB in 2 ms are asked
    for, 500 MB/s.
    """
    _, root = make_dataset(samples=500, sample_size={"mean": SAMPLE})
    job: dict[str, Any] = {
        "batch_size": 10,
        "accelerator": {"step_time": "2ms"},
        "loader": {"workers": 2},
        "epochs": 3,
    }
    slow = measure(tmp_path, f"throttled+{root}?bandwidth=50MB", **job)
    fast = measure(tmp_path, f"throttled+{root}?bandwidth=100MB", calibration_s=0, **job)
    found = what_if(slow, Change(storage_bandwidth=Quantity(2, relative=True)))
    assert found.document.job.verdict is not None
    assert found.document.job.verdict.binds == "storage"
    assert found.error == pytest.approx(0, abs=0.1)
    truth = fast.metrics["samples_per_s"].median
    assert truth == pytest.approx(100e6 / SAMPLE, rel=0.1)
    assert found.document.job.verdict.predicted_samples_per_s == pytest.approx(truth, rel=0.1)
    assert found.corrected_samples_per_s == pytest.approx(truth, rel=0.1)


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
    slow = measure(
        tmp_path,
        f"throttled+{root}?latency=20ms",
        reader={"concurrency": 1},
        calibration_s=0.5,
        **job,
    )
    more = measure(
        tmp_path,
        f"throttled+{root}?latency=20ms",
        reader={"concurrency": 4},
        calibration_s=0,
        epochs=3,
        **job,
    )
    near = measure(
        tmp_path,
        f"throttled+{root}?latency=10ms",
        reader={"concurrency": 1},
        calibration_s=0,
        **job,
    )
    for change, doc, arithmetic in (
        (Change(concurrency=Quantity(4)), more, 2 * 4 / 0.02),
        (Change(latency=Quantity(0.5, relative=True)), near, 2 / 0.01),
    ):
        truth = doc.metrics["samples_per_s"].median
        assert truth == pytest.approx(
            arithmetic, rel=0.15
        )  # the first batches of an epoch come together, and the last as well
        assert predicted(slow, change) == pytest.approx(truth, rel=0.15)
    assert predicted(slow, Change(storage_bandwidth=Quantity(2, relative=True))) == pytest.approx(
        100, rel=0.15
    )
