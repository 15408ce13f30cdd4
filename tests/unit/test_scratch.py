"""Temporary directories: removed by their owner, or after its death by the next one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from iobench.runner.hosts.member import _Data
from iobench.storage import scratch as module
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks.holder import start_of
from iobench.storage.scratch import remove_left_over, scratch
from tests.processes import wait_until

OWNER = """
import os, sys, time
from pathlib import Path
from iobench.storage.scratch import scratch
with scratch("ranks", within=Path(sys.argv[1])) as folder:
    (folder / "meet").write_text("x")
    if sys.argv[2] == "worker":
        if os.fork() == 0:
            time.sleep(600)
    print("made", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _no_youth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_AGE_S", -1.0)


def owner(folder: Path, kind: str = "alone") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(folder), kind], stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"made\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    process.stdout.close()


def leave(folder: Path) -> None:
    (folder / "meet").write_text("x")
    assert folder.name.startswith(f"iobench-{os.getpid()}-ranks-")
    raise KeyboardInterrupt


def test_it_is_removed_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), scratch("ranks", within=tmp_path) as folder:
        leave(folder)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_owner_left_goes_with_the_next(tmp_path: Path) -> None:
    process = owner(tmp_path)
    with scratch("ranks", within=tmp_path) as mine:
        assert len(list(tmp_path.iterdir())) == 2  # its owner lives
        end(process)
        remove_left_over(tmp_path)
        assert list(tmp_path.iterdir()) == [mine]


def test_a_worker_that_lives_keeps_it(tmp_path: Path) -> None:
    process = owner(tmp_path, "worker")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    end(process)
    remove_left_over(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    (worker,) = map(int, children)
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: start_of(worker) is None, "the worker does not die")
    remove_left_over(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nothing_else_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = next(number for number in range(4_000_000, 5_000_000) if start_of(number) is None)
    ours = tmp_path / f"iobench-{free}-ranks-abc"
    for name in (f"iobench-{free}", "iobench-x-ranks-1", "iobench-ranks-abc", "mine"):
        (tmp_path / name).mkdir()
    (tmp_path / f"iobench-{free}-file-abc").write_text("x")
    outside = tmp_path / "mine" / "data"
    outside.write_text("precious")
    (tmp_path / f"iobench-{free}-link-abc").symlink_to(tmp_path / "mine")
    ours.mkdir()
    (ours / "link").symlink_to(tmp_path / "mine")
    before = {path.name for path in tmp_path.iterdir()}
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before  # another user's
    monkeypatch.undo()
    remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before  # too young
    monkeypatch.setattr(module, "MIN_AGE_S", -1.0)
    remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before - {ours.name}
    assert outside.read_text() == "precious"
    remove_left_over(tmp_path / "missing")


def test_what_a_killed_host_of_a_job_leaves_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = _Data(LocalStorage(tmp_path / "data"), tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f"iobench-{os.getpid()}-")
    data.close()
    assert list(tmp_path.iterdir()) == []


def test_no_folder_is_made_that_a_later_run_does_not_find() -> None:
    """Another way to make one leaves it behind after ``kill -9``. That of a cache is to stay."""
    package = Path(module.__file__).parents[1]
    kept = {"storage/scratch.py", "storage/local_cache.py"}
    others = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\bmkdtemp\(|\bTemporaryDirectory\(", path.read_text())
    }
    assert others == kept
