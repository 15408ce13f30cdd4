"""``clean`` where it gets difficult: what a killed writer left, strangers' files, mounts, pipes."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.checkpoint.manifest import is_ours
from iobench.data.dataset import load_manifest
from iobench.data.generator.cleaner import clean
from iobench.load.layouts import make_layout
from iobench.record.manifest import LAYOUT_BEGUN
from iobench.settings.workload import LoaderSpec, ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.checkpoints import make_state, save
from tests.datasets import generated
from tests.processes import in_process, mounted


def dataset(root: Path, **changes: Any) -> Path:
    generated(root, content="raw", **changes)
    return root


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("how", ["bind", "tmpfs"])
def test_a_mount_point_is_not_crossed(tmp_path: Path, how: str) -> None:
    """Not even one of the same file system, over a folder of ours, with names of ours."""
    root = dataset(tmp_path / "d", format="files")
    folder, victim = root / "data/000000", tmp_path / "victim"
    victim.mkdir()
    options = ("--bind", str(victim)) if how == "bind" else ("-t", "tmpfs", "tmpfs")
    shard = next(folder.iterdir()).name
    with mounted(*options, on=folder):
        (folder / shard).write_text("precious")
        code, out, err = in_process("clean", root)
        assert (code, err) == (0, "")
        assert "data/000000" in out.splitlines()[-1]
        assert (folder / shard).read_text() == "precious"
        assert files(root) == [".iobench-dataset", f"data/000000/{shard}"]
    assert in_process("clean", root)[0] == 0  # the marker stayed, so the rest can go
    assert not root.exists()


def test_a_mount_point_among_checkpoints(tmp_path: Path) -> None:
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    for step in (1, 2):
        save("torch", root, step, {"step": 1})
    hidden = tmp_path / "c" / "step-00000001"
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("checkpoint.json", "rank-0000.pt"):
        (victim / name).write_text("precious")
    with mounted("--bind", str(victim), on=hidden):
        code, out, _ = in_process("clean", tmp_path / "c")
        assert code == 0
        assert "step-00000001" in out.splitlines()[-1]
        assert (tmp_path / "c" / ".iobench-checkpoints").exists()
        assert not (tmp_path / "c" / "step-00000002").exists()
    assert len(files(victim)) == 2
    assert in_process("clean", tmp_path / "c")[0] == 0
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("place", ["/", "FOLDER"])
def test_a_place_that_is_not_ours_is_refused_without_a_look_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Nothing has to be listed to see that there is no marker."""
    (tmp_path / "model.safetensors").write_text("precious")

    def unlisted(self: LocalStorage, prefix: str = "") -> Any:
        raise StorageError(f"cannot list {self.root}: {os.strerror(errno.EACCES)}")

    monkeypatch.setattr(LocalStorage, "list", unlisted)
    code, out, err = in_process("clean", place.replace("FOLDER", str(tmp_path)))
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert files(tmp_path) == ["model.safetensors"]


MARKERS = (".iobench-dataset", ".iobench-checkpoints", ".iobench-weights")


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("what", ["fifo", "folder"])
def test_a_marker_that_is_no_file_is_one_line(tmp_path: Path, marker: str, what: str) -> None:
    root = tmp_path / "d"
    root.mkdir()
    (os.mkfifo if what == "fifo" else os.mkdir)(root / marker)
    commands = [("clean", root), ("clean", root, "--dry-run")]
    commands += dict(
        zip(
            MARKERS,
            (
                [("generate", "demo", "--samples", "4", "--to", root)],
                [("checkpoint", "resnet50", "--to", root, "--results", tmp_path / "r")],
                [("generate", "qwen3-0.6b-weights", "--layers", 1, "--to", root)],
            ),
            strict=True,
        )
    )[marker]
    for words in commands:
        code, out, err = in_process(*words)
        assert code in (1, 2), words
        assert (out, err.count("\n")) == ("", 1), (words, err)
    assert [path.name for path in root.iterdir()] == [marker]


def test_a_journal_entry_and_a_layout_record_that_are_pipes(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d")
    (root / "layouts" / "litdata").mkdir(parents=True)
    os.mkfifo(root / "layouts" / "litdata" / "layout.json")
    code, out, _ = in_process("clean", root)
    assert code == 0
    assert files(root) == ["layouts/litdata/layout.json"]
    assert "layouts/litdata/layout.json" in out


@pytest.mark.parametrize("format", ["files", "tar"])
def test_a_marker_that_claims_ten_thousand_million_samples(tmp_path: Path, format: str) -> None:
    root = tmp_path / "d"
    root.mkdir()
    (root / ".iobench-dataset").write_text(
        '{"id": "x", "spec": {"name": "big", "samples": 10000000000, "content": "raw", '
        f'"sample_size": {{"mean": 1000}}, "format": "{format}"}}}}'
    )
    (root / "data").mkdir()
    (root / "data" / "mine.txt").write_text("x")
    code, out, err = in_process("clean", root)
    assert (code, err) == (0, "")
    assert files(root) == ["data/mine.txt"]
    assert "data/mine.txt" in out


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: Any) -> None:
    """A lock object keeps nothing from being removed, and nothing of it is left."""

    def no_flock(fd: int, operation: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(fcntl, "flock", no_flock)
    root = tmp_path / "d"
    assert in_process("generate", "demo", "--to", root, "--samples", 4)[0] == 0
    assert sorted(os.listdir(root)) == [
        ".iobench-dataset", "data", "manifest.json", "samples.arrow", "shards.arrow"
    ]  # fmt: skip
    assert in_process("verify", root)[0] == 0
    assert in_process("clean", root)[0] == 0
    assert not root.exists()
    study = ("checkpoint", "resnet50", "--to", root, "--scale", "1/2048", "--repeat", 1)
    assert in_process(*study, "--results", tmp_path / "r", "--keep-data")[0] == 0
    assert sorted(os.listdir(root)) == [".iobench-checkpoints", "step-00000001"]
    assert in_process("clean", root)[0] == 0
    assert not root.exists()


# Checkpoints


@pytest.mark.parametrize("name", [".tmpn0FUIS", ".metadata.tmp", "rank-0000.pt.part"])
def test_what_a_library_left_in_a_step_is_ours(tmp_path: Path, name: str) -> None:
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    step = tmp_path / "c" / "step-00000001"
    step.mkdir()
    (step / name).write_bytes(b"x" * 1000)
    assert root.partial() == [root.step(1)]
    assert root.latest() is None
    code, out, _ = in_process("clean", tmp_path / "c", "--json")
    assert (code, json.loads(out)["foreign"]) == (0, [])
    assert not (tmp_path / "c").exists()


def test_what_a_user_put_beside_it_stays_and_is_named(tmp_path: Path) -> None:
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    step = tmp_path / "c" / "step-00000001"
    step.mkdir()
    strange = [".tmp", ".tmpn0FUISx", ".tmp-n0FU", ".tmpn0FUI", "x.tmpn0FUIS", ".metadata.tmp2"]
    for name in (*strange, ".tmpn0FUIS"):
        (step / name).write_bytes(b"x")
    (tmp_path / "c" / ".tmpn0FUIS").write_bytes(b"x")
    _, out, _ = in_process("clean", tmp_path / "c")
    left = sorted([*(f"step-00000001/{name}" for name in strange), ".tmpn0FUIS"])
    assert files(tmp_path / "c") == left
    assert all(name in out for name in left)


@pytest.mark.parametrize("writer", ["torch", "safetensors", "dcp", "stream"])
def test_every_name_that_a_writer_uses_is_known(tmp_path: Path, writer: str) -> None:
    """Looked at again and again while it saves: whenever it were killed, all of it could go."""
    root, seen, ended = CheckpointRoot.open(str(tmp_path / "c")), set(), threading.Event()
    root.claim()
    folder = tmp_path / "c" / "step-00000001"

    def watch() -> None:
        while not ended.is_set():
            if folder.is_dir():
                seen.update(os.listdir(folder))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        save(writer, root, 1, make_state(large=2_000_000))
    finally:
        ended.set()
        watcher.join()
    seen.update(os.listdir(folder))
    assert "checkpoint.json" in seen
    assert {name for name in seen if not is_ours(name)} == set()


# Layouts


def test_an_unfinished_layout_goes_and_a_strangers_file_in_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.load.libraries.base import Source
    from iobench.load.libraries.lit import LitData

    root = dataset(tmp_path / "d", samples=20)
    source = Source(
        load_manifest(root),
        LocalStorage(root),
        ReaderSpec(decode=False),
        LoaderSpec(kind="litdata"),
        4,
    )
    real = LitData.convert

    def killed(source: Source, folder: Path) -> None:
        real(source, folder)
        raise SystemExit  # as a kill leaves it: all is written, nothing is listed

    monkeypatch.setattr(LitData, "convert", killed)
    with pytest.raises(SystemExit):
        make_layout(source, "litdata 1")
    part = root / "layouts" / "litdata.part"
    written = files(part)
    assert LAYOUT_BEGUN in written
    assert len(written) > 2
    (part / "mine.doc").write_text("precious")
    (part / "chunk-mine").mkdir()
    (part / "chunk-mine" / "x.bin").write_text("precious")
    mine = ["layouts/litdata.part/chunk-mine/x.bin", "layouts/litdata.part/mine.doc"]
    assert clean(root, dry_run=True).foreign == mine
    code, out, _ = in_process("clean", root)
    assert code == 0
    assert files(root) == mine
    assert all(name in out for name in mine)


def test_an_unfinished_layout_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from iobench.base.errors import UsageError
    from iobench.load.libraries.base import Source

    root = dataset(tmp_path / "d", samples=20)
    part = root / "layouts" / "litdata.part"
    part.mkdir(parents=True)
    (part / "chunk-0-0.bin").write_text("of an earlier version, which wrote no list")
    (part / "mine.doc").write_text("precious")
    source = Source(
        load_manifest(root),
        LocalStorage(root),
        ReaderSpec(decode=False),
        LoaderSpec(kind="litdata"),
        4,
    )
    with pytest.raises(UsageError, match=r"mine\.doc"):
        make_layout(source, "litdata 1")
    assert files(part) == ["mine.doc"]
    (part / "mine.doc").unlink()
    made, kept = make_layout(source, "litdata 1")
    assert (kept, part.exists()) == (False, False)
    assert LAYOUT_BEGUN not in made.files
    clean(root)
    assert not root.exists()


def test_what_a_list_claims_with_too_many_stars_is_not_believed(tmp_path: Path) -> None:
    root = dataset(tmp_path / "d")
    part = root / "layouts" / "litdata.part"
    part.mkdir(parents=True)
    (part / LAYOUT_BEGUN).write_text('{"writes": ["*a*a*a*a*a", "*/*", 5, "x-*"]}')
    for name in ("a" * 100, "x-1"):
        (part / name).write_text("x")
    assert clean(root).foreign == [f"layouts/litdata.part/{'a' * 100}"]
