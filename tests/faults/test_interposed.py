"""Libraries that answer system calls in place of the C library: figures that rest on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from iobench.base.pagecache import unwritten_bytes
from iobench.judge.checkpoint import proven
from iobench.record.run import load_run
from tests.processes import completed
from tests.servers.process import missing

NO_SYNC = "int fsync(int fd) { return 0; } int fdatasync(int fd) { return 0; }"
NO_ADVICE = """
int posix_fadvise(int fd, long offset, long length, int advice) { return 0; }
int posix_fadvise64(int fd, long offset, long length, int advice) { return 0; }
"""


def preloading(source: str, folder: Path) -> dict[str, str]:
    """An environment whose processes load a library that is made of this source."""
    compiler = shutil.which("cc") or missing("a C compiler")
    (folder / "lying.c").write_text(source)
    library = folder / "lying.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "lying.c")]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_PRELOAD": str(library)}


def measured(folder: Path, *words: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """The exit code, and the level of each finding, by its rule. ``env``: of a process."""
    words = (*words, "--results", str(folder / "results"), "--json")
    if env is None:
        done = completed(*words)
    else:
        command = [sys.executable, "-m", "iobench", *words]
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.stdout, done.stderr
    findings = {each["rule"]: each["level"] for each in json.loads(done.stdout)["findings"]}
    return {"code": done.returncode, **findings}


def save(folder: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    words = ["checkpoint", "llama3-8b", "--scale", "1/50000", "--writer", "dcp", "--repeat", "1"]
    return measured(folder, *words, "--to", str(folder / "saved"), env=env)


def test_saves_that_were_never_synced_are_invalid(tmp_path: Path) -> None:
    """dcp writes through the page cache, and its fsync does nothing."""
    if unwritten_bytes([__file__]) is None:
        pytest.skip("this kernel, or this file system, does not say which pages are written")
    honest = save(tmp_path)
    assert honest["code"] == 0
    assert honest.keys().isdisjoint({"checkpoint.unwritten", "checkpoint.unproven"})
    found = save(tmp_path, preloading(NO_SYNC, tmp_path))
    assert found["code"] == 3
    assert found["checkpoint.unwritten"] == "invalid"
    assert found["host.interposed"] == "warning"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_a_file_system_in_memory_proves_nothing(tmp_path: Path) -> None:
    folder = Path("/dev/shm") / f"iobench-test-{os.getpid()}"
    folder.mkdir()
    try:
        found = save(folder)
        (record,) = (folder / "results").glob("*/run.json")
        assert proven(load_run(record)) is not None
        assert found["checkpoint.unproven"] == "info"
    finally:
        shutil.rmtree(folder)


def test_a_cache_that_can_not_be_emptied_makes_a_run_invalid(
    make_dataset: Any, tmp_path: Path
) -> None:
    _, data = make_dataset()
    words = ["run", "demo", "--data", str(data), "--set", "reader.direct=false"]
    words += ["--set", "cache=cold", "--repeat", "1", "--calibration", "0s", "--no-ablations"]
    found = measured(tmp_path, *words, env=preloading(NO_ADVICE, tmp_path))
    assert found["code"] == 3
    assert found["cache.cold-residency"] == "invalid"
    assert found["host.interposed"] == "warning"
