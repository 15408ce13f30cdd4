"""The storage as the cause where fio can't go: S3 (rclone) and NFS (nfs-ganesha, version 4), slowed
by what stands in front of the server.

A proxy delays the requests of HTTP. The replies of NFS share one connection, so their delay is that
of ``throttled``. The kernel holds what the server sends to a bandwidth. (rclone's own limit lets
through some 4 MiB at once after each pause, which is more than a short window holds.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iobench.schema.base import apply_overrides
from tests.oracle.places import Place, served, wrapped
from tests.oracle.plants import (
    MB,
    first_advice,
    gain_of,
    kept,
    late,
    measured,
    note_promise,
    promise_of,
    rate_of,
    tried,
    verdict_of,
)
from tests.servers.bandwidth import held

__all__ = ["served"]

FILES: dict[str, Any] = {"samples": 400, "sample_size": {"mean": 20_000}}
SHARDS: dict[str, Any] = {
    "samples": 800,
    "sample_size": {"mean": 100_000},
    "format": "tar",
    "samples_per_shard": 40,
}

LATENCY_S = 0.04


@contextmanager
def delayed(served: Place) -> Iterator[str]:
    """The URL of FILES, of which each read takes LATENCY_S."""
    url = served.dataset(**FILES)
    if not url.startswith("s3:"):
        yield wrapped("throttled", url, latency=f"{LATENCY_S * 1000:g}ms")
        return
    with late(served.port, LATENCY_S) as proxy:
        yield replace(served, port=proxy.port).dataset(**FILES)


def test_latency(tmp_path: Path, served: Place) -> None:
    """Each read waits 40 ms on its way: 4 in flight are 100 objects/s, a quarter of what is asked
    for. Then the advice is followed.
    """
    today: dict[str, Any] = {
        "batch_size": 16,
        "accelerator": {"step_time": "40ms"},
        "loader": {"workers": 2},
        "reader": {"concurrency": 2},
    }
    with delayed(served) as url:
        doc = measured(tmp_path, url, calibration_s=1.5, max_steps=10, **today)
        verdict = verdict_of(doc)
        assert (verdict.binds, verdict.starved) == ("storage", True)
        assert verdict.storage_bound == "latency"
        assert gain_of(doc, "storage") == pytest.approx(400 / rate_of(doc), rel=0.15)
        advice = first_advice(doc)
        assert advice.id == "concurrency"
        changed = apply_overrides({**today, "max_steps": 25}, advice.settings)
        found = tried(tmp_path, url, **changed) / rate_of(doc)
    case = f"{url.partition('://')[0].rpartition('+')[2]}, 40 ms, 4 reads in flight"
    note_promise(case, promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


def test_bandwidth(tmp_path: Path, served: Place) -> None:
    """20 MB/s of the 50 MB/s asked for; 4 MB are in flight of the 80 MB of an epoch."""
    workload: dict[str, Any] = {"accelerator": {"step_time": "20ms"}, "reader": {"concurrency": 2}}
    url = served.dataset(**SHARDS)
    with held(served.port, 20 * MB):
        doc = measured(tmp_path, url, calibration_s=2.5, **workload)
    verdict = verdict_of(doc)
    assert doc.job.curve is not None
    plateau = doc.job.curve.curve.plateau_bytes_per_s
    assert plateau is not None
    assert plateau.value == pytest.approx(20 * MB, rel=0.05)
    # An epoch of 4 s includes 0.2 s until all connections of S3 are busy.
    assert doc.metrics["read_bytes_per_s"].median == pytest.approx(20 * MB, rel=0.1)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "bandwidth"
    assert gain_of(doc, "storage") == pytest.approx(2.5, rel=0.15)
    advice = first_advice(doc)
    assert advice.id == "faster-storage"
    with held(served.port, 200 * MB):
        found = tried(tmp_path, url, **workload) / rate_of(doc)
    case = f"20 of 50 MB/s by the kernel, {url.partition(':')[0]}"
    note_promise(case, promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)
