"""``generate`` beside somebody who removes files or takes its place: no manifest that lies."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iobench.base.errors import StorageError, TargetLostError
from iobench.data.dataset import load_manifest
from iobench.data.generator import engine
from iobench.data.generator.engine import generate
from iobench.data.generator.pool import run_tasks
from iobench.data.verify import verify
from iobench.record.manifest import MANIFEST
from iobench.storage import open_storage
from iobench.storage.base import Sink, StorageTraits
from iobench.storage.local.storage import LocalStorage
from iobench.storage.locks.holder import Holder
from iobench.storage.locks.objects import LOCK
from iobench.storage.simulated.memory import MemoryStorage
from tests.datasets import spec_of
from tests.processes import in_process

SPEC = spec_of(name="t", samples=24, content="raw", format="tar", samples_per_shard=4)


def before_the_manifest(monkeypatch: pytest.MonkeyPatch, what: Callable[[], None]) -> None:
    """``what`` happens when all shards are written."""
    real = engine.publish

    def publish(*arguments: Any, **more: Any) -> Any:
        what()
        return real(*arguments, **more)

    monkeypatch.setattr(engine, "publish", publish)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_shard_that_went_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, how: str
) -> None:
    root = tmp_path / "d"
    shard = root / "data" / "t-000003.tar"

    def harm() -> None:
        shard.unlink()
        if how == "short":
            shard.write_bytes(b"x")

    with monkeypatch.context() as patch:
        before_the_manifest(patch, harm)
        with pytest.raises(StorageError, match=r"t-000003\.tar"):
            generate(SPEC, LocalStorage(root), workers=workers)
    assert not (root / MANIFEST).exists()
    report = generate(SPEC, LocalStorage(root), workers=workers)  # the same command goes on
    assert report.written_samples > 0
    assert verify(LocalStorage(root), load_manifest(root), workers=0).ok


def test_a_command_that_only_writes_the_manifest_has_done_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "d"

    def end() -> None:
        raise StorageError("planted")

    words = ("generate", "demo", "--to", root, "--samples", 12, "--set", "samples_per_shard=2")
    with monkeypatch.context() as patch:
        before_the_manifest(patch, end)
        assert in_process(*words)[0] == 1
    code, out, _ = in_process(*words)
    assert (code, out.startswith("finished 1.2"), "only the manifest" in out) == (0, True, True)
    assert in_process(*words)[1].startswith("nothing to do")


class Remote(LocalStorage):
    """No page cache of this host has its files. The first shards wait until four are being written;
    the one that ends with ``bad`` fails.
    """

    bad = "none"
    traits = StorageTraits(page_cache=False)

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begun: list[str] = []
        self.four = threading.Event()

    @contextmanager
    def create(self, key: str, **how: Any) -> Iterator[Sink]:
        with super().create(key, **how) as sink:
            if key.startswith("data"):
                self.begun.append(key)
                if len(self.begun) >= 4:
                    self.four.set()
                assert self.four.wait(timeout=30)
            if key.endswith(self.bad):
                raise StorageError("planted")
            yield sink


def test_small_files_are_written_several_at_once_where_each_takes_round_trips(
    tmp_path: Path,
) -> None:
    spec = spec_of(name="t", samples=40, content="raw", format="files")
    generate(spec, LocalStorage(tmp_path / "one"), workers=0)
    generate(spec, Remote(tmp_path / "several"), workers=0)
    assert verify(LocalStorage(tmp_path / "several"), load_manifest(tmp_path / "one")).ok


def test_small_files_are_verified_several_at_once_where_each_takes_round_trips(
    tmp_path: Path,
) -> None:
    """The first ones wait until four are asked for; then one is damaged, and one is missing."""
    spec = spec_of(name="t", samples=40, content="raw", format="files")
    manifest = generate(spec, LocalStorage(tmp_path), workers=0).manifest
    asked: list[str] = []
    four = threading.Event()

    class Slow(Remote):
        def size(self, key: str) -> int:
            asked.append(key)
            if len(asked) >= 4:
                four.set()
            assert four.wait(timeout=30)
            return super().size(key)

    damaged, missing = (tmp_path / manifest.key(shard) for shard in (7, 23))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    missing.unlink()
    report = verify(Slow(tmp_path), manifest, workers=0)
    assert (report.shards, len(report.unreadable)) == (40, 0)
    assert [each.shard for each in report.damages] == [manifest.key(7), manifest.key(23)]


def test_a_failure_of_one_of_several_leaves_none_of_them(tmp_path: Path) -> None:
    spec = spec_of(name="t", samples=40, content="raw", format="files")
    storage = Remote(tmp_path / "d")
    storage.bad = "07.bin"
    with pytest.raises(StorageError, match="planted"):
        generate(spec, storage, workers=0)
    assert not [*(tmp_path / "d" / "data").rglob("*.bin")]
    assert not (tmp_path / "d" / MANIFEST).exists()
    report = generate(spec, LocalStorage(tmp_path / "d"), workers=0)
    assert report.written_samples == 40


def test_a_complete_dataset_is_looked_at(tmp_path: Path) -> None:
    root = tmp_path / "d"
    words = ("generate", "demo", "--to", root, "--samples", 12, "--set", "samples_per_shard=2")
    assert in_process(*words)[0] == 0
    code, out, err = in_process(*words)
    assert (code, err, out.startswith("nothing to do")) == (0, "", True)
    shard = root / "data" / "demo-000002.tar"
    whole = shard.read_bytes()
    for harm in (shard.unlink, lambda: shard.write_bytes(whole[:-512])):
        harm()
        code, out, err = in_process(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert "demo-000002.tar" in err
        assert "iobench clean" in err
    shard.write_bytes(whole)
    assert in_process(*words)[0] == 0


@pytest.mark.parametrize("kind", ["object", "file"])
def test_a_place_that_is_taken_over_gets_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Another host has broken the lock, or somebody has removed the marker."""
    root = tmp_path / "d"
    place: Any = open_storage(f"local://{root}" if kind == "object" else str(root))

    def take_over() -> None:
        if kind == "object":
            theirs = replace(Holder.this_process("generate"), host="far-away", boot="0")
            place.replace(LOCK, theirs.dump())
        else:
            (root / ".iobench-dataset").unlink()

    before_the_manifest(monkeypatch, take_over)
    with pytest.raises(TargetLostError):
        generate(SPEC, place, workers=0)
    assert not (root / MANIFEST).exists()
    if kind == "object":
        assert json.loads((root / LOCK).read_bytes())["host"] == "far-away"


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_check_raises_ends_the_work(workers: int) -> None:
    done: list[int] = []

    def each(results: Iterator[int]) -> Iterator[int]:
        for result in results:
            done.append(result)
            yield from ()

    def check() -> None:
        if len(done) > 2:
            raise TargetLostError("the lock is lost")

    with pytest.raises(TargetLostError):
        list(each(run_tasks(range(100), lambda: lambda task: task, workers=workers, check=check)))
    assert len(done) < 10


def test_a_start_in_a_place_that_others_use_writes_nothing(tmp_path: Path) -> None:
    """Not even a lock."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("precious")
    for place in (mine, f"local://{mine}"):
        for words in (
            ("generate", "demo", "--to", place, "--samples", 4),
            ("checkpoint", "resnet50", "--to", place, "--results", tmp_path / "r"),
            ("clean", place),
        ):
            code, _, err = in_process(*words)
            assert (code, err.count("\n")) == (2, 1), words
        assert [path.name for path in mine.iterdir()] == ["thesis.txt"]


def test_what_an_interrupted_start_left_does_not_stand_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in (str(tmp_path / "a"), f"local://{tmp_path}/b"):
        root = tmp_path / place[-1]
        (root / ".iobench-readers").mkdir(parents=True)
        (root / ".iobench-dataset.part").write_text("{")
        (root / f"{LOCK}.0123abcd.part").write_text("{")
        generate(SPEC, open_storage(place), workers=0)
        assert (root / MANIFEST).exists()


def test_a_dataset_in_memory_needs_no_lock() -> None:
    with pytest.raises(StorageError, match="read-only"):
        generate(SPEC, MemoryStorage(), workers=0)
