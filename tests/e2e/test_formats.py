"""The workloads of the other formats, scaled down, from the command line: generate, run, report,
verify, clean.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes import completed

Found = subprocess.CompletedProcess[str]


def ok(*arguments: str | Path) -> str:
    found = completed(*arguments, "--quiet")
    assert (found.returncode, found.stderr) == (0, ""), found
    return found.stdout


def sets(*keys: str) -> list[str]:
    return [text for key in keys for text in ("--set", key)]


SHAPES: dict[str, tuple[list[str], list[str]]] = {
    "dlrm-b200": (
        ["dlrm", "--samples", "24576", *sets("samples_per_shard=12288")],
        sets("loader.workers=2"),
    ),
    "flux-b200": (
        ["flux", "--samples", "96", *sets("sample_size.mean=100000", "block_size=700000")],
        sets("accelerator.step_time=50ms"),
    ),
    "deepcam": (
        ["deepcam", "--samples", "40", *sets("sample_size.mean=500000")],
        sets("loader.workers=1"),
    ),
    "oc20": (
        ["oc20", "--samples", "60", *sets("sample_size.mean=30000", "samples_per_shard=30")],
        sets("loader.workers=1"),
    ),
    "llm-pretrain": (
        ["llm-tokens", "--samples", "4000"],
        sets("accelerator.step_time=2ms", "max_steps=400"),
    ),
}


SLOW = {"oc20"}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sorted(SHAPES)],
)
def test_a_workload_runs(name: str, tmp_path: Path) -> None:
    generate, change = SHAPES[name]
    root, results = tmp_path / "data", tmp_path / "results"
    ok("generate", *generate, "--to", root)
    printed = ok(
        "run",
        name,
        "--data",
        root,
        "--repeat",
        "1",
        "--calibration",
        "0.2",
        *change,
        "--results",
        results,
        "--json",
    )
    document: dict[str, Any] = json.loads(printed)
    assert document["status"] == "ok"
    (repetition,) = document["job"]["repetitions"]
    spec = document["job"]["dataset"]["spec"]
    assert repetition["samples"] == min(
        int(generate[2]),
        document["job"]["workload"]["batch_size"]
        * (document["job"]["workload"]["max_steps"] or 10**9),
    )
    stored = {"dlrm-b200": 160}.get(name, spec["sample_size"]["mean"]) * repetition["samples"]
    assert repetition["sample_bytes"] == pytest.approx(stored, rel=0.02)
    assert (
        1 <= repetition["read_amplification"] == document["metrics"]["read_amplification"]["median"]
    )
    assert not [finding for finding in document["findings"] if finding["rule"] == "data.mismatch"]
    for ceiling in ("fetch", "prep", "harness"):
        assert document["job"]["ceilings"][ceiling]["samples_per_s"], ceiling
    if name == "llm-pretrain":
        assert document["job"]["loader"]["access"] == "random"
        assert document["job"]["loader"]["direct"] is False
        assert repetition["read_amplification"] == 1  # pages are the kernel's
    if name == "dlrm-b200":
        raw = document["job"]["ceilings"]["storage_raw"]
        if raw["bytes_per_s"]:
            # 160 bytes of a row are fetched, so raw storage is good for as many more rows.
            assert raw["samples_per_s"] > 3 * raw["bytes_per_s"] / 761
    (directory,) = results.iterdir()
    assert "read amplification" in ok("report", directory)
    ok("verify", root)
    ok("clean", root)
    assert not root.exists()


@pytest.mark.parametrize("change", ["loader.workers=2", "loader.workers=0"])
def test_each_epoch_through_a_map_begins_cold(tmp_path: Path, change: str) -> None:
    root = tmp_path / "data"
    ok("generate", "llm-tokens", "--samples", "800", "--to", root)
    short = sets(
        "epochs=2",
        "max_steps=null",
        "accelerator.step_time=1ms",
        "required_accelerator_utilization=0.01",
        change,
    )
    where = ("--results", tmp_path / "results", "--json", "--accelerators", "2")
    document = json.loads(
        ok(
            "run",
            "llm-pretrain",
            "--data",
            root,
            "--repeat",
            "1",
            "--calibration",
            "0",
            *short,
            *where,
        )
    )
    (repetition,) = document["job"]["repetitions"]
    assert document["validity"] == "valid"
    assert [epoch["residency_before"] for epoch in repetition["epochs"]] == [0, 0]
    assert repetition["samples"] == 2 * 800


def test_row_groups_at_random_are_a_finding(tmp_path: Path) -> None:
    root = tmp_path / "data"
    change = sets(
        "format=parquet",
        "content=raw",
        "sample_size.mean=20000",
        "block_size=400000",
        "samples_per_shard=400",
    )
    ok("generate", "demo", "--samples", "1600", "--to", root, *change)
    found = {}
    for access in ("random", "sequential"):
        keys = sets(
            "batch_size=4",
            "epochs=1",
            f"reader.access={access}",
            "reader.crop=null",
            "accelerator.step_time=1ms",
        )
        printed = ok(
            *("run", "demo", "--data", root, "--repeat", "1", "--calibration", "0", *keys),
            *("--results", tmp_path / "results", "--json"),
        )
        document = json.loads(printed)
        finding = [f for f in document["findings"] if f["rule"] == "read.amplification"]
        found[access] = document["metrics"]["read_amplification"]["median"], finding
    ratio, (finding,) = found["random"]
    assert 15 < ratio < 22  # 20 rows in a row group
    assert "reader.access=sequential" in finding["remedy"]
    assert "block_size" in finding["remedy"]
    ratio, finding = found["sequential"]
    assert 1 <= ratio < 1.3  # footers, and groups that two workers share
    assert not finding


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            ["reader.columns=50"],
            "reader.columns is 50",
        ),
        (
            ["reader.mmap=true", "reader.direct=true"],
            "reader.mmap reads through the page cache, reader.direct past it",
        ),
        (
            ["reader.columns=3", "reader.check=content"],
            "reader.check=content needs all columns of a sample",
        ),
    ],
)
def test_what_the_data_can_not_give_is_one_line_and_leaves_nothing(
    tmp_path: Path, change: list[str], why: str
) -> None:
    root = tmp_path / "data"
    ok(
        "generate",
        "demo",
        "--samples",
        "20",
        "--to",
        root,
        *sets("format=parquet", "content=raw", "columns=10", "sample_size.mean=2000"),
    )
    found = completed(
        "run",
        "demo",
        "--data",
        root,
        *sets(*change, "reader.crop=null"),
        "--results",
        tmp_path / "results",
        "--quiet",
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert why in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()
