"""Generation from end to end on a real directory: same bytes always, resumable, never overwriting;
verify and clean.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.base.errors import (
    DatasetError,
    IobenchError,
    MissingPlaceError,
    TargetRefusedError,
)
from iobench.data.dataset import load_manifest
from iobench.data.generator import plan
from iobench.data.generator.cleaner import clean
from iobench.data.generator.engine import generate
from iobench.data.generator.writer import UnitWriter
from iobench.data.verify import verify
from iobench.record.manifest import Manifest
from iobench.settings.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.datasets import spec_of
from tests.processes import PATIENCE_S, Command, Ended, running, wait_until

SIZE = {"distribution": "normal", "mean": 20_000, "stdev": 5_000, "min": 1500}


def spec(**changes: Any) -> DatasetSpec:
    usual = {"name": "t", "samples": 120, "sample_size": SIZE, "format": "tar"}
    return spec_of(**{**usual, "shard_size": "300kB", **changes})


def files(root: Path) -> dict[str, str]:
    """Digest of every file below ``root``; the time of creation, which is no part of the data, is
    left out.
    """
    found = {}
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.name in ("manifest.json", ".iobench-dataset"):
            data = json.dumps({**json.loads(data), "created": "", "made_root": ""}).encode()
        found[str(path.relative_to(root))] = hashlib.sha256(data).hexdigest()
    return found


def stored(root: Path, manifest: Manifest, index: int) -> bytes:
    shard = int(manifest.samples["shard"][index])
    offset, size = int(manifest.samples["offset"][index]), int(manifest.samples["stored"][index])
    return (root / manifest.key(shard)).read_bytes()[offset : offset + size]


@pytest.mark.usefixtures("small_units")
@pytest.mark.parametrize("form", ["files", "tar"])
def test_same_bytes_whatever_the_workers(tmp_path: Path, form: str) -> None:
    wanted = spec(
        format=form,
        samples=90,
        sample_size={"mean": 2000},
        shard_size=None if form == "files" else 2000,
    )
    seen = []
    for workers in (0, 1, 2, 5):
        report = generate(wanted, LocalStorage(tmp_path / f"{workers}"), workers=workers)
        assert report.written_samples == 90
        seen.append(files(tmp_path / f"{workers}"))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert not any("journal" in name or name.endswith(".part") for name in seen[0])


def test_seeds_differ(tmp_path: Path) -> None:
    """Of samples of one size, so that only what is in them can differ."""
    for seed in (1, 2):
        wanted = spec(seed=seed, sample_size={"mean": 8000}, format="files", shard_size=None)
        generate(wanted, LocalStorage(tmp_path / str(seed)), workers=0)
    a, b = ([path.read_bytes() for path in (tmp_path / seed).rglob("*.bin")] for seed in "12")
    assert {len(sample) for sample in a + b} == {8000}
    assert len(set(a + b)) == 2 * 120


@pytest.mark.parametrize("codec", ["gzip:1", "zstd:1", "lz4"])
def test_codec_and_compress_ratio_show_in_the_files(tmp_path: Path, codec: str) -> None:
    """The field's reference benchmark takes a compression setting and stores its files
    uncompressed.
    """
    wanted = spec(
        format="files",
        shard_size=None,
        samples=20,
        sample_size={"mean": 400_000},
        codec=codec,
        compress_ratio=4,
    )
    manifest = generate(wanted, LocalStorage(tmp_path / "d"), workers=0).manifest
    on_disk = sum(p.stat().st_size for p in (tmp_path / "d" / "data").rglob("*") if p.is_file())
    assert on_disk == manifest.header.stored_bytes
    assert 8_000_000 / on_disk == pytest.approx(4, rel=0.1)


def test_nothing_is_ever_overwritten(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("precious")
    with pytest.raises(TargetRefusedError, match=r"thesis\.txt"):
        generate(spec(), LocalStorage(foreign), workers=0)
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    generate(spec(), LocalStorage(tmp_path / "d"), workers=0)
    before = files(tmp_path / "d")
    with pytest.raises(TargetRefusedError, match="iobench clean"):
        generate(spec(seed=2), LocalStorage(tmp_path / "d"), workers=0)
    assert files(tmp_path / "d") == before


@pytest.fixture
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit of work has 20 shards. Processes are forked, so it holds there, too."""
    monkeypatch.setattr(plan, "_UNIT_SHARDS", 20)


@pytest.fixture
def generation(
    tmp_path: Path, small_units: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Command]:
    """A generation to ``d`` that goes on no further once a unit of its work is finished, and
    another one has begun.
    """
    write, journal = UnitWriter._make_shard, tmp_path / "d" / ".iobench-journal"

    def wait_first(self: UnitWriter, sink: Any, shard: int, rows: Any, *more: Any) -> None:
        while shard != self.plan.units[rows.unit] and any(journal.glob("*.json")):
            time.sleep(0.01)
        write(self, sink, shard, rows, *more)

    def in_the_middle() -> bool:
        shards = [path for path in (tmp_path / "d").rglob("*.bin") if path.is_file()]
        return 0 < 20 * len(list(journal.glob("*.json"))) < len(shards)

    monkeypatch.chdir(tmp_path)
    Path("t.yaml").write_text(LARGER.model_dump_json())
    with monkeypatch.context() as patch:
        patch.setattr(UnitWriter, "_make_shard", wait_first)
        process = running("generate t.yaml --to d --workers 2", folder=tmp_path)
        with process as begun:
            patch.undo()
            wait_until(in_the_middle, "no unit is finished")
            yield begun


LARGER = spec(format="files", shard_size=None, samples=90, sample_size={"mean": 2000})


def end(process: Command, how: signal.Signals) -> Ended:
    """End a generation by a signal, and its workers with it."""
    wait_until(lambda: len(process.children()) == 2, "the workers are not there")
    workers = [psutil.Process(pid) for pid in process.children()]
    process.signal(how)
    ended = process.wait()
    assert not psutil.wait_procs(workers, timeout=PATIENCE_S)[1]
    return ended


def check_complete(root: Path) -> None:
    generate(LARGER, LocalStorage(root), workers=2)
    assert verify(LocalStorage(root), load_manifest(root)).ok


@pytest.mark.parametrize(
    ("how", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 130, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_stopped_in_the_middle_then_resumed(
    tmp_path: Path, generation: Command, how: signal.Signals, code: int
) -> None:
    ended = end(generation, how)
    assert ended.code == code
    if how != signal.SIGKILL:
        assert ended.err.startswith("iobench: generation stopped")
    with pytest.raises(DatasetError, match="iobench generate"):
        load_manifest(tmp_path / "d")
    with pytest.raises(TargetRefusedError, match="iobench clean"):
        generate(LARGER.model_copy(update={"seed": 99}), LocalStorage(tmp_path / "d"))
    report = generate(LARGER, LocalStorage(tmp_path / "d"), workers=2)
    assert 0 < report.written_samples < 90
    generate(LARGER, LocalStorage(tmp_path / "reference"), workers=0)
    assert files(tmp_path / "d") == files(tmp_path / "reference")
    check_complete(tmp_path / "d")


@pytest.mark.slow
def test_half_generated_is_cleaned_too(tmp_path: Path, generation: Command) -> None:
    end(generation, signal.SIGKILL)
    (tmp_path / "d" / "data" / "notes.txt").write_text("mine")
    assert clean(tmp_path / "d").foreign == ["data/notes.txt"]
    assert [p.name for p in (tmp_path / "d").rglob("*") if p.is_file()] == ["notes.txt"]


@pytest.mark.slow
def test_a_killed_worker_is_one_clear_error_and_resumable(
    tmp_path: Path, generation: Command
) -> None:
    os.kill(generation.children()[0], signal.SIGKILL)
    ended = generation.wait()
    assert (ended.code, ended.err.count("\n")) == (1, 1)
    assert "Killed" in ended.err
    check_complete(tmp_path / "d")


@pytest.mark.slow
def test_a_damaged_journal_entry_is_done_again(tmp_path: Path, generation: Command) -> None:
    end(generation, signal.SIGKILL)
    for entry in (tmp_path / "d" / ".iobench-journal").glob("*.json"):
        entry.write_bytes(entry.read_bytes()[:-50])
    assert generate(LARGER, LocalStorage(tmp_path / "d"), workers=2).written_samples == 90
    check_complete(tmp_path / "d")


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("form", "codec"), [("tar", "zstd"), ("tfrecord", "none")])
def test_verify_names_shard_and_sample(tmp_path: Path, form: str, codec: str) -> None:
    root = tmp_path / "d"
    manifest = generate(spec(format=form, codec=codec), LocalStorage(root), workers=0).manifest
    assert manifest.shard_count >= 6
    middle = [int(manifest.shards["first"][s]) + 3 for s in range(6)]
    at = [int(manifest.samples["offset"][i]) for i in middle]
    keys = [manifest.key(s) for s in range(6)]
    damage(root / keys[0], at[0] + int(manifest.samples["stored"][middle[0]]) // 2)  # in a sample
    damage(root / keys[1], at[1] - 3)  # in the framing before one
    os.truncate(root / keys[2], at[2] + 100)
    (root / keys[3]).unlink()
    with (root / keys[4]).open("ab") as file:
        file.write(b"more")
    for workers, direct in ((0, False), (2, False), (0, True)):
        report = verify(LocalStorage(root, direct=direct), load_manifest(root), workers=workers)
        assert not report.ok
        found = {(d.shard, d.sample) for d in report.damages}
        named = [*zip(keys[:3], middle[:3], strict=True), *((key, None) for key in keys[2:5])]
        assert set(named) <= found
        assert {shard for shard, _ in found} == set(keys[:5])
        assert len([d for d in report.damages if d.shard == keys[0]]) == 1
        assert report.shards == manifest.shard_count


def test_verify_sees_the_very_last_byte(tmp_path: Path) -> None:
    manifest = generate(spec(), LocalStorage(tmp_path / "d"), workers=0).manifest
    damage(tmp_path / "d" / manifest.key(0), -1)
    (found,) = verify(LocalStorage(tmp_path / "d"), manifest, workers=0).damages
    assert (found.shard, found.sample) == (manifest.key(0), None)


def test_verify_stops_at_a_bound(tmp_path: Path) -> None:
    manifest = generate(
        spec(format="files", shard_size=None, samples=300), LocalStorage(tmp_path / "d"), workers=0
    ).manifest
    for key in manifest.keys():  # noqa: SIM118
        damage(tmp_path / "d" / key, 50)
    report = verify(LocalStorage(tmp_path / "d"), manifest, workers=0)
    assert len(report.damages) == 100
    assert report.stopped


class TestClean:
    def test_removes_exactly_its_own(self, tmp_path: Path) -> None:
        root = tmp_path / "d"
        generate(spec(), LocalStorage(root), workers=0)
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "t-000000.tar").write_text("not yours")
        (root / "data" / "t-999999.tar").write_text("looks like one of ours, is not in the plan")
        (root / "mine").mkdir()
        (root / "data" / "link").symlink_to(outside)
        (root / "data" / "t-000001.tar").unlink()
        (root / "data" / "t-000001.tar").symlink_to(outside / "t-000000.tar")
        dry = clean(root, dry_run=True)
        assert (root / "manifest.json").is_file()
        report = clean(root)
        assert (dry.files, dry.bytes) == (report.files, report.bytes)
        assert (
            report.foreign
            == dry.foreign
            == ["data/link", "data/t-000001.tar", "data/t-999999.tar", "mine"]
        )
        assert sorted(str(p.relative_to(root)) for p in root.rglob("*")) == [
            "data",
            *report.foreign,
        ]
        assert (outside / "t-000000.tar").read_text() == "not yours"

    def test_refuses_what_is_not_a_dataset(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("y")
        with pytest.raises(TargetRefusedError, match=r"\.iobench-dataset"):
            clean(tmp_path)
        with pytest.raises(MissingPlaceError, match="missing"):
            clean(tmp_path / "missing")
        (tmp_path / ".iobench-dataset").write_text("{}")
        with pytest.raises(IobenchError, match=r"\.iobench-dataset"):
            clean(tmp_path)
        assert (tmp_path / "x").read_text() == "y"
