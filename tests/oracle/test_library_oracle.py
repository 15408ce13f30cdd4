"""A storage of known speed below somebody else's loader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")

MB = 1_000_000


@pytest.mark.parametrize(
    ("kind", "form"),
    [("torch-map", "files"), ("webdataset", "tar")],
)
def test_storage_of_known_speed_binds_through_a_library(
    kind: str, form: str, make_dataset: Any, tmp_path: Path, capfd: Any
) -> None:
    """50 MB at 50 MB/s; the accelerator asks for 100 MB/s."""
    shards = {} if form == "files" else {"samples_per_shard": 10}
    _, root = make_dataset(samples=100, sample_size={"mean": MB // 2}, format=form, **shards)
    workload = tmp_path / "w.yaml"
    workload.write_text(
        "{name: w, dataset: demo, batch_size: 10, accelerator: {step_time: 50ms}, "
        "reader: {shuffle: false},"
        f" loader: {{kind: {kind}}}}}\n"
    )
    data = f"throttled+{root}?bandwidth=50MB/s"
    code = main(
        [
            "run",
            str(workload),
            "--data",
            data,
            "--repeat",
            "1",
            "--calibration",
            "0.5",
            "--results",
            str(tmp_path),
            "--json",
            "--quiet",
        ]
    )
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    doc = json.loads(out)
    assert doc["job"]["verdict"]["binds"] == "storage"
    # The throttle's burst and two workers' first reads are free; noise only slows.
    assert doc["job"]["repetitions"][0]["read_bytes_per_s"] == pytest.approx(50 * MB, rel=0.1)
    assert (
        doc["job"]["repetitions"][0]["bytes_read"],
        doc["job"]["repetitions"][0]["read_amplification"],
    ) == (
        None,
        None,
    )
    assert kind in doc["job"]["repetitions"][0]["not_measured"]["read_amplification"]
    assert main(["report", str(tmp_path / doc["run_id"]), "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == doc
    assert doc["job"]["ceilings"]["prep"]["samples_per_s"] > 200
    assert doc["job"]["ceilings"]["harness"]["not_measured"]
    assert doc["job"]["loader"]["delivery"] == {
        "delivered": 100, "missing": 0, "repeated": 0, "unknown": 0, "of": 100, "whole_epoch": True
    }  # fmt: skip
    assert doc["job"]["loader"]["shuffle"]["distance"] is not None
