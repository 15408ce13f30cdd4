"""Reference workloads on a local disk, on two S3 servers and on NFS, by the commands of the README:
an answer, and one within a budget.

On each place accelerators of a modest appetite are fed, and a link of 2 MB/s before the same data
starves hungry ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.places import wrapped
from tests.processes import document, in_process, printed
from tests.servers.nfs import NfsServer, nfs_server
from tests.servers.s3 import S3Server, rclone_s3, s3_environment, swift_s3
from tools.budget_table import rows

__all__ = ["nfs_server", "rclone_s3", "s3_environment", "swift_s3"]

pytestmark = pytest.mark.usefixtures("s3_environment")

QUICK = "--no-knockouts --repeat 1 --calibration 0.1 --set epochs=1 --set loader.workers=1"

WORKLOADS = {
    "resnet50": (24, "sample_size.mean=20kB samples_per_shard=10", "batch_size=4"),
    "unet3d": (
        12,
        "sample_size.mean=150kB sample_size.stdev=10kB sample_size.min=100kB sample_size.max=200kB",
        "batch_size=2 reader.crop=64KiB",
    ),
    "cosmoflow": (20, "sample_size.mean=50kB sample_size.stdev=1kB", "batch_size=4"),
}
"""Datasets, each with its number of samples, and settings that make it and its workload small."""

KINDS = ("local", "rclone", "swift", "nfs")
LATER = [pytest.mark.alone, pytest.mark.nightly]
"""Run by ``make oracles`` alone. Each place has tests of its own."""

ROWS = [
    pytest.param(
        kind,
        name,
        id=f"{kind}-{name}",
        marks=[] if (kind, name) == ("local", "unet3d") else LATER,
    )
    for kind in KINDS
    for name in WORKLOADS
]


def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL or path of an empty place."""
    if kind == "local":
        return str(tmp_path / "data")
    if kind == "nfs":
        server: NfsServer = request.getfixturevalue("nfs_server")
        return server.url(f"/{tmp_path.name}-data")
    s3: S3Server = request.getfixturevalue(f"{kind}_s3")
    return s3.url(f"{tmp_path.name}/data")


def settings(*texts: str) -> str:
    return " ".join(f"--set {each}" for text in texts for each in text.split())


@pytest.mark.parametrize(("kind", "name"), ROWS)
def test_a_workload_runs_anywhere(
    kind: str, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    samples, made, small = WORKLOADS[name]
    where = place(kind, request, tmp_path)
    printed(f"generate {name} --to {where} --samples {samples} {settings(made)}")
    run = f"run {name}-h100 --results {tmp_path}/results {QUICK} {settings(small)} --data"

    modest = settings("accelerator.step_time=250ms required_accelerator_utilization=0.7")
    fed = document(f"{run} {where} {modest}")
    assert (fed["status"], fed["validity"]) == ("ok", "valid")
    verdict = fed["job"]["verdict"]
    assert verdict["starved"] is False, verdict["sentence"]
    # Runs of a few steps: the start of their epochs may bind, and the storage does not.
    assert "storage" not in (verdict["binds"], *verdict["also"]), verdict["sentence"]
    for repetition in fed["job"]["repetitions"]:
        assert repetition["samples"] == samples
        assert repetition["bytes_read"] >= repetition["sample_bytes"] > 0

    slow = wrapped("throttled", where, bandwidth="2MB")
    starved = document(f"{run} {slow} {settings('accelerator.step_time=10ms')}")
    verdict = starved["job"]["verdict"]
    assert verdict["starved"] is True, verdict["sentence"]
    # In an epoch of a few steps much of the wait is that for the first batch.
    assert verdict["binds"] in ("storage", "fill"), verdict["sentence"]
    assert starved["job"]["dataset"]["id"] == fed["job"]["dataset"]["id"]
    assert starved["metrics"]["read_bytes_per_s"]["median"] < 2.3e6

    for doc in (fed, starved):
        assert document(f"report {tmp_path}/results/{doc['run_id']}") == doc
    printed(f"verify {where}")
    printed(f"clean {where}")
    assert in_process("verify", where)[0] == 1  # nothing is left to verify


@pytest.mark.alone
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("workload", "storage", "verb"),
    [
        ("resnet50-h100", "disk", "check"),
        ("cosmoflow-h100", "nfs", "run"),
        ("retinanet-b200", "s3", "run"),
    ],
)
def test_a_workload_has_an_answer_within_its_budget(
    tmp_path: Path, workload: str, storage: str, verb: str
) -> None:
    """Three rows of the table of budgets; ``python -m tools.budget_table`` makes all of them."""
    (row,) = rows(workload, storage, [verb], tmp_path, budget="90s", data=256 << 20)
    assert (row.code, row.error) == (0, "")
    assert row.answer not in ("", "undecided"), row
    assert row.repetitions >= 1
    assert row.kept(90.0), row
