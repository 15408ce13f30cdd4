"""The kernel's own throttle (cgroup v1 blkio) as the truth: the whole tool, fio included, on the
real disk at a known speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BLKIO = Path("/sys/fs/cgroup/blkio")
MB = 1_000_000
LIMIT = 100 * MB


def _disk_of(path: Path) -> str:
    """major:minor of the whole disk behind ``path``; the throttle knows no partitions. Empty where
    there is none.
    """
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not block.exists():
        return ""
    real = block.resolve()
    disk = real.parent if (real / "partition").exists() else real
    return (disk / "dev").read_text().strip()


@pytest.fixture
def throttled(tmp_path: Path) -> Iterator[Path]:
    """A cgroup whose reads of the disk behind ``tmp_path`` are held to LIMIT bytes/s."""
    disk = _disk_of(tmp_path)
    if not disk:
        pytest.skip(
            f"{tmp_path} lies on no block device: the oracle against the kernel's throttle did NOT "
            "run"
        )
    if not (BLKIO / "blkio.throttle.read_bps_device").exists():
        pytest.skip(
            f"{BLKIO} is no cgroup v1 blkio hierarchy: the oracle against the kernel's throttle "
            "did NOT run"
        )
    group = BLKIO / f"iobench-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(
            f"{BLKIO} is not writable ({error.strerror}): the oracle against the kernel's throttle "
            "did NOT run"
        )
    try:
        (group / "blkio.throttle.read_bps_device").write_text(f"{disk} {LIMIT}\n")
        yield group
    finally:
        deadline = time.monotonic() + 10
        while True:
            try:
                group.rmdir()
                break
            except OSError:  # a process of the run is still leaving
                assert time.monotonic() < deadline, f"{group} is still in use"
                time.sleep(0.1)


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
