"""Runs of formats whose samples do not lie one by one: rows of tables, and tokens of a map."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import document, printed


def test_columns_of_rows_are_fetched_alone(tmp_path: Path) -> None:
    """160 bytes of a row of 761, so raw storage is good for as many more rows."""
    root = tmp_path / "data"
    printed(f"generate dlrm --samples 24576 --set samples_per_shard=12288 --to {root}")
    doc = document(
        f"run dlrm-b200 --data {root} --repeat 1 --calibration 0.2 --no-knockouts "
        f"--set loader.workers=1 --results {tmp_path}/results"
    )
    (repetition,) = doc["job"]["repetitions"]
    assert repetition["samples"] == 24576
    assert repetition["sample_bytes"] == pytest.approx(160 * 24576, rel=0.02)
    assert repetition["read_amplification"] >= 1
    raw = doc["job"]["ceilings"]["storage_raw"]
    assert raw["bytes_per_s"] is None or raw["samples_per_s"] > 3 * raw["bytes_per_s"] / 761


@pytest.mark.parametrize("workers", [2, 0])
def test_each_epoch_through_a_map_begins_cold(tmp_path: Path, workers: int) -> None:
    root = tmp_path / "data"
    printed(f"generate llm-tokens --samples 800 --to {root}")
    doc = document(
        f"run llm-pretrain --data {root} --repeat 1 --calibration 0 --no-knockouts --set epochs=2 "
        f"--set max_steps=null --set accelerator.step_time=1ms --set loader.workers={workers} "
        "--set required_accelerator_utilization=0.01 --accelerators 2 "
        f"--results {tmp_path}/results"
    )
    (repetition,) = doc["job"]["repetitions"]
    assert doc["validity"] == "valid"
    assert [epoch["residency_before"] for epoch in repetition["epochs"]] == [0, 0]
    assert repetition["samples"] == 2 * 800
    assert (doc["job"]["loader"]["access"], doc["job"]["loader"]["direct"]) == ("random", False)
    assert repetition["read_amplification"] == 1  # pages are the kernel's
