"""What a command that ended before its time has left, when the same command is given again."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from iobench.base.errors import InterruptedRun, IobenchError, StorageError, TargetRefusedError
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.cli.main import main
from iobench.data.generator.cleaner import clean
from iobench.data.generator.engine import generate
from iobench.data.scan.saving import save
from iobench.data.scan.scanner import ScanReport, scan
from iobench.record.checkpoint import CheckpointSpec, Training
from iobench.record.host import Host
from iobench.record.manifest import MANIFEST
from iobench.record.run import CheckpointRecord, load_run
from iobench.runner.agent import HostAgent
from iobench.runner.budget import Budget
from iobench.runner.checkpoint import run_study, saving_to
from iobench.runner.checkpoint_plan import StudyPlan, make_study_plan
from iobench.runner.hosts.hosts import Hosts
from iobench.runner.options import Mixed, Observer, StudyOptions
from iobench.runner.results import run_directory
from iobench.runner.tasks.checkpoint import CheckpointRank
from iobench.settings.base import build
from iobench.storage.local.sinks import make_folders
from iobench.storage.local.storage import LocalStorage
from tests.checkpoints import make_state
from tests.checkpoints import save as save_checkpoint
from tests.datasets import generated, spec_of
from tests.processes import in_process, wait_until


@pytest.fixture
def report(tmp_path: Path) -> ScanReport:
    (tmp_path / "theirs").mkdir()
    for number in range(3):
        (tmp_path / "theirs" / f"{number}.bin").write_bytes(bytes([number]) * 500)
    return scan(LocalStorage(tmp_path / "theirs"))


def test_an_unfinished_manifest_of_a_killed_scan_is_written_again(
    report: ScanReport, tmp_path: Path
) -> None:
    part = tmp_path / "mine.manifest.part"
    part.mkdir()
    (part / "samples.arrow").write_bytes(b"half of it")
    assert (save(report, tmp_path / "mine.yaml") / MANIFEST).exists()
    assert sorted(os.listdir(tmp_path)) == ["mine.manifest", "mine.yaml", "theirs"]


def test_a_spec_without_its_manifest_stays_as_it_is_and_gets_one(
    report: ScanReport, tmp_path: Path
) -> None:
    folder = save(report, tmp_path / "mine.yaml")
    spec = tmp_path / "mine.yaml"
    before = spec.stat()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert save(report, spec) == folder
    after = spec.stat()  # the time of access is that of a reader
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


@pytest.mark.parametrize("name", ["mine.yaml", "mine.manifest", "mine.manifest.part"])
def test_a_scan_overwrites_nothing_of_others(name: str, report: ScanReport, tmp_path: Path) -> None:
    taken = tmp_path / name
    if name == "mine.yaml":
        taken.write_text("name: other\n")
    else:
        taken.mkdir()
        (taken / "thesis.txt").write_text("the only copy")
    with pytest.raises(TargetRefusedError):
        save(report, tmp_path / "mine.yaml")
    assert sorted(os.listdir(tmp_path)) == [name, "theirs"]
    if taken.is_dir():
        assert (taken / "thesis.txt").read_text() == "the only copy"


def test_generate_on_a_complete_dataset_removes_the_journal_that_was_left(tmp_path: Path) -> None:
    generated(tmp_path / "d")
    journal = tmp_path / "d/.iobench-journal"
    journal.mkdir()
    (journal / "00000000.json").write_text("{}")
    (journal / "00000001.json.part").write_text("")
    (journal / "mine.txt").write_text("mine")
    assert generate(spec_of(), LocalStorage(tmp_path / "d"), workers=0).written_samples == 0
    assert os.listdir(journal) == ["mine.txt"]
    (journal / "mine.txt").unlink()
    assert clean(tmp_path / "d").root_removed


def test_what_an_interrupted_clean_leaves_can_be_generated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(samples=4, format="tar", samples_per_shard=2)
    storage = LocalStorage(tmp_path / "d")
    whole = generate(spec, storage, workers=0).manifest
    unlink = os.unlink

    def refuses(name: str, **more: int) -> None:
        if name.endswith("000001.tar"):
            raise OSError(13, "Permission denied")
        unlink(name, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuses)
        with pytest.raises(StorageError):
            clean(tmp_path / "d")
    assert not (tmp_path / "d" / MANIFEST).exists()
    assert len(list((tmp_path / "d/data").iterdir())) == 1
    again = generate(spec, storage, workers=0)
    assert again.written_samples == 4
    assert again.manifest.header.tables == whole.header.tables


def test_a_folder_that_cannot_be_removed_keeps_its_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated(tmp_path / "d")

    def refuses(*_: object, **__: int) -> None:
        raise OSError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuses)
        with pytest.raises(StorageError):
            clean(tmp_path / "d")
    assert clean(tmp_path / "d").root_removed


def study(tmp_path: Path, *more: str) -> int:
    words = ["checkpoint", "llama3-8b", "--to", str(tmp_path / "c"), "--scale", "1/500000"]
    where = ["--repeat", "2", "--results", str(tmp_path / "r"), "--quiet"]
    return main([*words, *where, *more])


def test_a_study_goes_on_after_the_steps_that_are_there_and_removes_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    save_checkpoint("stream", root, 2, make_state())
    partial = tmp_path / "c/step-00000005"
    partial.mkdir()
    (partial / "rank-0000.tensors").write_bytes(b"half of it")

    assert study(tmp_path) == 0
    assert [step.number for step in root.complete()] == [2]
    assert [step.number for step in root.partial()] == [5]
    assert study(tmp_path, "--keep-data") == 0
    assert [step.number for step in root.complete()] == [2, 7]
    assert (partial / "rank-0000.tensors").read_bytes() == b"half of it"
    records = [json.loads(path.read_text()) for path in (tmp_path / "r").rglob("run.json")]
    assert [[save["step"] for save in record["job"]["saves"]] for record in records] == [[6, 7]] * 2
    assert main(["clean", str(tmp_path / "c")]) == 0
    assert study(tmp_path) == 0
    assert not (tmp_path / "c").exists() or os.listdir(tmp_path / "c") == []


def test_a_folder_whose_name_is_not_durable_is_removed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(fd: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        make_folders(tmp_path / "a")
    assert not (tmp_path / "a").exists()


# Studies that were interrupted


INTERRUPTED = 2  # the number of the save that is going on


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StudyPlan:
    """A study of two ranks; in its second save the parent is interrupted, and begins to stop."""
    save = CheckpointRank.save

    def interrupted_save(rank: CheckpointRank, step: int, start_ns: int, *, whole: bool) -> None:
        if step == INTERRUPTED and rank.job.rank == 0:
            os.kill(os.getppid(), signal.SIGINT)
            wait_until(lambda: rank.link.stopped.value, "the parent does not stop")
        save(rank, step, start_ns, whole=whole)

    monkeypatch.setattr(CheckpointRank, "save", interrupted_save)
    asked = {"model": "llama3-8b", "scale": "1/16384", "ranks": 2, "count": 5, "writer": "stream"}
    spec = build(CheckpointSpec, asked, where="test")
    return make_study_plan(spec, str(tmp_path / "ckpt"), Training())


def test_a_save_that_ends_after_ctrl_c_is_recorded_and_stays(
    plan: StudyPlan, tmp_path: Path
) -> None:
    with pytest.raises(InterruptedRun):
        run_study(plan, StudyOptions(results=tmp_path / "results"))
    (directory,) = (tmp_path / "results").iterdir()
    record = load_run(directory)
    assert isinstance(record, CheckpointRecord)
    assert record.status == "interrupted"
    assert [save.step for save in record.job.saves] == [1, INTERRUPTED]
    latest = CheckpointRoot.open(plan.url).latest()
    assert latest.number == INTERRUPTED


def test_saves_alone_that_were_interrupted_are_kept(plan: StudyPlan) -> None:
    with saving_to(Mixed(plan=plan, every=10), Hosts(), break_lock=False) as saver:
        with pytest.raises(KeyboardInterrupt):
            saver.alone(Observer(), Budget())
        assert [save.step for save in saver.study.alone] == [1, INTERRUPTED]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "demo", "--data", "data", "--repeat", 1, "--calibration", "0s"),
        ("ab", "data", "--workload", "demo", "--set-b", "reader.concurrency=2"),
        ("serve", "demo", "--data", "data", "--rate", 20, "--limit", "10s", "--duration", "300ms"),
        ("checkpoint", "resnet50", "--to", "saved", "--scale", "1/2048", "--repeat", 1),
        ("load", "weights", "--loader", "direct", "--repeat", 1),
        (
            *("kv", "kv-chat-llama3-8b", "--to", "kv", "--set", "layers=1", "--rate", 4),
            *("--limit", "600s", "--duration", "1s", "--repeat", 1),
        ),
    ],
    ids=lambda words: words[0],
)
def test_a_run_that_fails_before_it_has_a_record_leaves_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    generated(tmp_path / "data", samples=8)
    weights = ("qwen3-0.6b-weights", "--to", "weights", "--layers", 1, "--vocabulary", 64)
    assert words[0] != "load" or in_process("generate", *weights, "--quiet")[0] == 0

    def refused(agent: HostAgent) -> list[Host]:
        assert [*Path("results").iterdir()]  # it is there by now
        raise StorageError("nobody may look at this host")

    monkeypatch.setattr(HostAgent, "describe_all", refused)
    code, _, err = in_process(*words, "--results", "results", "--quiet")
    assert code == StorageError.exit_code
    assert "nobody may look" in err
    assert [*Path("results").iterdir()] == []


def test_a_full_disk_is_told_before_a_run_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(dir: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("iobench.runner.results.TemporaryFile", full)
    with pytest.raises(IobenchError, match="No space left"), run_directory(tmp_path, "demo"):
        pytest.fail("it was begun")
    assert [*tmp_path.iterdir()] == []
