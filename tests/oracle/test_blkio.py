"""The kernel's own throttle (cgroup v1 blkio) as the truth: the whole tool, fio included, on the
real disk at a known speed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.plants import MB, throttle_for

LIMIT = 100 * MB


@pytest.fixture
def throttled(tmp_path: Path) -> Iterator[Path]:
    """A cgroup whose reads of the disk behind ``tmp_path`` are held to LIMIT bytes/s."""
    with throttle_for(tmp_path) as throttle:
        throttle.hold(bytes_per_s=LIMIT)
        yield throttle.group


def _run(group: Path, *arguments: str | Path) -> dict[str, Any]:
    """``iobench run --json`` in a process that enters the cgroup before it becomes iobench; its
    children inherit it.
    """
    enter = (
        f"import os,sys; open({str(group / 'cgroup.procs')!r},'w').write(str(os.getpid())); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    command = [
        sys.executable,
        "-c",
        enter,
        sys.executable,
        "-m",
        "iobench",
        "run",
        *map(str, arguments),
        "--json",
        "--quiet",
    ]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    document: dict[str, Any] = json.loads(found.stdout)
    return document


def test_the_disk_at_the_kernels_speed(tmp_path: Path, throttled: Path, make_dataset: Any) -> None:
    """200 MB at 100 MB/s; the accelerator asks for 1 MB x 10 each 50 ms = 200 MB/s, so it is busy
    for half of the time.
    """
    _, root = make_dataset(
        samples=200, sample_size={"mean": MB}, format="tar", samples_per_shard=20
    )
    workload = tmp_path / "oracle.yaml"
    workload.write_text(
        "{name: oracle, dataset: demo, batch_size: 10, accelerator: {step_time: 50ms}, reader: "
        "{direct: true}}\n"
    )
    doc = _run(
        throttled, workload, "--data", root, "--results", tmp_path / "results",
        "--repeat", "1", "--calibration", "2",
    )  # fmt: skip
    assert doc["job"]["loader"]["direct"] is True
    assert doc["job"]["repetitions"][0]["residency_before"] == 0
    assert doc["metrics"]["read_bytes_per_s"]["median"] == pytest.approx(LIMIT, rel=0.05)
    # What is in flight at the ends of a window (2 workers x 4 reads x 4 MiB) is a good part of the
    # 200 MB that a window of 2 s holds.
    assert doc["job"]["ceilings"]["fetch"]["bytes_per_s"] == pytest.approx(LIMIT, rel=0.1)
    raw = doc["job"]["ceilings"]["storage_raw"]
    if raw["bytes_per_s"] is None:
        assert "fio" in raw["not_measured"]
    else:
        assert raw["bytes_per_s"] == pytest.approx(LIMIT, rel=0.1)
    assert doc["metrics"]["accelerator_utilization_sustained"]["median"] == pytest.approx(
        0.5, abs=0.02
    )
    assert doc["job"]["verdict"]["binds"] == "storage", doc["job"]["verdict"]["sentence"]
    assert doc["job"]["verdict"]["starved"] is True
    assert doc["job"]["verdict"]["headroom"] == pytest.approx(
        0.5, rel=0.1
    )  # from the fetch ceiling


def test_buffered_reads_of_evicted_files_are_held_too(
    tmp_path: Path, throttled: Path, make_dataset: Any
) -> None:
    """Read-ahead may fetch more than was asked for, so only what the page cache cannot hide is
    asserted: it is not faster than the disk.
    """
    _, root = make_dataset(
        samples=200, sample_size={"mean": MB}, format="tar", samples_per_shard=20
    )
    workload = tmp_path / "oracle.yaml"
    workload.write_text(
        "{name: oracle, dataset: demo, batch_size: 10, accelerator: {step_time: 50ms}, reader: "
        "{direct: false}}\n"
    )
    doc = _run(
        throttled, workload, "--data", root, "--results", tmp_path / "results",
        "--repeat", "2", "--calibration", "1",
    )  # fmt: skip
    for repetition in doc["job"]["repetitions"]:  # the second finds the first one's pages gone
        assert repetition["residency_before"] <= 0.01
        assert 0.7 * LIMIT <= repetition["read_bytes_per_s"] <= 1.1 * LIMIT
    assert doc["job"]["verdict"]["binds"] == "storage", doc["job"]["verdict"]["sentence"]
