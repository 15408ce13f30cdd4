"""The storage as the cause: what of it is spent is told apart, and the advice keeps its promise.

The wrapper ``throttled`` has the latency, the operations/s and the bytes/s that are planted, and
its clock is exact. Rows that hold for any storage are repeated on S3 and NFS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.schema.base import apply_overrides
from tests.oracle.places import Place, place, wrapped
from tests.oracle.plants import (
    MB,
    findings,
    first_advice,
    gain_of,
    kept,
    measured,
    note_promise,
    planted,
    promise_of,
    rate_of,
    tried,
    verdict_of,
)

__all__ = ["place"]

LATENT: dict[str, Any] = {
    "batch_size": 16,
    "accelerator": {"step_time": "20ms"},
    "loader": {"workers": 2},
}
"""800 samples/s are asked for. With 20 ms each and c reads in flight in each of 2 workers there are
100 c samples/s.
"""


SMALL_FILES: dict[str, Any] = {"samples": 320, "sample_size": {"mean": 20_000}}
"""One read request is one sample."""

SHARDS: dict[str, Any] = {
    "samples": 600,
    "sample_size": {"mean": 100_000},
    "format": "tar",
    "samples_per_shard": 60,
}
"""60 MB in shards of 6 MB, samples of 100 kB."""


@pytest.fixture(scope="module")
def small_files(make_dataset: Any) -> Path:
    path: Path = make_dataset(**SMALL_FILES)[1]
    return path


def test_too_few_reads_in_flight(tmp_path: Path, small_files: Path) -> None:
    """4 reads of 20 ms in flight are 200 samples/s, a quarter of what is asked for: storage binds
    by its latency, and the advice is more reads in flight. Then it is followed.
    """
    url = f"throttled+{small_files}?latency=20ms"
    today = {**LATENT, "reader": {"concurrency": 2}}
    doc = measured(tmp_path, url, calibration_s=1.5, **today)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.basis, verdict.starved) == ("storage", "tested", True)
    assert verdict.storage_bound == "latency"
    assert gain_of(doc, "storage") == pytest.approx(4, rel=0.15)
    advice = first_advice(doc)
    assert advice.id == "concurrency"
    assert all(other.id != "faster-storage" for other in verdict.advice)
    changed = apply_overrides(today, advice.settings)
    found = tried(tmp_path, url, **changed) / rate_of(doc)
    note_promise("latency 20 ms, 4 reads in flight", promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


def test_enough_reads_in_flight_at_the_plateau(tmp_path: Path, place: Place) -> None:
    """The same latency, and 200 reads/s in all: 32 reads in flight are far beyond the knee at 4.
    More of them would bring nothing.
    """
    doc = measured(
        tmp_path,
        wrapped("throttled", place.dataset(**SMALL_FILES), latency="20ms", iops=200),
        calibration_s=2.5,
        **LATENT,
        reader={"concurrency": 16},
    )
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "operations"
    assert gain_of(doc, "storage") == pytest.approx(4, rel=0.15)
    assert all(advice.id not in ("concurrency", "workers") for advice in verdict.advice)


def test_operations_of_small_files(tmp_path: Path, place: Place) -> None:
    """250 reads/s for all: small files are as fast as that, and the same samples in shards as fast
    as the accelerator takes them.
    """
    size = {"mean": 64 << 10}
    workload = {
        "batch_size": 20,
        "accelerator": {"step_time": "20ms"},
        "reader": {"concurrency": 16},
        "loader": {"workers": 2},
    }
    files = place.dataset(samples=400, sample_size=size)
    doc = measured(
        tmp_path / "files", wrapped("throttled", files, iops=250), calibration_s=2.5, **workload
    )
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "operations"
    assert gain_of(doc, "storage") == pytest.approx(1000 / 250, rel=0.15)
    advice = first_advice(doc)
    assert advice.id == "pack"
    shards = place.dataset(samples=400, sample_size=size, format="tar", samples_per_shard=100)
    packed = measured(
        tmp_path / "packed",
        wrapped("throttled", shards, iops=250),
        repetitions=2,
        calibration_s=0,
        knock_outs=False,
        **workload,
    )
    found = rate_of(packed) / rate_of(doc)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


@pytest.fixture(scope="module")
def shards(make_dataset: Any) -> Path:
    path: Path = make_dataset(**SHARDS)[1]
    return path


def test_bandwidth_is_spent(tmp_path: Path, shards: Path) -> None:
    """40 MB/s of the 100 MB/s asked for, by 8 reads of 4 MiB: no setting brings more. Then the
    bandwidth is what the advice asks for.
    """
    workload: dict[str, Any] = {"accelerator": {"step_time": "10ms"}, "reader": {"direct": True}}
    url = f"throttled+{shards}?bandwidth=40MB"
    doc = measured(tmp_path, url, calibration_s=1.5, **workload)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "bandwidth"
    assert gain_of(doc, "storage") == pytest.approx(2.5, rel=0.15)
    advice = first_advice(doc)
    assert advice.id == "faster-storage"
    assert not advice.settings
    lifted = tried(tmp_path, f"throttled+{shards}?bandwidth=400MB", **workload)
    found = lifted / rate_of(doc)
    note_promise("bandwidth 40 MB/s of 100 MB/s", promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


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
    verdict = verdict_of(doc)
    assert verdict.starved is False
    assert verdict.binds == "storage"
    assert gain_of(doc, "storage") == pytest.approx(25 / 18, rel=0.1)
    advice = first_advice(doc)
    assert advice.id == "faster-storage"
    found = tried(tmp_path, wrapped("throttled", data, bandwidth="180MB"), **workload)
    note_promise(
        "utilization 0.72 where 0.70 is required", promise_of(advice), found / rate_of(doc)
    )
    assert kept(promise_of(advice), found / rate_of(doc), slack=0.1), (advice, found)


def test_spent_burst_credits(tmp_path: Path, place: Place) -> None:
    """20 MB/s until 160 MB are read, and half of it from then on: the rate falls at second 8."""
    with planted():
        doc = measured(
            tmp_path,
            wrapped("credited", place.dataset(**SHARDS), bandwidth="20MB", credits="160MB"),
            repetitions=1,
            calibration_s=0,
            knock_outs=False,
            epochs=4,
            accelerator={"kind": "null"},
            reader=place.direct,
            loader={"workers": 2},
        )
    assert "rate.falls" in findings(doc)
    from iobench.analyse.verdict.rules_ranks import falls

    (found,) = falls(doc)
    assert found.fall.at_s == pytest.approx(160 * MB / (20 * MB), abs=2)
    assert found.fall.share == pytest.approx(0.5, rel=0.1)


def test_a_verdict_rests_on_what_lasts_after_a_burst(tmp_path: Path, make_dataset: Any) -> None:
    """The demand is 25 MB/s. The storage has 30 MB/s until its credits are spent, some of them by
    the calibration, and 15 MB/s from then on: 60 % busy, although its ceiling is 1.2 x the demand.
    """
    with planted():
        doc = measured(
            tmp_path,
            wrapped("credited", str(make_dataset(**SHARDS)[1]), bandwidth="30MB", credits="330MB"),
            repetitions=1,
            calibration_s=0.3,
            knock_outs=False,
            epochs=8,
            accelerator={"step_time": "40ms"},
            loader={"workers": 2},
        )
    assert "rate.falls" in findings(doc)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.measured_samples_per_s == pytest.approx(150, rel=0.1)
    assert verdict.headroom == pytest.approx(0.6, rel=0.1)
    assert verdict.fed is not None
    assert (verdict.fed.accelerators, verdict.fed.basis) == (0, "run")


def test_a_tail_of_slow_reads(tmp_path: Path, small_files: Path) -> None:
    """Half of the reads take 2 ms, one in a hundred 200 ms or more, and bandwidth is unlimited.
    Batches of 16 wait for their slowest read: more workers, and so more batches in flight, help.
    """
    url = f"throttled+{small_files}?latency=2ms&latency_p99=200ms"
    today = {**LATENT, "reader": {"concurrency": 4}, "epochs": 4}
    doc = measured(tmp_path, url, calibration_s=1.0, **today)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "stragglers"
    advice = first_advice(doc)
    assert advice.id == "workers"
    changed = apply_overrides(today, advice.settings)
    found = tried(tmp_path, url, **changed) / rate_of(doc)
    note_promise("2 ms, and 200 ms for the slowest hundredth", promise_of(advice), found)
    assert found > 1.3, (advice, found)
