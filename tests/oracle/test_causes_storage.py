"""The storage as the cause: what of it is spent is told apart, and the advice keeps its promise.

``throttled`` has the latency, the operations/s and the bytes/s that are planted, and its clock is
exact. A proxy delays the requests of S3, traffic control holds what a server sends, and the kernel
(cgroup v1 blkio) holds a real disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from iobench.judge.rules_ranks import falls
from iobench.record.run import TrainingRecord
from iobench.settings.base import apply_overrides
from tests.oracle.places import Place, place, wrapped
from tests.oracle.plants import (
    MB,
    findings,
    first_advice,
    followed,
    judged,
    late,
    measured,
    planted,
    ran,
    rate_of,
    rate_with,
    throttle_for,
    verdict_of,
)
from tests.servers.bandwidth import held

__all__ = ["place"]

SHARDS: dict[str, Any] = {
    "samples": 800,
    "sample_size": {"mean": 100_000},
    "format": "tar",
    "samples_per_shard": 40,
}
FILES: dict[str, Any] = {"samples": 400, "sample_size": {"mean": 20_000}}
"""One read request is one sample."""

SMALL: dict[str, Any] = {"samples": 400, "sample_size": {"mean": 64 << 10}}


@dataclass(frozen=True)
class Limit:
    """What a storage has; 0: as much as is asked for."""

    latency_ms: int = 0
    reads_per_s: int = 0
    bytes_per_s: int = 0

    def throttled(self, url: str) -> str:
        names = {
            "latency": self.latency_ms and f"{self.latency_ms}ms",
            "iops": self.reads_per_s,
            "bandwidth": self.bytes_per_s,
        }
        return wrapped("throttled", url, **{name: value for name, value in names.items() if value})


@dataclass(frozen=True)
class Cause:
    """A job that asks for more samples/s than a storage with a limit has, and what is to be told.

    ``better``: the limit, and ``packed``: the data, with which the advice is followed.
    """

    bound: str
    limit: Limit
    data: dict[str, Any]
    job: dict[str, Any]
    asked: float
    rate: float
    advised: str
    never: Sequence[str]
    better: Limit
    packed: dict[str, Any] = field(default_factory=dict)


CAUSES = {
    cause.bound: cause
    for cause in (
        Cause(
            "latency",
            Limit(latency_ms=40),
            FILES,
            {
                "batch_size": 16,
                "accelerator": {"step_time": "40ms"},
                "loader": {"workers": 2},
                "reader": {"concurrency": 2},
            },
            asked=400,
            rate=4 / 0.04,
            advised="concurrency",
            never=["faster-storage"],
            better=Limit(latency_ms=40),
        ),
        Cause(
            "operations",
            Limit(reads_per_s=250),
            SMALL,
            {"batch_size": 20, "accelerator": {"step_time": "20ms"}, "loader": {"workers": 2}},
            asked=1000,
            rate=250,
            advised="pack",
            never=[],
            better=Limit(reads_per_s=250),
            packed={**SMALL, "format": "tar", "samples_per_shard": 100},
        ),
        Cause(
            "bandwidth",
            Limit(bytes_per_s=20 * MB),
            SHARDS,
            {"accelerator": {"step_time": "20ms"}, "reader": {"concurrency": 2}},
            asked=500,
            rate=20 * MB / 100_000,
            advised="faster-storage",
            never=["concurrency", "workers", "pack"],
            better=Limit(bytes_per_s=200 * MB),
        ),
    )
}


@pytest.fixture(scope="module", autouse=True)
def plug_ins() -> Iterator[None]:
    with planted():
        yield


Measure = Callable[..., TrainingRecord]
"""``measure(dataset, **run)``: ``measured`` on a dataset of this specification."""


@contextmanager
def by_throttled(place: Place, limit: Limit, folder: Path) -> Iterator[Measure]:
    yield lambda data, **run: measured(folder, limit.throttled(place.dataset(**data)), **run)


@contextmanager
def by_proxy(place: Place, limit: Limit, folder: Path) -> Iterator[Measure]:
    with late(place.port, limit.latency_ms / 1000) as proxy:
        far = replace(place, port=proxy.port)
        yield lambda data, **run: measured(folder, far.dataset(**data), **run)


@contextmanager
def by_traffic_control(place: Place, limit: Limit, folder: Path) -> Iterator[Measure]:
    """rclone's own limit lets through some 4 MiB at once after each pause."""
    with held(place.port, limit.bytes_per_s):
        yield lambda data, **run: measured(folder, place.dataset(**data), **run)


@contextmanager
def by_blkio(place: Place, limit: Limit, folder: Path) -> Iterator[Measure]:
    with throttle_for(folder) as throttle:
        throttle.hold(reads_per_s=limit.reads_per_s, bytes_per_s=limit.bytes_per_s)
        number = len(list(folder.iterdir()))
        yield lambda data, **run: throttle.measured(
            folder / f"held-{number}", place.dataset(**data), **run
        )


ROWS = [
    ("latency", by_throttled, "local"),
    ("latency", by_throttled, "nfs"),  # the replies of NFS share one connection
    ("latency", by_proxy, "s3"),
    ("operations", by_throttled, "local"),
    ("operations", by_throttled, "s3"),
    ("operations", by_throttled, "nfs"),
    ("operations", by_blkio, "local"),
    ("bandwidth", by_throttled, "local"),
    ("bandwidth", by_traffic_control, "s3"),
    ("bandwidth", by_traffic_control, "nfs"),
    ("bandwidth", by_blkio, "local"),
]


@pytest.mark.parametrize(("name", "planting", "place"), ROWS, indirect=["place"])
def test_what_of_the_storage_is_spent(
    name: str, planting: Any, place: Place, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Then the advice is followed, and keeps what it promised."""
    cause = CAUSES[name]
    job = {**cause.job, "reader": {**cause.job.get("reader", {}), **place.direct}}
    with planting(place, cause.limit, tmp_path) as measure:
        doc = measure(cause.data, calibration_s=2.5, **job)
    if planting is not by_proxy:
        assert rate_of(doc) == pytest.approx(cause.rate, rel=0.15)
    gain = cause.asked / rate_of(doc)
    judged(doc, "storage", bound=name, gain=gain, advised=cause.advised, never=cause.never)
    if cause.limit.bytes_per_s:
        # An epoch of 4 s includes 0.2 s until all connections of S3 are busy.
        read = doc.metrics["read_bytes_per_s"].median
        assert read == pytest.approx(cause.limit.bytes_per_s, rel=0.1)
        plateau = doc.job.curve.curve.plateau_bytes_per_s
        assert plateau.value == pytest.approx(cause.limit.bytes_per_s, rel=0.05)
    changed = apply_overrides(job, first_advice(doc).settings)
    alone = {"repetitions": 2, "calibration_s": 0, "ablations": False}
    with planting(place, cause.better, tmp_path) as measure:
        again = measure(cause.packed or cause.data, **alone, **changed)
    followed(doc, rate_of(again), f"{name}, {request.node.callspec.id}")


def test_enough_reads_in_flight_at_the_plateau(tmp_path: Path, place: Place) -> None:
    """Reads of 20 ms, and 200 of them in a second: 32 reads in flight are far beyond the knee at 4.
    More of them would bring nothing.
    """
    doc = measured(
        tmp_path,
        Limit(latency_ms=20, reads_per_s=200).throttled(place.dataset(**FILES)),
        calibration_s=2.5,
        batch_size=16,
        accelerator={"step_time": "20ms"},
        loader={"workers": 2},
        reader={"concurrency": 16},
    )
    judged(doc, "storage", bound="operations", gain=4, never=["concurrency", "workers"])


def test_not_starved_and_storage_binds_all_the_same(tmp_path: Path, place: Place) -> None:
    """18 MB/s of the 25 MB/s asked for keep the accelerator busy for 72 % of the time, and 70 % are
    required: it is not starved, and faster storage would bring 1.39 times the rate. An epoch takes
    6.7 s, so that the time until all connections are busy is little of it.
    """
    data = place.dataset(**SHARDS | {"samples": 2400, "sample_size": {"mean": 50_000}})
    workload: dict[str, Any] = {
        "accelerator": {"step_time": "20ms"},
        "required_accelerator_utilization": 0.7,
    }
    doc = measured(tmp_path, wrapped("throttled", data, bandwidth="18MB"), **workload)
    judged(doc, "storage", gain=25 / 18, rel=0.1, starved=False, advised="faster-storage")
    found = rate_with(tmp_path, wrapped("throttled", data, bandwidth="180MB"), **workload)
    followed(doc, found, "utilization 0.72 where 0.70 is required", slack=0.1)


def test_a_tail_of_slow_reads(tmp_path: Path, make_dataset: Any) -> None:
    """Half of the reads take 2 ms, one in a hundred 200 ms or more, and bandwidth is unlimited.
    Batches of 16 wait for their slowest read: more workers, and so more batches in flight, help.
    """
    url = f"throttled+{make_dataset(**FILES)[1]}?latency=2ms&latency_p99=200ms"
    today = {
        "batch_size": 16,
        "accelerator": {"step_time": "20ms"},
        "loader": {"workers": 2},
        "reader": {"concurrency": 4},
        "epochs": 4,
    }
    doc = measured(tmp_path, url, calibration_s=1.0, **today)
    judged(doc, "storage", bound="stragglers", advised="workers")
    changed = apply_overrides(today, first_advice(doc).settings)
    assert rate_with(tmp_path, url, **changed) > 1.3 * rate_of(doc), first_advice(doc)


# A storage with burst credits


def test_spent_burst_credits(tmp_path: Path, place: Place) -> None:
    """20 MB/s until 160 MB are read, and half of it from then on: the rate falls at second 8."""
    url = wrapped("credited", place.dataset(**SHARDS), bandwidth="20MB", credits="160MB")
    job: dict[str, Any] = {"accelerator": {"kind": "null"}, "loader": {"workers": 2}}
    doc, _ = ran(tmp_path, url, epochs=3, reader=place.direct, **job)
    assert "rate.falls" in findings(doc)
    (found,) = falls(doc)
    assert found.fall.at_s == pytest.approx(160 * MB / (20 * MB), abs=2)
    assert found.fall.share == pytest.approx(0.5, rel=0.1)


def test_a_verdict_rests_on_what_lasts_after_a_burst(tmp_path: Path, make_dataset: Any) -> None:
    """The demand is 25 MB/s. The storage has 30 MB/s until its credits are spent, some of them by
    the calibration, and 15 MB/s from then on: 60 % busy, although its ceiling is 1.2 x the demand.
    """
    url = wrapped("credited", str(make_dataset(**SHARDS)[1]), bandwidth="30MB", credits="330MB")
    job: dict[str, Any] = {"accelerator": {"step_time": "40ms"}, "loader": {"workers": 2}}
    doc, _ = ran(tmp_path, url, calibration_s=0.3, epochs=6, **job)
    assert "rate.falls" in findings(doc)
    judged(doc, "storage")
    verdict = verdict_of(doc)
    assert verdict.measured_samples_per_s == pytest.approx(150, rel=0.1)
    assert verdict.headroom == pytest.approx(0.6, rel=0.1)
    assert (verdict.fed.accelerators, verdict.fed.basis) == (0, "run")
