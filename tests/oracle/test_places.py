"""The same three workloads on a local disk, on two S3 servers and on NFS, by the commands that the
README shows.

On each place accelerators of a modest appetite are fed, and a link of 2 MB/s before the same data
starves hungry ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from iobench.cli.main import main
from tests.e2e.test_s3 import QUICK, iobench, settings
from tests.servers.nfs import NfsServer, nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment, swift_s3

__all__ = ["iobench", "nfs_server", "rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")


class Workload(NamedTuple):
    """A reference workload, small enough for a test: what its dataset and its run are told."""

    name: str
    dataset: str
    samples: int
    made: tuple[str, ...]
    run: tuple[str, ...]


WORKLOADS = (
    Workload(
        "resnet50-h100",
        "resnet50",
        24,
        ("sample_size.mean=20kB", "samples_per_shard=10"),
        ("batch_size=4",),
    ),
    Workload(
        "unet3d-h100",
        "unet3d",
        12,
        (
            "sample_size.mean=150kB",
            "sample_size.stdev=10kB",
            "sample_size.min=100kB",
            "sample_size.max=200kB",
        ),
        ("batch_size=2", "reader.crop=64KiB"),
    ),
    Workload(
        "cosmoflow-h100",
        "cosmoflow",
        20,
        ("sample_size.mean=50kB", "sample_size.stdev=1kB"),
        ("batch_size=4",),
    ),
)
Place = Callable[[str], str]
"""A name -> the URL or path of an empty place of that name."""


def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "local":
        return lambda name: str(tmp_path / name)
    if kind == "nfs":
        server: NfsServer = request.getfixturevalue("nfs_server")
        return lambda name: server.url(f"/{tmp_path.name}-{name}")
    s3: S3Server = request.getfixturevalue(f"{kind}_s3")
    return lambda name: s3.url(f"{tmp_path.name}/{name}")


LATER = {
    (kind, workload.name)
    for kind in ("local", "rclone", "swift", "nfs")
    for workload in WORKLOADS
    if (kind, workload.name) not in (("local", "unet3d-h100"), ("rclone", "resnet50-h100"))
}
"""Run by ``make oracles`` alone. Each place has tests of its own."""

ROWS = [
    pytest.param(
        kind,
        workload,
        id=f"{kind}-{workload.name}",
        marks=[pytest.mark.alone, pytest.mark.nightly] if (kind, workload.name) in LATER else [],
    )
    for kind in ("local", "rclone", "swift", "nfs")
    for workload in WORKLOADS
]


@pytest.mark.parametrize(("kind", "workload"), ROWS)
def test_a_workload_runs_anywhere(
    kind: str,
    workload: Workload,
    request: pytest.FixtureRequest,
    iobench: Callable[..., str],
    tmp_path: Path,
) -> None:
    where = place(kind, request, tmp_path)(workload.dataset)
    iobench(
        "generate",
        workload.dataset,
        "--to",
        where,
        "--samples",
        str(workload.samples),
        "--quiet",
        *settings(*workload.made),
    )
    results = ("--results", str(tmp_path / "results"))

    modest = settings(
        *workload.run, "accelerator.step_time=250ms", "required_accelerator_utilization=0.7"
    )
    fed = json.loads(iobench("run", workload.name, "--data", where, *results, *QUICK, *modest))
    assert (fed["status"], fed["validity"]) == ("ok", "valid")
    verdict = fed["job"]["verdict"]
    assert verdict["starved"] is False, verdict["sentence"]
    # Runs of a few steps: the start of their epochs may bind, and the storage does not.
    assert "storage" not in (verdict["binds"], *verdict["also"]), verdict["sentence"]
    for repetition in fed["job"]["repetitions"]:
        assert repetition["samples"] == workload.samples
        assert repetition["bytes_read"] >= repetition["sample_bytes"] > 0

    slow = f"throttled+{where}{'&' if '?' in where else '?'}bandwidth=2MB"
    starved = json.loads(
        iobench(
            "run",
            workload.name,
            "--data",
            slow,
            *results,
            *QUICK,
            *settings(*workload.run, "accelerator.step_time=10ms"),
        )
    )
    verdict = starved["job"]["verdict"]
    assert verdict["starved"] is True, verdict["sentence"]
    # In an epoch of a few steps much of the wait is that for the first batch.
    assert verdict["binds"] in ("storage", "fill"), verdict["sentence"]
    assert starved["job"]["dataset"]["id"] == fed["job"]["dataset"]["id"]
    assert starved["metrics"]["read_bytes_per_s"]["median"] < 2.3e6

    for run in (tmp_path / "results").iterdir():
        assert json.loads(iobench("report", str(run), "--format", "json"))["job"]["verdict"] in (
            fed["job"]["verdict"],
            starved["job"]["verdict"],
        )
    iobench("verify", where, "--quiet")
    iobench("clean", where)
    found = main(["verify", where])  # nothing is left to verify
    assert found == 1
