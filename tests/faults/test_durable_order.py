"""What says that something is complete is written last, and all that it speaks of is on disk
before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from iobench.base.documents import write_whole
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.data.generator.target import JOURNAL
from iobench.record.manifest import MANIFEST, SAMPLES, SHARDS
from iobench.runner.results import new_directory
from iobench.storage.base import Sink
from iobench.storage.local.storage import LocalStorage
from tests.checkpoints import make_state, save
from tests.datasets import generated

Inode = tuple[int, int]


def inode(path: Path) -> Inode:
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[Inode]:
    """What was flushed to disk, in its order, by the real calls."""
    found: list[Inode] = []
    for name in ("fsync", "fdatasync"):
        real = getattr(os, name)

        def record(fd: Any, real: Any = real) -> None:
            status = os.fstat(fd if isinstance(fd, int) else fd.fileno())
            real(fd)
            found.append((status.st_dev, status.st_ino))

        monkeypatch.setattr(os, name, record)
    return found


@pytest.mark.parametrize(
    "writer", ["torch", "torch-nocrc", "safetensors", "dcp", "dcp-async", "stream"]
)
def test_all_that_a_checkpoint_consists_of_is_on_disk_before_it_counts(
    writer: str, tmp_path: Path, flushed: list[Inode]
) -> None:
    root = CheckpointRoot.open(str(tmp_path / "c"))
    root.claim()
    flushed.clear()
    save(writer, root, 1, make_state(large=3000))
    (step,) = (path for path in (tmp_path / "c").iterdir() if path.is_dir())
    last = flushed.index(inode(step / "checkpoint.json"))
    rest = [path for path in step.rglob("*") if path.name != "checkpoint.json"]
    assert len(rest) >= 2  # the data, and the rank's part
    for path in (*rest, step, tmp_path / "c"):
        assert inode(path) in flushed[:last], path
    assert inode(step) in flushed[last:]  # the name of checkpoint.json


def test_a_record_has_a_durable_name_in_durable_folders(
    tmp_path: Path, flushed: list[Inode]
) -> None:
    directory = new_directory(tmp_path / "results" / "mine", "run")
    for folder in (tmp_path, tmp_path / "results", tmp_path / "results" / "mine"):
        assert inode(folder) in flushed
    write_whole(directory / "run.json", "{}")
    assert flushed[-2:] == [inode(directory / "run.json"), inode(directory)]


class Recording(LocalStorage):
    """Takes down which keys were made, and when everything was flushed."""

    def __init__(self, root: Path, *, direct: bool = False) -> None:
        super().__init__(root, direct=direct)
        self.story: list[str] = []

    def flush(self) -> None:
        super().flush()
        self.story.append("flush")

    @contextmanager
    def create(self, key: str, *, size_hint: int = 0, durable: bool = True) -> Iterator[Sink]:
        with super().create(key, size_hint=size_hint, durable=durable) as sink:
            yield sink
        self.story.append(key if durable else f"not durable: {key}")


def test_shards_are_on_disk_before_the_journal_and_the_manifest_name_them(tmp_path: Path) -> None:
    storage = Recording(tmp_path / "d")
    manifest = generated(storage, samples=30, samples_per_shard=10, format="tar")
    story = storage.story
    entries = [n for n, key in enumerate(story) if key.startswith(f"{JOURNAL}/")]
    assert entries
    waiting: set[str] = set()
    named: set[str] = set()
    for n, key in enumerate(story[: entries[-1] + 1]):
        if key == "flush":
            named |= waiting
            waiting.clear()
        elif n in entries:
            assert not waiting, f"{waiting} may be lost, and {key} says that they are there"
        elif key.startswith("not durable: "):
            waiting.add(key.removeprefix("not durable: "))
        else:
            named.add(key)
    assert set(manifest.keys()) <= named
    assert story.index(SAMPLES) > entries[-1]
    assert story.index(SHARDS) > entries[-1]
    assert [key for key in story if key != "flush"][-1] == MANIFEST
