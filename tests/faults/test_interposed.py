"""Libraries that answer system calls in place of the C library: figures that rest on them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from iobench.base.pagecache import unwritten_bytes
from iobench.judge.checkpoint import proven
from iobench.record.run import load_run
from tests.processes import in_process, python
from tests.servers.process import missing

LYING = """
int fsync(int fd) { return 0; } int fdatasync(int fd) { return 0; }
int posix_fadvise(int fd, long offset, long length, int advice) { return 0; }
int posix_fadvise64(int fd, long offset, long length, int advice) { return 0; }
"""
BOTH = (
    "import sys, iobench.cli.main as cli; print([cli.main(each.split()) for each in sys.argv[1:]])"
)
SAVE = "checkpoint llama3-8b --scale 1/50000 --writer dcp"


def found(results: Path) -> dict[str, str]:
    """The level of each finding of the one record there, by its rule."""
    (record,) = results.glob("*/run.json")
    return {each["rule"]: each["level"] for each in json.loads(record.read_text())["findings"]}


@pytest.mark.nightly
def test_what_was_never_synced_or_evicted_is_invalid(make_dataset: Any, tmp_path: Path) -> None:
    """dcp writes through the page cache, and its fsync does nothing; nor does any advice.

    What other tests sync may write a save as well, but not each of several.
    """
    if unwritten_bytes([__file__]) is None:
        pytest.skip("this kernel, or this file system, does not say which pages are written")
    save = f"{SAVE} --to {tmp_path}/saved --results {tmp_path}"
    assert in_process(*f"{save}/honest --repeat 1".split())[0] == 0
    assert (
        found(tmp_path / "honest")
        .keys()
        .isdisjoint({"checkpoint.unwritten", "checkpoint.unproven"})
    )
    run = f"run demo --data {make_dataset()[1]} --set reader.direct=false --set cache=cold"
    run += f" --repeat 1 --calibration 0s --no-ablations --results {tmp_path}/run"
    compiler = shutil.which("cc") or missing("a C compiler")
    (tmp_path / "lying.c").write_text(LYING)
    library = str(tmp_path / "lying.so")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "lying.c"], check=True)
    told = python(BOTH, f"{save}/lied --repeat 3", run, env={**os.environ, "LD_PRELOAD": library})
    assert told.endswith("[3, 3]\n")
    for folder, rule in (("lied", "checkpoint.unwritten"), ("run", "cache.cold-residency")):
        levels = found(tmp_path / folder)
        assert levels[rule] == "invalid"
        assert levels["host.interposed"] == "warning"


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no file system in memory")
def test_a_file_system_in_memory_proves_nothing() -> None:
    folder = Path("/dev/shm") / f"iobench-{os.getpid()}-test"
    folder.mkdir()
    try:
        words = f"{SAVE} --repeat 1 --to {folder}/saved --results {folder}/results"
        in_process(*words.split())
        (record,) = (folder / "results").glob("*/run.json")
        assert proven(load_run(record)) is not None
        assert found(folder / "results")["checkpoint.unproven"] == "info"
    finally:
        shutil.rmtree(folder)
