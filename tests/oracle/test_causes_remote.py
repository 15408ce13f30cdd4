"""The storage as the cause where fio can't go: S3 (rclone behind a proxy that delays requests)
and NFS (nfs-ganesha, version 4).

Bandwidths are held by ``throttled``: rclone's own limit lets through some 4 MiB at once after each
pause, which is more than a short window holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.generator import generate
from iobench.schema.base import apply_overrides, build
from iobench.schema.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.oracle.plants import (
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
from tests.servers.nfs import NfsServer, ganesha_v4
from tests.servers.s3 import BUCKET, S3Server, rclone_server, s3_environment

__all__ = ["s3_environment"]

pytestmark = pytest.mark.usefixtures("s3_environment")

FILES = {"name": "demo", "samples": 400, "sample_size": {"mean": 20_000}}
SHARDS = {
    "name": "demo",
    "samples": 400,
    "sample_size": {"mean": 100_000},
    "format": "tar",
    "samples_per_shard": 40,
}

LATENT: dict[str, Any] = {
    "batch_size": 16,
    "accelerator": {"step_time": "40ms"},
    "loader": {"workers": 2},
}
"""400 samples/s are asked for."""


def written(folder: Path, spec: dict[str, Any]) -> None:
    generate(build(DatasetSpec, spec, where="oracle"), LocalStorage(folder), workers=0)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Objects ``files/`` and ``shards/``."""
    folder = tmp_path_factory.mktemp("causes-s3") / "server"
    for name, spec in (("files", FILES), ("shards", SHARDS)):
        written(folder / "data" / BUCKET / name, spec)
    with rclone_server(folder) as server:
        yield server


def followed(doc: Any, results: Path, url: str, workload: dict[str, Any], case: str) -> None:
    """The first advice is concurrency; what it promises is found."""
    advice = first_advice(doc)
    assert advice.id == "concurrency"
    changed = apply_overrides(workload, advice.settings)
    found = tried(results, url, **changed) / rate_of(doc)
    note_promise(case, promise_of(advice), found)
    assert kept(promise_of(advice), found, slack=0.15), (advice, found)


def test_latency_of_s3(tmp_path: Path, bucket: S3Server) -> None:
    """Each GET waits 40 ms on its way: 4 in flight are 100 objects/s, a quarter of what is asked
    for.
    """
    today = {**LATENT, "reader": {"concurrency": 2}}
    with late(bucket.port, 0.04) as proxy:
        url = f"s3://{BUCKET}/files?endpoint=http://127.0.0.1:{proxy.port}"
        doc = measured(tmp_path, url, calibration_s=1.5, max_steps=10, **today)
        verdict = verdict_of(doc)
        assert (verdict.binds, verdict.starved) == ("storage", True)
        assert verdict.storage_bound == "latency"
        assert gain_of(doc, "storage") == pytest.approx(400 / rate_of(doc), rel=0.15)
        followed(doc, tmp_path, url, {**today, "max_steps": 25}, "S3, 40 ms, 4 GETs in flight")


def test_bandwidth_of_s3(tmp_path: Path, bucket: S3Server) -> None:
    assert_bandwidth(tmp_path, f"throttled+{bucket.url('shards')}&bandwidth=20MB")


def assert_bandwidth(results: Path, url: str) -> None:
    """20 MB/s of the 50 MB/s asked for; 4 MB are in flight of the 40 MB of an epoch."""
    workload: dict[str, Any] = {
        "accelerator": {"step_time": "20ms"},
        "reader": {"concurrency": 2},
    }
    doc = measured(results, url, calibration_s=1.5, **workload)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "bandwidth"
    assert gain_of(doc, "storage") == pytest.approx(2.5, rel=0.15)
    assert first_advice(doc).id == "faster-storage"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NfsServer]:
    with ganesha_v4(tmp_path_factory.mktemp("causes-nfs") / "server") as server:
        for name, spec in (("files", FILES), ("shards", SHARDS)):
            written(server.root / name, spec)
        yield server


def test_latency_of_nfs(tmp_path: Path, export: NfsServer) -> None:
    """20 ms are added to each read: 2 in flight are 100 files/s, a quarter of what is asked for."""
    today = {**LATENT, "reader": {"concurrency": 1}}
    url = f"throttled+{export.url('export/files', version=4)}&latency=20ms"
    doc = measured(tmp_path, url, calibration_s=1.5, max_steps=10, **today)
    verdict = verdict_of(doc)
    assert (verdict.binds, verdict.starved) == ("storage", True)
    assert verdict.storage_bound == "latency"
    followed(doc, tmp_path, url, {**today, "max_steps": 25}, "NFS, 20 ms, 2 reads in flight")


def test_bandwidth_of_nfs(tmp_path: Path, export: NfsServer) -> None:
    url = export.url("export/shards", version=4)
    assert_bandwidth(tmp_path, f"throttled+{url}&bandwidth=20MB")
