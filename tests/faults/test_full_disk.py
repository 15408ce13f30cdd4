"""Disks that are full or read-only: found before, clean when it happens in the middle, and
resumable.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.base.documents import write_whole
from iobench.base.errors import IobenchError, NoRoomError, StorageError, WorkerError
from iobench.data.dataset import load_manifest
from iobench.data.generator import target
from iobench.data.generator.engine import generate
from iobench.data.generator.pool import run_tasks
from iobench.data.verify import verify
from iobench.runner import serving
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.children import in_child
from tests.datasets import spec_of
from tests.processes import PATIENCE_S, in_process, tmpfs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with tmpfs("size=8m,nr_inodes=500", tmp_path / "disk") as mount:
        yield mount


def spec(**changes: Any) -> DatasetSpec:
    usual = {"name": "t", "samples": 400, "sample_size": {"mean": 30_000}, "format": "tar"}
    return spec_of(**{**usual, "shard_size": "500kB", **changes})


def test_too_little_space_is_found_before_anything_is_written(small_disk: Path) -> None:
    for words in (
        ("generate", "demo", "--to", small_disk / "d"),
        ("generate", "qwen3-0.6b-weights", "--to", small_disk / "d"),
        ("checkpoint", "resnet50", "--to", small_disk / "d"),
        ("check", small_disk),
    ):
        code, out, err = in_process(*words, "--quiet")
        assert (code, out, err.count("\n")) == (2, "", 1), err
        assert list(small_disk.iterdir()) == []


def test_too_few_inodes_are_found_before(small_disk: Path) -> None:
    many = spec(samples=1000, format="files", shard_size=None, sample_size={"mean": 100})
    with pytest.raises(NoRoomError, match="inodes"):
        generate(many, LocalStorage(small_disk / "d"), workers=0)
    assert list(small_disk.iterdir()) == []


@pytest.mark.parametrize("form", ["files", "tar"])
def test_full_in_the_middle_then_resumed(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    wanted = spec(format=form, samples=160, shard_size=None if form == "files" else "500kB")
    whole = tmp_path / "whole"
    generate(wanted, LocalStorage(whole), workers=2)
    monkeypatch.setattr(
        target, "_require_space", lambda *args, **kwargs: None
    )  # someone else fills the disk meanwhile
    monkeypatch.setattr("iobench.data.generator.plan._UNIT_BYTES", 1 << 20)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(5 << 20))
    with pytest.raises(StorageError, match="No space left"):
        generate(wanted, LocalStorage(small_disk / "d"), workers=2)
    assert not list(small_disk.rglob("*.part"))
    left = [path for path in (small_disk / "d" / "data").rglob("*") if path.is_file()]
    assert left
    for path in left:  # no half file
        assert path.read_bytes() == (whole / path.relative_to(small_disk / "d")).read_bytes()
    ballast.unlink()
    report = generate(wanted, LocalStorage(small_disk / "d"), workers=2)
    assert 0 < report.written_samples < 160
    assert verify(LocalStorage(small_disk / "d"), load_manifest(small_disk / "d"), workers=0).ok


def test_read_only(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StorageError, match="read-only"):
        generate(spec(samples=10), LocalStorage(small_disk / "d"), workers=0)


def test_no_permission() -> None:
    """In a child that is nobody, since root may write anywhere."""

    def failure() -> str:
        if os.geteuid() == 0:
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        try:
            generate(spec(samples=10), LocalStorage(closed / "d"), workers=0)
        except StorageError as error:
            return str(error)
        return "nothing failed"

    with tempfile.TemporaryDirectory() as folder:  # everybody may go through its parents
        Path(folder).chmod(0o755)
        closed = Path(folder) / "closed"
        closed.mkdir(mode=0o555)
        said = in_child(failure).value
        assert not list(closed.iterdir())
    assert "Permission denied" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    "words",
    ["generate demo --to {}/closed/d", "report {}/closed", "scan {} --save {}/m.yaml"],
    ids=["generate", "report", "scan"],
)
def test_what_is_denied_is_named_and_its_permissions_are_the_remedy(
    words: str, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o000)
    mine = [sys.executable, "-m", "iobench", *words.replace("{}", str(tmp_path)).split()]
    if os.geteuid() == 0:  # root without the right to read what others own
        os.chown(closed, 65534, 65534)
        rights = "-dac_override,-dac_read_search"
        mine = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}", *mine]
    ended = subprocess.run(mine, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1)
    assert str(closed) in ended.stderr
    assert "heck the permissions" in ended.stderr


def _both_have_answered(found: Any) -> Any:
    """The workers by their connections, once each of them waits for another task."""
    workers = inspect.getgeneratorlocals(found)["everyone"]
    assert all(connection.poll(PATIENCE_S) for connection in workers)
    return workers


def test_workers_stop_though_another_thread_takes_their_signals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Libraries start threads anew in a forked process, and the kernel may give SIGTERM to one of
    them; nobody waits for the kill then.
    """
    monkeypatch.setattr(
        "iobench.data.generator.pool._GRACE_S", 3600.0
    )  # only workers that stop by themselves end this test

    def make() -> Callable[[int], int]:
        taken = threading.Event()

        def take() -> None:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            taken.set()
            threading.Event().wait()

        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=take, daemon=True).start()
        taken.wait()
        return lambda task: task

    found = run_tasks(range(4), make, workers=2)
    next(found)
    _both_have_answered(found)
    found.close()


def test_a_worker_that_dies_between_two_tasks_is_one_line() -> None:
    """It has answered, and is gone when the next task is sent."""

    found = run_tasks(range(6), lambda: lambda task: task, workers=2)
    next(found)
    victim = next(iter(_both_have_answered(found).values())).process
    victim.kill()
    victim.join(PATIENCE_S)
    with pytest.raises(WorkerError, match="killed by signal 9"):
        list(found)


@pytest.mark.parametrize(
    "write", ["iobench.settings.base.write_whole", "iobench.host.tables._publish"]
)
def test_a_result_that_cannot_be_written_is_printed(
    write: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*about: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    generate(spec(), LocalStorage(tmp_path / "data"), workers=0)
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("{name: mine, dataset: t, limit: 20s, step_time: 1ms, cache: any}")
    places = ("--data", tmp_path / "data", "--results", tmp_path / "r", "-o", tmp_path / "out")
    monkeypatch.setattr(write, full)
    asked = ("--rate", 60, "--duration", "500ms", "--json", "--quiet")
    code, out, err = in_process("serve", scenario, *places, *asked)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "No space left on device. Make room there" in err
    assert json.loads((tmp_path / "out").read_text())["job"]["trials"]


@pytest.mark.parametrize("kind", [IobenchError, TypeError])
@pytest.mark.parametrize(
    ("words", "place", "file"),
    [
        ("run load.yaml --data data", "experiment.RunBegun.prepare", "run.json"),
        ("ab data --workload load.yaml", "ab.take_turns", "ab.json"),
        ("sweep load.yaml --data data --sweep batch_size=4,8", "sweeping.run.take_turns", "sweep."),
        ("sweep ask.yaml --data data --sweep limit=9s", "serving.ServingBegun.measure", "run.json"),
    ],
    ids=["run", "ab", "sweep", "a single repetition"],
)
def test_without_a_record_the_first_error_is_told_first(
    words: str,
    place: str,
    file: str,
    kind: type[Exception],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what was measured is printed, also where the error is one that nobody expects."""

    def full(path: Path, text: str) -> None:
        if path.name.startswith(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_whole(path, text)

    def fail(*about: object, **more: object) -> None:
        monkeypatch.setattr("iobench.settings.base.write_whole", full)
        raise kind("planted")

    generate(spec(samples=16), LocalStorage(tmp_path / "data"), workers=0)
    (tmp_path / "load.yaml").write_text(
        "{name: mine, dataset: t, batch_size: 4, accelerator: {step_time: 1ms}, cache: any}"
    )
    (tmp_path / "ask.yaml").write_text(
        "{name: mine, dataset: t, limit: 20s, step_time: 1ms, cache: any, arrivals: {rate: 9}}"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(f"iobench.runner.{place}", fail)
    code, out, err = in_process(*words.split(), "--json", "--quiet")
    assert code == (1 if kind is IobenchError else 70), err
    assert json.loads(out)["command"]
    logs = [path.read_text() for path in tmp_path.glob("iobench-error-*.log")]
    assert len(logs) == (kind is TypeError)
    told = "".join(logs) or f"{err}{out}"
    assert 0 <= told.find("planted") < told.find("No space left on device")


def test_without_a_record_the_first_error_is_told_first_and_checkpoints_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*about: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def stop(*about: object) -> None:
        raise KeyboardInterrupt

    generate(spec(), LocalStorage(tmp_path / "data"), workers=0)
    workload = tmp_path / "mine.yaml"
    workload.write_text(
        "{name: mine, dataset: t, batch_size: 400, accelerator: {step_time: 1ms}, cache: any}"
    )
    places = ("--data", tmp_path / "data", "--results", tmp_path / "r")
    saves = ("--checkpoint", "resnet50", "--checkpoint-to", tmp_path / "saves")
    asked = ("--checkpoint-scale", "1/64", "--repeat", 1, "--calibration", "0s", "--no-ablations")
    monkeypatch.setattr("iobench.settings.base.write_whole", full)
    monkeypatch.setattr("iobench.runner.experiment.add_changes", stop)
    code, out, err = in_process("run", workload, *places, *saves, *asked, "--json", "--quiet")
    assert (code, err.count("\n")) == (130, 1)
    assert err.startswith(f"iobench: interrupted. Cannot write {tmp_path / 'r'}")
    assert "No space left on device" in err
    assert err.endswith(f"remove them: iobench clean {tmp_path / 'saves'}\n")
    assert json.loads(out)["status"] == "interrupted"


def test_a_log_that_fills_its_disk_ends_the_run_in_one_line(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else takes the room after it was looked for."""
    monkeypatch.setattr(serving, "check_room", lambda *about: None)
    generate(spec(), LocalStorage(tmp_path / "data"), workers=0)
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("{name: mine, dataset: t, limit: 20s, step_time: 1ms, cache: any}")
    places = (
        "--data",
        tmp_path / "data",
        "--log",
        small_disk / "logs",
        "--results",
        tmp_path / "r",
    )
    asked = ("--rate", 60, "--set", "log.record=1MiB", "--duration", "500ms", "--quiet")
    code, out, err = in_process("serve", scenario, *places, *asked)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "No space left on device" in err
    assert not list(small_disk.rglob("*.log"))
