"""A short oracle for each answer: the cause is planted, and costs four times what all others do.

The longer oracles ask for the figures as well, and follow the advice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.record.run import TrainingRecord
from tests.oracle.plants import first_advice, judged, measured, planted, saving, verdict_of

FILES: dict[str, Any] = {"samples": 200, "sample_size": {"mean": 20_000}}

HUNGRY: dict[str, Any] = {"accelerator": {"step_time": "10ms"}, "loader": {"workers": 2}}
"""1,000 samples/s are asked for."""


@pytest.fixture(scope="module", autouse=True)
def plug_ins() -> Iterator[None]:
    with planted():
        yield


def short(results: Path, url: object, **run: Any) -> TrainingRecord:
    """Short ceilings, one repetition, and one round in which each stage is left out."""
    return measured(results, url, **{"repetitions": 1, "calibration_s": 0.3, **run})


def check(
    doc: TrainingRecord,
    bottleneck: str,
    *advised: str,
    starved: bool | None = True,
    bound: str = "",
) -> None:
    """This is the bottleneck alone, and one of these is advised first."""
    judged(doc, bottleneck, bound=bound, starved=starved)
    assert verdict_of(doc).also == []
    assert first_advice(doc).id in advised, verdict_of(doc).advice


def test_latency(tmp_path: Path, make_dataset: Any) -> None:
    """4 reads of 20 ms in flight are 200 samples/s."""
    url = f"throttled+{make_dataset(**FILES)[1]}?latency=20ms"
    doc = short(tmp_path, url, **HUNGRY, reader={"concurrency": 2})
    check(doc, "storage", "concurrency", bound="latency")


def test_operations(tmp_path: Path, make_dataset: Any) -> None:
    """200 reads/s, each of one sample; larger reads would bring more."""
    _, data = make_dataset(**FILES | {"sample_size": {"mean": 64 << 10}})
    doc = short(
        tmp_path,
        f"throttled+{data}?iops=200",
        calibration_s=1.0,
        **HUNGRY,
        reader={"concurrency": 16},
    )
    check(doc, "storage", "pack", bound="operations")


@pytest.mark.slow
def test_metadata(tmp_path: Path, make_dataset: Any) -> None:
    """200 opens/s, each of one sample; reads cost nothing beside."""
    _, data = make_dataset(**FILES | {"sample_size": {"mean": 64 << 10}})
    doc = short(
        tmp_path,
        f"throttled+{data}?opens=200",
        calibration_s=1.0,
        **HUNGRY,
        reader={"concurrency": 16},
    )
    check(doc, "storage", "pack", bound="metadata")
    assert doc.job.curve is not None
    assert doc.job.curve.opens is not None
    (point,) = doc.job.curve.opens.points
    assert point.reads_per_s.value == pytest.approx(200, rel=0.1)


def test_bandwidth(tmp_path: Path, make_dataset: Any) -> None:
    """20 MB/s are 200 samples/s, whatever the reads are."""
    size = {"mean": 100_000}
    _, shards = make_dataset(samples=200, sample_size=size, format="tar", samples_per_shard=50)
    doc = short(tmp_path, f"throttled+{shards}?bandwidth=20MB", calibration_s=0.5, **HUNGRY)
    check(doc, "storage", "faster-storage", bound="bandwidth")


def test_preparation(tmp_path: Path, make_dataset: Any) -> None:
    """A sample takes the one worker 5 ms: 200 samples/s."""
    _, data = make_dataset(**FILES, codec="sleeping:50")
    doc = short(tmp_path, data, calibration_s=0.1, **HUNGRY | {"loader": {"workers": 1}})
    check(doc, "prep", "workers", "cores")


def test_the_loader(tmp_path: Path, make_dataset: Any) -> None:
    """Batches of one sample of 200 bytes through torch's transport: the way from the worker to the
    rank is all that costs anything. Nobody asks for a rate.
    """
    size = {"mean": 200}
    _, data = make_dataset(samples=1000, sample_size=size, format="tar", samples_per_shard=1000)
    doc = short(
        tmp_path,
        data,
        calibration_s=0.5,
        ablations=False,
        batch_size=1,
        accelerator={"kind": "null"},
        cache="warm",
        loader={"workers": 1, "transport": "tensor"},
    )
    check(doc, "loader", "transport", starved=None)


def test_the_accelerator(tmp_path: Path, make_dataset: Any) -> None:
    """100 samples/s are asked for, and the storage could give ten times that."""
    doc = short(
        tmp_path,
        f"throttled+{make_dataset(**FILES)[1]}?iops=1000",
        calibration_s=0.0,
        accelerator={"step_time": "100ms"},
        loader={"workers": 2},
        required_accelerator_utilization=0.5,
    )
    check(doc, "accelerator", "none", starved=False)


def test_the_slowest_rank(tmp_path: Path, make_dataset: Any) -> None:
    """One of four ranks reads a batch in 200 ms, and all wait for it after each step of 40 ms.
    Without the barrier, the other three would not wait.
    """
    doc = short(
        tmp_path,
        f"uneven+{make_dataset(**FILES)[1]}?rank=2&latency=200ms",
        calibration_s=0.0,
        accelerators=4,
        batch_size=1,
        max_steps=10,
        accelerator={"step_time": "40ms", "sync": "step"},
        reader={"concurrency": 1},
        loader={"workers": 1, "prefetch_factor": 1},
    )
    check(doc, "sync", "no-barrier")


def test_checkpoints(tmp_path: Path, make_dataset: Any) -> None:
    """20 steps of 20 ms, and two saves of 0.5 s each. Between saves the accelerator is fed."""
    doc = short(
        tmp_path / "results",
        make_dataset(**FILES)[1],
        calibration_s=0.0,
        accelerator={"step_time": "20ms"},
        max_steps=20,
        required_accelerator_utilization=0.5,
        mixed=saving(str(tmp_path / "saves"), bandwidth="6MB", every=8),
    )
    check(doc, "checkpoint", "faster-saves", starved=False)
