"""Records that are read again (a sweep's, a layout's, an index) lead to no place of their own."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.tuning.sweepfolder import _builtin
from iobench.base.errors import DatasetError, IobenchError, StorageError, UsageError
from iobench.cli.main import main
from iobench.load.layouts import layout_keys, made_layout, make_layout, read_layout
from iobench.load.libraries.base import Source
from iobench.record.job import WorkloadFacts
from iobench.record.run import TrainingRecord
from iobench.record.sweep import SweepPoint, save_sweep
from iobench.record.training import TrainingRun
from iobench.runner.sweeping.confirm import GivenAgain, take_up
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.servers.listener import Listener, listener
from tests.unit.conftest import build_sweep

__all__ = ["listener"]


def saved(folder: Path, **changed: Any) -> Path:
    points = [SweepPoint(settings={"loader.workers": n}, data="data/x") for n in (0, 1)]
    asked = {"axes": {"loader.workers": [0, 1]}, "points": points, "samples": 20}
    sweep = build_sweep(data_root="data", repetitions=1, **asked)
    folder.mkdir(exist_ok=True)
    save_sweep(folder, sweep.model_copy(update=changed))
    return folder


@pytest.mark.parametrize("word", ["--resume", "--confirm"])
@pytest.mark.parametrize(
    "root",
    [
        "s3://victim/p?endpoint={url}&retries=0",
        "throttled+s3://victim/p?endpoint={url}",
        "{url}/x",
        "memory://bucket/x",
    ],
)
def test_a_sweep_goes_to_no_url_by_itself(
    word: str, root: str, listener: Listener, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "s", data_root=root.format(url=listener.url))
    results = ("--results", str(tmp_path / "results"))
    assert main(["sweep", word, str(folder), *results]) == 2
    assert "--to" in capsys.readouterr().err
    assert main(["sweep", word, str(folder), "--to", "memory://bucket/y", *results]) == 2
    assert listener.requests == []
    assert not (tmp_path / "results").exists()


def test_a_sweep_goes_where_the_user_says_again(tmp_path: Path) -> None:
    folder = saved(tmp_path / "s", data_root="memory://bucket/x")
    sweep = take_up(folder, GivenAgain(data_root="memory://bucket/x"))
    assert all(point.data.startswith("memory://bucket/x/demo-") for point in sweep.points)
    assert take_up(saved(tmp_path / "t"), GivenAgain()).points[0].data.startswith("data/demo-")


SMUGGLED: dict[str, dict[str, Any]] = {
    "override": {"overrides": ["storage.endpoint=http://127.0.0.1:9"]},
    "override with a blank": {"overrides": [" storage.endpoint=http://127.0.0.1:9"]},
    "override of all": {"overrides": ["storage={endpoint: 'http://127.0.0.1:9'}"]},
    "setting": {
        "points": [SweepPoint(settings={"storage.endpoint": "http://127.0.0.1:9"}, data="data/x")]
    },
}


@pytest.mark.parametrize("how", SMUGGLED)
def test_a_sweep_brings_no_options_along(how: str, tmp_path: Path) -> None:
    """The user names the root, and the file adds another server to it."""
    folder = saved(tmp_path / "s", data_root="s3://bucket/x", **SMUGGLED[how])
    with pytest.raises(UsageError):
        take_up(folder, GivenAgain(data_root="s3://bucket/x"))
    other = GivenAgain(data_root="s3://bucket/x", overrides=["storage.endpoint=http://127.0.0.1:8"])
    with pytest.raises(UsageError):
        take_up(folder, other)
    again = ["storage.endpoint=http://127.0.0.1:9"]
    assert take_up(folder, GivenAgain(data_root="s3://bucket/x", overrides=again)).points


def test_a_sweep_brings_no_workload_with_options_along(tmp_path: Path) -> None:
    mine = tmp_path / "w.yaml"
    mine.write_text(
        "{name: w, dataset: demo, batch_size: 2, accelerator: {kind: 'null'},"
        " storage: {endpoint: 'http://127.0.0.1:9'}}"
    )
    folder = saved(tmp_path / "s", data_root="s3://bucket/x", workload=str(mine))
    with pytest.raises(UsageError):
        take_up(folder, GivenAgain(data_root="s3://bucket/x"))
    assert take_up(folder, GivenAgain(data_root="s3://bucket/x", workload=str(mine))).points


def test_axes_of_the_storage_are_given_again(tmp_path: Path) -> None:
    points = [
        SweepPoint(settings={"storage.client": name}, data="x") for name in ("obstore", "boto3")
    ]
    folder = saved(tmp_path / "s", data_root="s3://bucket/x", points=points)
    with pytest.raises(UsageError):
        take_up(folder, GivenAgain(data_root="s3://bucket/x"))
    axes = {"storage.client": ["obstore", "boto3"]}
    assert len(take_up(folder, GivenAgain(data_root="s3://bucket/x", axes=axes)).points) == 2


def test_a_points_data_lies_below_the_sweeps_root(tmp_path: Path) -> None:
    points = [SweepPoint(settings={"loader.workers": 1}, data="s3://victim/p")]
    sweep = take_up(saved(tmp_path / "s", points=points), GivenAgain())
    assert [point.data.partition("-")[0] for point in sweep.points] == ["data/demo"]


def test_a_secret_in_a_data_root_is_not_written_down(tmp_path: Path) -> None:
    words = ("--sweep", "loader.workers=1,2", "--results", str(tmp_path / "results"))
    root = "https://canary@127.0.0.1:9/x"
    assert main(["sweep", "demo", "--to", root, *words]) == 2
    assert not (tmp_path / "results").exists()


def test_a_record_names_no_workload_file(tmp_path: Path) -> None:
    """A run's record is looked up among the workloads by name, not opened as a path."""
    os.mkfifo(tmp_path / "pipe.yaml")
    document = TrainingRecord.model_construct(
        job=TrainingRun(
            workload=WorkloadFacts(
                name=str(tmp_path / "pipe.yaml"), accelerator=AcceleratorSpec(kind="null")
            )
        )
    )
    assert _builtin(document, ["loader.workers"]) == {}


# Layouts


@pytest.fixture
def laid_out(make_dataset: Any, tmp_path: Path) -> Source:
    """A dataset with litdata's layout, freshly made."""
    pytest.importorskip("litdata")
    from iobench.data.generator.engine import generate

    manifest, _ = make_dataset(samples=12)
    generate(manifest.spec, LocalStorage(tmp_path / "d"), workers=0)
    source = Source(
        manifest,
        LocalStorage(tmp_path / "d"),
        ReaderSpec(decode=False),
        LoaderSpec(kind="litdata"),
        4,
    )
    make_layout(source, "litdata 1")
    return source


def layout(source: Source) -> Path:
    return LocalStorage(source.storage.url).root / "layouts" / "litdata"


@pytest.mark.parametrize(
    "change",
    [
        {"data_format": ["pickle"]},
        {"data_format": ["bytes", "pickle"]},
        {"compression": "zstd"},
        {"item_loader": "TokensLoader"},
        {"data_spec": "[1, {}]"},
    ],
)
def test_a_layout_of_other_items_is_refused(laid_out: Source, change: dict[str, Any]) -> None:
    """litdata would unpickle items whose index says so."""
    index = layout(laid_out) / "index.json"
    document = json.loads(index.read_text())
    document["config"] |= change
    index.write_text(json.dumps(document))
    with pytest.raises(DatasetError):
        made_layout(laid_out.manifest, laid_out.storage, "litdata")


@pytest.mark.parametrize(
    "name", ["../../../x.bin", "/etc/passwd", "chunk-0-0.bin/../x", "other.bin", "chunk-9-9.bin"]
)
def test_a_layout_of_other_files_is_refused(laid_out: Source, name: str) -> None:
    index = layout(laid_out) / "index.json"
    document = json.loads(index.read_text())
    document["chunks"][0]["filename"] = name
    index.write_text(json.dumps(document))
    with pytest.raises(DatasetError):
        made_layout(laid_out.manifest, laid_out.storage, "litdata")


@pytest.mark.parametrize("name", ["../../samples.arrow", "/etc/passwd", "./index.json", ""])
def test_a_record_of_other_files_is_none(laid_out: Source, name: str) -> None:
    record = layout(laid_out) / "layout.json"
    document = json.loads(record.read_text())
    record.write_text(json.dumps(document | {"files": [name]}))
    assert read_layout(laid_out.storage, "litdata") is None
    assert layout_keys(laid_out.storage, "litdata") == []


@pytest.mark.parametrize("link", ["layouts", "layouts/litdata", "layouts/litdata.part"])
def test_no_layout_is_written_through_a_link(link: str, make_dataset: Any, tmp_path: Path) -> None:
    from iobench.data.generator.engine import generate

    manifest, _ = make_dataset(samples=12)
    root, outside = tmp_path / "d", tmp_path / "outside"
    generate(manifest.spec, LocalStorage(root), workers=0)
    (outside / "litdata.part").mkdir(parents=True)
    (outside / "litdata.part" / "precious").write_text("x")
    (root / link).parent.mkdir(exist_ok=True)
    (root / link).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    source = Source(
        manifest, LocalStorage(root), ReaderSpec(decode=False), LoaderSpec(kind="litdata"), 4
    )
    with pytest.raises((StorageError, UsageError)):
        make_layout(source, "litdata 1")
    assert sorted(outside.rglob("*")) == before


def test_an_index_of_others_is_refused(make_dataset: Any, tmp_path: Path) -> None:
    """MDS: mosaicml-streaming opens what it names, and unpickles columns that it calls pickled."""
    from iobench.data.generator.engine import generate

    manifest, _ = make_dataset(samples=12, format="mds", samples_per_shard=6)
    generate(manifest.spec, LocalStorage(tmp_path / "d"), workers=0)
    source = Source(
        manifest, LocalStorage(tmp_path / "d"), ReaderSpec(), LoaderSpec(kind="torch-map"), 4
    )
    source.check_index()
    index = tmp_path / "d" / "data" / "index.json"
    document = json.loads(index.read_text())
    document["shards"][0]["column_encodings"] = ["pkl"]
    index.write_text(json.dumps(document))
    with pytest.raises(IobenchError):
        source.check_index()
