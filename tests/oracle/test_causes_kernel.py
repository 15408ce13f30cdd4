"""The kernel's own throttle (cgroup v1 blkio) as the cause: operations and bytes of a real disk are
told apart, and packing is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.schema.record import TrainingRecord
from tests.oracle.plants import (
    MB,
    Throttle,
    first_advice,
    gain_of,
    kept,
    measured,
    note_promise,
    promise_of,
    rate_of,
    throttle_for,
    verdict_of,
)

WORKLOAD: dict[str, Any] = {
    "batch_size": 20,
    "accelerator": {"step_time": "20ms"},
    "reader": {"direct": True},
    "loader": {"workers": 2},
}
"""1,000 samples/s are asked for, with up to 8 reads in flight. The kernel works in slices of 0.1 s,
so short points of a curve differ by more than those of a device.
"""

READS_PER_S = 250

ALONE: dict[str, Any] = {"repetitions": 2, "calibration_s": 0, "knock_outs": False}
"""A run that only repeats."""


@pytest.fixture
def throttle(tmp_path: Path) -> Iterator[Throttle]:
    with throttle_for(tmp_path) as found:
        yield found


def held(throttle: Throttle, folder: Path, url: object, **run: Any) -> TrainingRecord:
    """A run inside the cgroup."""
    folder.mkdir()

    def work(scratch: Path) -> None:
        doc = measured(scratch / "results", url, **{"calibration_s": 2.5, **run})
        (scratch / "record.json").write_text(doc.model_dump_json())

    throttle.run(work, folder)
    return TrainingRecord.model_validate_json((folder / "record.json").read_text())


def test_operations_of_small_files(tmp_path: Path, throttle: Throttle, make_dataset: Any) -> None:
    """250 reads/s: files of 64 KiB come at 16 MB/s, while the disk's bandwidth is idle. The same
    samples in shards, on the same throttle, come as fast as the accelerator takes them.
    """
    size = {"mean": 64 << 10}
    _, files = make_dataset(samples=400, sample_size=size)
    _, shards = make_dataset(samples=400, sample_size=size, format="tar", samples_per_shard=100)
    throttle.hold(reads_per_s=READS_PER_S)
    doc = held(throttle, tmp_path / "files", files, **WORKLOAD)
    verdict = verdict_of(doc)
    assert rate_of(doc) == pytest.approx(READS_PER_S, rel=0.1)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "operations"
    assert gain_of(doc, "storage") == pytest.approx(1000 / READS_PER_S, rel=0.15)
    advice = first_advice(doc)
    assert advice.id == "pack"
    packed = held(throttle, tmp_path / "packed", shards, **ALONE, **WORKLOAD)
    found = rate_of(packed) / rate_of(doc)
    note_promise("250 reads/s by the kernel, files of 64 KiB", promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


def test_bandwidth_of_a_disk(tmp_path: Path, throttle: Throttle, make_dataset: Any) -> None:
    """40 MB/s of the 100 MB/s asked for, whatever the requests."""
    _, shards = make_dataset(
        samples=600, sample_size={"mean": 100_000}, format="tar", samples_per_shard=60
    )
    workload = {**WORKLOAD, "batch_size": 10, "accelerator": {"step_time": "10ms"}}
    throttle.hold(bytes_per_s=40 * MB)
    doc = held(throttle, tmp_path / "held", shards, **workload)
    verdict = verdict_of(doc)
    assert doc.metrics["read_bytes_per_s"].median == pytest.approx(40 * MB, rel=0.05)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "bandwidth"
    assert all(advice.id not in ("concurrency", "workers", "pack") for advice in verdict.advice)
    assert gain_of(doc, "storage") == pytest.approx(2.5, rel=0.15)
    advice = first_advice(doc)
    throttle.hold(bytes_per_s=400 * MB)
    lifted = held(throttle, tmp_path / "lifted", shards, **ALONE, **workload)
    found = rate_of(lifted) / rate_of(doc)
    note_promise("40 of 100 MB/s by the kernel", promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)
