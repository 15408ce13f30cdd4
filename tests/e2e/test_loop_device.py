"""A dataset in an image whose pages this host's cache holds: no cold read of it is proven."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Call
from tests.processes import wait_until

WORKLOAD = """
name: small
dataset: demo
batch_size: 4
accelerator: {kind: emulated, step_time: 2ms}
loader: {workers: 1}
"""


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The root of an ext4 file system in a file, and its loop device."""
    image, mount = tmp_path / "x.img", tmp_path / "mnt"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is missing")
    for words in (
        ("mkfs.ext4", "-q", "-F", "-m", "0", image),
        ("mount", "-o", "loop", image, mount),
    ):
        made = subprocess.run(words, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"no loop device: {made.stderr.strip()}")
    named = ("findmnt", "-n", "-o", "SOURCE", mount)
    device = subprocess.run(named, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield mount, device
    finally:
        gc.collect()  # a run in this process may leave cycles of objects with open files
        wait_until(
            lambda: not subprocess.run(("umount", mount), capture_output=True, check=False)
            .returncode,
            "the file system is in use",
        )  # fmt: skip


def test_an_image_in_the_page_cache_is_not_cold(
    mounted: tuple[Path, str], tmp_path: Path, call: Call
) -> None:
    mount, device = mounted
    (tmp_path / "small.yaml").write_text(WORKLOAD)
    size = ("--set", "samples=64", "--set", "sample_size.mean=20kB")
    assert call("generate", "demo", "--to", mount / "data", *size, "--quiet")[0] == 0
    run = ("run", tmp_path / "small.yaml", "--data", mount / "data", "--repeat", 1)
    run += ("--calibration", "0s", "--no-knockouts", "--results", tmp_path / "results", "--json")
    for direct in ("true", "false"):
        code, out, err = call(*run, "--set", f"reader.direct={direct}", "--quiet")
        assert (code, err) == (0, ""), err
        found = json.loads(out)
        assert found["validity"] == "unknown"
        assert "cache.loop" in {each["rule"] for each in found["findings"]}
    code, out, _ = call("doctor", mount, "--json")
    assert code == 0
    assert "storage.loop" in {each["rule"] for each in json.loads(out)["findings"]}
    changed = subprocess.run(
        ("losetup", "--direct-io=on", device), capture_output=True, check=False
    )
    if changed.returncode:
        return  # the file system of the image has no direct IO
    code, out, err = call(*run, "--quiet")
    assert (code, err) == (0, ""), err
    found = json.loads(out)
    assert "cache.loop" not in {each["rule"] for each in found["findings"]}
