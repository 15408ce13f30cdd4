"""Results of MLPerf Storage, as its tool leaves them, and what is computed from them again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from iobench.ask.submission import is_submission, read_submissions
from iobench.base.errors import DatasetError

# Of a published run of v1.0: 18 hosts with 72 A100, 252,000 files, batches of 7, steps of 0.636 s.
AU = [92.43413956972451, 91.98460154838743]
RATES = [708.0846087475473, 710.657553546465]
TIMES = [357.55, 356.71]


def summary(**changes: Any) -> dict[str, Any]:
    return {
        "start": "2024-08-07T15:56:06.880613",
        "num_accelerators": 72,
        "num_hosts": 18,
        "metric": {
            "train_au_percentage": AU,
            "train_throughput_samples_per_second": RATES,
            "train_io_mean_MB_per_second": 99836.41096104909,
        },
        "num_files_train": 252000,
        "num_samples_per_file": 1,
        "host_memory_GB": [92.6] * 18,
        "data_size_per_host_GB": 1911.0,
        **changes,
    }


CONFIG = {
    "workload": {
        "model": "unet3d",
        "reader": {"batch_size": 7},
        "train": {"computation_time": 0.636},
        "metric": {"au": 0.9},
    }
}


def put(
    folder: Path,
    found: object,
    *,
    config: object = CONFIG,
    stats: str = "per_epoch_stats.json",
    configs: str = "configs",
) -> Path:
    """The files of one run."""
    (folder / configs).mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(found))
    (folder / configs / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / configs / "overrides.yaml").write_text("- workload=unet3d_a100\n- ++x.y=3\n")
    epochs = {
        str(number): {"duration": f"{took + 9.5:.2f}", "ckpt1": {"duration": "9.50"}}
        for number, took in enumerate(TIMES, 1)
    }
    (folder / stats).write_text(json.dumps(epochs))
    return folder


@pytest.mark.parametrize(
    ("place", "stats", "configs"),
    [
        ("closed/org/results/box/unet3d-a100/runs/run1/c013", "per_epoch_stats.json", "configs"),
        (
            "closed/org/results/box/training/unet3d-a100/run/20260721_230353",
            "0_per_epoch_stats.json",
            "dlio_config",
        ),
    ],
    ids=["v1.0", "v3.0"],
)
def test_what_a_run_says(tmp_path: Path, place: str, stats: str, configs: str) -> None:
    put(tmp_path / place, summary(), stats=stats, configs=configs)
    (one,) = read_submissions(tmp_path).found
    (run,) = one.runs
    assert "unet3d-a100" in one.name
    assert "run" not in one.name.split("/")
    assert (run.workload, run.hosts, run.accelerators, run.required) == ("unet3d_a100", 18, 72, 0.9)
    assert run.utilizations == pytest.approx([each / 100 for each in AU])
    # X t / (B N): 708.08 x 0.636 s of the 7 x 72 samples that are taken at once.
    assert run.by_rate == pytest.approx([0.893535, 0.896782], rel=1e-5)
    # All 252,000 samples, over the time of the epoch without its checkpoint.
    assert run.whole == pytest.approx([0.889386, 0.891481], rel=1e-5)
    assert run.bytes_per_s == pytest.approx(104.686e9, rel=1e-4)
    assert one.falls_short
    (fact,) = one.facts
    assert "89.0 %" in fact
    assert "92.2 %" in fact


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"num_accelerators": -1, "metric": {}}',
        '{"num_accelerators": 2, "metric": {"train_au_percentage": "much"}}',
        "[" * 100_000,
    ],
)
def test_a_summary_that_is_none_is_named_and_left_out(tmp_path: Path, text: str) -> None:
    put(tmp_path / "good/run1", summary())
    bad = tmp_path / "bad/run1"
    bad.mkdir(parents=True)
    (bad / "summary.json").write_text(text)
    found = read_submissions(tmp_path)
    assert len(found.found) == 1
    (why,) = found.left_out
    assert why.startswith("bad/run1/summary.json: ")
    assert "\n" not in why


@pytest.mark.parametrize(
    "text",
    [
        "workload: 3",
        "workload: {reader: {batch_size: 0}, train: {computation_time: true}}",
        "workload: {reader: {batch_size: 7}, train: {computation_time: 1s}}",
        "[" * 100_000,
        "a: &a [x, x]\nb: [*a",
        "\xff",
    ],
)
def test_a_configuration_that_does_not_help_is_not_used(tmp_path: Path, text: str) -> None:
    folder = put(tmp_path / "run1", summary())
    (folder / "configs/config.yaml").write_bytes(text.encode("latin-1"))
    (one,) = read_submissions(tmp_path).found
    assert one.runs[0].whole == one.runs[0].by_rate == ()
    assert not one.falls_short


def test_nothing_to_read(tmp_path: Path) -> None:
    assert not is_submission(tmp_path)
    with pytest.raises(DatasetError, match="no result of MLPerf Storage"):
        read_submissions(tmp_path)
