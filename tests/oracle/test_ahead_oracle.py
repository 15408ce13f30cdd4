"""Loaders of others and iobench's own on storage of planted speed: the rate of reads ahead, the
length of a window, and storage that is the bottleneck through a library.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from iobench.load.build import make_loader
from iobench.load.loader import BatchLoader
from iobench.load.reader import BatchReader
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage import open_storage
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.oracle.plants import MB
from tests.processes import document

LATENCY_S = 0.06
"""Long beside the 2 to 3 ms that handing a batch on takes on a slow machine."""

SAMPLES = 120


def samples_per_s(path: Any, concurrency: int, *, count: int = SAMPLES, **reader: Any) -> float:
    """Samples/s of one worker over the second half of so many, which no start-up is part of."""
    loader = make_loader(
        path,
        batch_size=1,
        storage=open_storage(f"throttled+{path}?latency={LATENCY_S}s"),
        reader={"concurrency": concurrency, **reader},
        loader={"workers": 1},
    )
    assert isinstance(loader, BatchLoader)
    moments = []
    try:
        for batch in loader:
            moments.append(time.monotonic())
            del batch
            if len(moments) == count:
                break
    finally:
        loader.shutdown()
    assert len(moments) == count
    half = count // 2
    return (count - half) / (moments[-1] - moments[half - 1])


def test_eight_reads_in_flight_are_eight_times_the_rate(make_dataset: Any) -> None:
    """With batches of one request, the rate grows with ``reader.concurrency``."""
    _, path = make_dataset(samples=SAMPLES, format="files", sample_size={"mean": 10_000})
    one = samples_per_s(path, 1, count=SAMPLES // 3)
    assert one == pytest.approx(1 / LATENCY_S, rel=0.1)
    assert samples_per_s(path, 8) / one == pytest.approx(8, rel=0.2)


@pytest.mark.nightly
def test_without_read_ahead_concurrency_changes_nothing(make_dataset: Any) -> None:
    _, path = make_dataset(samples=SAMPLES, format="files", sample_size={"mean": 10_000})
    assert samples_per_s(path, 8, read_ahead=False) == pytest.approx(1 / LATENCY_S, rel=0.1)


def test_a_short_window_holds_three_whole_rounds(make_dataset: Any) -> None:
    """Each batch is one read of 0.3 s, the window is 0.2 s: after the first round it is over, and
    nothing could be rated.
    """
    manifest, path = make_dataset(samples=40, format="files")
    reading = ReaderSpec(direct=False, concurrency=1)
    storage = ThrottledStorage(LocalStorage(path), latency_s=0.3)
    outcome = run_phase(
        Phase(
            name="calibrate.fetch",
            reader=BatchReader(manifest, storage, reading, bytes_only=True),
            reading=reading,
            loading=LoaderSpec(workers=2, transport="null"),
            accelerator=AcceleratorSpec(kind="null"),
            accelerators=1,
            batch_size=1,
            seed=1,
            limit_s=0.2,
            whole_rounds=True,
        )
    )
    assert int(outcome.columns[0]["steps"].sum()) == 3 * 2


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "form"), [("torch-map", "files"), ("webdataset", "tar")])
def test_storage_of_known_speed_binds_through_a_library(
    kind: str, form: str, make_dataset: Any, tmp_path: Path
) -> None:
    """50 MB at 50 MB/s; the accelerator asks for 100 MB/s."""
    shards = {} if form == "files" else {"samples_per_shard": 10}
    _, root = make_dataset(samples=100, sample_size={"mean": MB // 2}, format=form, **shards)
    (tmp_path / "w.yaml").write_text(
        "{name: w, dataset: demo, batch_size: 10, accelerator: {step_time: 50ms}, "
        f"reader: {{shuffle: false}}, loader: {{kind: {kind}}}}}\n"
    )
    doc = document(
        f"run {tmp_path}/w.yaml --data throttled+{root}?bandwidth=50MB/s --repeat 1 "
        f"--calibration 0.5s --results {tmp_path}"
    )
    job, (repetition,) = doc["job"], doc["job"]["repetitions"]
    assert job["verdict"]["bottleneck"] == "storage"
    # The throttle's burst and two workers' first reads are free; noise only slows.
    assert repetition["read_bytes_per_s"] == pytest.approx(50 * MB, rel=0.1)
    assert (repetition["bytes_read"], repetition["read_amplification"]) == (None, None)
    assert kind in repetition["not_measured"]["read_amplification"]
    assert document(f"report {tmp_path / doc['run_id']}") == doc
    assert job["ceilings"]["prep"]["samples_per_s"] > 200
    assert job["ceilings"]["loader"]["not_measured"]
    assert job["loader"]["delivery"] == {
        "delivered": 100, "missing": 0, "repeated": 0, "unknown": 0, "of": 100, "whole_epoch": True
    }  # fmt: skip
    assert job["loader"]["shuffle"]["distance"] is not None
