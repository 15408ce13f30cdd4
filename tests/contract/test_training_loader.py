"""make_loader for a training: labels, shapes, transforms and collates, checked against a plain
reading of the same data by other software.
"""

from __future__ import annotations

import gc
import io
import json
import re
import tarfile
import weakref
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
import torch

import iobench
from iobench.base.errors import DatasetError, UsageError
from iobench.cli.main import main
from iobench.load.build import make_loader, read_labels
from iobench.load.training.loader import TrainingLoader
from tests.conftest import MakeDataset
from tests.pairs import one_of

pytestmark = pytest.mark.usefixtures("nothing_left")

LABELLED: dict[str, Any] = {"content": "jpeg", "labels": 3, "sample_size": {"mean": 3000}}
TAR = {**LABELLED, "format": "tar", "samples_per_shard": 13}
CLASSES = ["zebra", "ant", "10", "9", "Bee"]

Load = Callable[..., TrainingLoader]


@pytest.fixture
def load() -> Iterator[Load]:
    """``make_loader`` of the package's page, whose loaders end with the test."""
    made: list[TrainingLoader] = []

    def make(data: Any, **more: Any) -> TrainingLoader:
        loader = iobench.make_loader(data, **{"batch_size": 7, "num_workers": 0, **more})
        assert isinstance(loader, TrainingLoader)
        made.append(loader)
        return loader

    yield make
    for loader in made:
        loader.shutdown()


def image(height: int, width: int, number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (height, width, 3), np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, quality=80))


def photos(folder: Path, *, sizes: list[tuple[int, int]]) -> list[tuple[bytes, str, int]]:
    """Photos of five classes: (JPEG, name of the class, number), as other software writes them."""
    found = []
    for number in range(20):
        size = sizes[number % len(sizes)]
        found.append((image(*size, number), CLASSES[number * 7 % 5], number))
    folder.mkdir()
    return found


def scanned(folder: Path) -> dict[str, Any]:
    """What opens the data of others: its manifest, and the place of the data."""
    manifest = folder.with_suffix(".manifest")
    code = main(["scan", str(folder), "--save", str(folder.with_suffix(".yaml")), "--quiet"])
    assert code == 0
    return {"data": manifest, "origin": str(folder)}


def as_folders(folder: Path, found: list[tuple[bytes, str, int]]) -> None:
    for data, name, number in found:
        (folder / name / f"part{number % 2}").mkdir(parents=True, exist_ok=True)
        (folder / name / f"part{number % 2}" / f"{number}.jpg").write_bytes(data)


def as_tars(folder: Path, found: list[tuple[bytes, str, int]]) -> None:
    for shard in range(2):
        with tarfile.open(folder / f"{shard}.tar", "w", format=tarfile.PAX_FORMAT) as archive:
            for data, name, number in found[shard * 10 : shard * 10 + 10]:
                about = json.dumps({"a": {"name": name, "number": number}}).encode()
                members = [("json", about), ("cls", b"%d\n" % (CLASSES.index(name) - 1))]
                for kind, part in (*members, ("jpg", data), ("txt", b"\xff\xfe")):
                    member = tarfile.TarInfo(f"train/{number:03d}.{kind}")
                    member.size = len(part)
                    archive.addfile(member, io.BytesIO(part))


def as_tables(folder: Path, found: list[tuple[bytes, str, int]]) -> None:
    for shard in range(2):
        part = found[shard * 10 : shard * 10 + 10]
        table = pa.table(
            {
                "image": [{"bytes": data, "path": f"{n}.jpg"} for data, _, n in part],
                "label": pa.array([CLASSES.index(name) for _, name, _ in part], pa.int64()),
                "name": [name for _, name, _ in part],
                "small": pa.array([n for _, _, n in part], pa.int32()),
                "holes": [None if n == 3 else n for _, _, n in part],
                "half": [n / 2 for _, _, n in part],
            }
        )
        pq.write_table(table, folder / f"{shard}.parquet", row_group_size=4)


WRITERS = {"folder": as_folders, "tar": as_tars, "table": as_tables}


@pytest.mark.parametrize(
    ("kind", "source", "expected"),
    one_of(
        2,
        [
            ("folder", "auto", lambda name, _: sorted(CLASSES).index(name)),
            ("tar", "auto", lambda name, _: CLASSES.index(name) - 1),
            ("tar", "member:json:a.name", lambda name, _: sorted(CLASSES).index(name)),
            ("tar", "member:json:a.number", lambda _, number: number),
            ("table", "auto", lambda name, _: CLASSES.index(name)),
            ("table", "column:name", lambda name, _: sorted(CLASSES).index(name)),
            ("table", "column:small", lambda _, number: number),
        ],
    ),
)
def test_the_labels_of_others_stay_with_their_images(
    tmp_path: Path, load: Load, kind: str, source: str, expected: Callable[[str, int], int]
) -> None:
    folder = tmp_path / "photos"
    found = photos(folder, sizes=[(24, 16)])
    WRITERS[kind](folder, found)
    loader = load(**scanned(folder), batch_size=6, labels=source, seed=4)
    truth = {
        simplejpeg.decode_jpeg(data, "RGB").tobytes(): expected(name, number)
        for data, name, number in found
    }
    seen = {}
    for images, labels in loader:
        assert images.dtype == torch.uint8
        assert images.shape[1:] == (24, 16, 3)
        assert labels.dtype == torch.int64
        assert labels.shape == images.shape[:1]
        for pixels, label in zip(images, labels.tolist(), strict=True):
            seen[pixels.numpy().tobytes()] = label
    assert seen == truth
    if source in ("member:json:a.name", "column:name") or kind == "folder":
        assert loader.labels.classes == tuple(sorted(CLASSES))
        assert loader.labels.class_to_index["ant"] == sorted(CLASSES).index("ant")
        assert loader.labels.class_count == 5


def test_raw_labels_are_what_the_data_has(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    found = photos(folder, sizes=[(24, 16)])
    as_tars(folder, found)
    data = scanned(folder)
    assert read_labels(**data, source="member:cls", raw=True).values == [
        f"{CLASSES.index(name) - 1}\n" for _, name, _ in found
    ]
    assert read_labels(**data, source="member:txt", raw=True).values == [b"\xff\xfe"] * 20
    with pytest.raises(UsageError, match="raw=True"):
        read_labels(**data, source="member:txt")
    for wrong in ("member:nothing", "member:json:a.nothing", "member:json:a", "member:txt:a"):
        with pytest.raises(DatasetError, match=r"^sample 0 in shard|^member"):
            read_labels(**data, source=wrong)


@pytest.mark.parametrize(
    ("column", "why"), [("holes", "no value"), ("half", "neither"), ("nothing", "it has: half")]
)
def test_a_column_without_labels_is_refused(tmp_path: Path, column: str, why: str) -> None:
    folder = tmp_path / "photos"
    as_tables(folder, photos(folder, sizes=[(24, 16)]))
    with pytest.raises(DatasetError, match=rf"^[01]\.parquet has no labels: .*{why}"):
        read_labels(**scanned(folder), source=f"column:{column}")


def test_labels_of_text_take_no_more_memory_than_is_plausible(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    samples = [np.random.default_rng(number).bytes(500) for number in range(600)]
    columns = {"x": samples, "label": ["a" * 200_000] * 600}  # 120 MB, of one value
    pq.write_table(pa.table(columns), folder / "0.parquet", compression="zstd")
    assert (folder / "0.parquet").stat().st_size < 310_000
    with pytest.raises(DatasetError, match="too many for"):
        read_labels(**scanned(folder))


def test_a_tar_that_changed_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    found = photos(folder, sizes=[(24, 16)])
    as_tars(folder, found)
    data = scanned(folder)
    as_tars(folder, found[:15])
    with pytest.raises(DatasetError, match="not those of the manifest"):
        read_labels(**data)


WAYS: list[dict[str, Any]] = [
    {"num_workers": 0},
    {"num_workers": 3},
    {"num_workers": 2, "loader": {"transport": "thread"}},
    {"num_workers": 2, "loader": {"transport": "tensor", "persistent_workers": False}},
]


@pytest.mark.parametrize(
    ("form", "layout", "ways"), [("tar", "HWC", WAYS), ("files", "CHW", WAYS[:1])]
)
def test_order_labels_and_pixels_do_not_depend_on_the_workers(
    make_dataset: MakeDataset, load: Load, form: str, layout: str, ways: list[dict[str, Any]]
) -> None:
    more = {} if form == "files" else {"samples_per_shard": 13}
    manifest, path = make_dataset(**LABELLED, format=form, **more)
    orders = []
    for way in ways:
        loader = load(path, labels="auto", layout=layout, seed=3, **way)
        order = []
        for epoch in (0, 1):
            loader.set_epoch(epoch)
            assert len(loader) == 9
            for examples in loader:
                order.append(examples.indices.tolist())
                samples, labels = examples
                assert labels.tolist() == [index % 3 for index in order[-1]]
                for index, pixels in zip(order[-1], samples, strict=True):
                    at = int(manifest.samples["offset"][index])
                    shard = manifest.key(int(manifest.samples["shard"][index]))
                    jpeg = (path / shard).read_bytes()[at : at + 3000]
                    expected = simplejpeg.decode_jpeg(jpeg, "RGB")
                    if layout == "CHW":
                        pixels = pixels.movedim(0, -1)
                    assert np.array_equal(pixels.numpy(), expected)
        assert sorted(chain(*order[:9])) == sorted(chain(*order[9:])) == list(range(60))
        orders.append(order)
        loader.shutdown()
    assert all(order == orders[0] for order in orders)
    assert orders[0][:9] != orders[0][9:]


class Halve:
    """A transform that can be pickled."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels[::2].float() / 255


@pytest.mark.parametrize(
    "way",
    [
        {"num_workers": 2},
        {"num_workers": 2, "loader": {"transport": "thread"}},
        pytest.param(
            {"num_workers": 1, "loader": {"start_method": "spawn"}}, marks=pytest.mark.nightly
        ),
    ],
)
def test_the_transform_sees_each_sample_once_in_order(
    make_dataset: MakeDataset, load: Load, way: dict[str, Any]
) -> None:
    _, path = make_dataset(**TAR)
    plain = load(path, labels="auto", seed=2)
    halved = load(path, labels="auto", seed=2, transform=Halve(), **way)
    pairs = list(zip(plain, halved, strict=True))
    assert len(pairs) == 9
    for before, after in pairs:
        assert torch.equal(after.labels, before.labels)
        assert torch.equal(after.samples, before.samples[:, ::2].float() / 255)


def test_a_transform_may_keep_what_it_was_given(make_dataset: MakeDataset, load: Load) -> None:
    """The memory of a sample that the transform still holds is not used again."""
    _, path = make_dataset(format="tar", content="raw", samples_per_shard=13)
    kept: list[torch.Tensor] = []

    def keep(sample: torch.Tensor) -> torch.Tensor:
        kept.append(sample)
        return sample

    for _ in load(path, transform=keep, collate=len):
        pass
    truth = [
        sample.numpy().tobytes()
        for batch in make_loader(path, batch_size=7, loader={"workers": 0, "transport": "tensor"})
        for sample in batch
    ]
    assert [sample.numpy().tobytes() for sample in kept] == truth


def test_nested_results_of_a_transform_are_stacked(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(**TAR)
    loader = load(
        path, transform=lambda pixels: {"mean": pixels.float().mean(), "tall": pixels.shape[0]}
    )
    examples = next(iter(loader))
    assert examples.labels is None
    assert examples.samples["mean"].shape == (7,)
    assert examples.samples["tall"].dtype == torch.int64
    again = type(examples)(*(part for part in examples))  # as Lightning moves it to a device
    assert again == (examples.samples, None)


def test_ragged_samples_need_a_stated_collate(tmp_path: Path, load: Load) -> None:
    folder = tmp_path / "photos"
    found = photos(folder, sizes=[(24, 16), (16, 24), (8, 8)])
    as_folders(folder, found)
    data = scanned(folder)
    truth = {
        number: simplejpeg.decode_jpeg(jpeg, "RGB") for number, (jpeg, _, _) in enumerate(found)
    }
    sizes = {pixels.tobytes(): pixels.shape for pixels in truth.values()}
    for more in ({}, {"transform": torch.clone}, {"layout": "CHW"}):
        with pytest.raises(UsageError, match=r"different shapes.*'pad', 'list'"):
            list(load(**data, batch_size=20, labels="auto", **more))
    for more in ({}, {"transform": torch.clone}):
        lists = load(**data, batch_size=20, num_workers=1, collate="list", **more)
        ((samples, _),) = lists
        assert {sample.numpy().tobytes(): tuple(sample.shape) for sample in samples} == sizes
        padded = load(**data, batch_size=20, num_workers=1, collate="pad", layout="CHW", **more)
        (((whole, shapes), _),) = padded
        assert whole.shape == (20, 3, 24, 24)
        assert int(whole.sum()) == sum(int(pixels.sum()) for pixels in truth.values())
        for pixels, (_, height, width) in zip(whole, shapes.tolist(), strict=True):
            alone = pixels[:, :height, :width].movedim(0, -1).contiguous().numpy()
            assert sizes[alone.tobytes()] == (height, width, 3)
    own = load(**data, batch_size=20, num_workers=1, collate=len)
    assert [examples.samples for examples in own] == [20]


def test_an_epoch_goes_on_where_its_state_was_taken(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(**TAR)
    more = {"batch_size": 7, "labels": "auto", "seed": 5}
    first = load(path, num_workers=2, **more)
    first.set_epoch(3)
    whole, state = [], {}
    for examples in first:
        whole.append(examples.indices.tolist())
        if len(whole) == 4:
            state = json.loads(json.dumps(first.state_dict()))
    assert first.state_dict()["batches"] == 9
    second = load(path, num_workers=1, **more)
    second.load_state_dict(state)
    second.set_epoch(3)
    assert [examples.indices.tolist() for examples in second] == whole[4:]
    next(iter(second))  # an epoch that is given up half way, and read again
    assert [examples.indices.tolist() for examples in second] == whole
    second.load_state_dict(state)
    second.set_epoch(4)
    assert len(list(second)) == 9
    for key, value in {"batch_size": 8, "seed": 6, "world": 2}.items():
        with pytest.raises(UsageError, match=key):
            second.load_state_dict({**state, key: value})


@pytest.mark.parametrize(
    ("form", "loader", "error"),
    [("parquet", {}, "workers 2"), ("files", {"in_order": False}, "in_order")],
)
def test_an_epoch_whose_order_depends_on_workers_goes_on_with_as_many_or_not_at_all(
    make_dataset: MakeDataset, load: Load, form: str, loader: dict[str, Any], error: str
) -> None:
    """Some samples were read twice, and others never."""
    _, path = make_dataset(format=form, samples=60)
    more = {"batch_size": 5, "labels": list(range(60)), "collate": "list"}

    def taken(workers: int) -> list[int]:
        first = load(path, num_workers=2, loader=loader, **more)
        batches = iter(first)
        seen = [number for _ in range(3) for number in next(batches).indices.tolist()]
        second = load(path, num_workers=workers, loader=loader, **more)
        second.load_state_dict(first.state_dict())
        return seen + [number for examples in second for number in examples.indices.tolist()]

    with pytest.raises(UsageError, match=error):
        taken(3)
    if not loader:
        assert sorted(taken(2)) == list(range(60))


def fails(sample: Any) -> Any:
    raise RuntimeError("two\nlines")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_own_mistakes_are_one_line(
    make_dataset: MakeDataset, load: Load, workers: int
) -> None:
    _, path = make_dataset(**TAR)
    for more, why in (
        ({"transform": fails}, r"^the transform failed on sample \d+ \(.*py:\d+\): RuntimeError"),
        ({"transform": lambda _: None}, r"^the transform returned None for sample"),
        ({"collate": fails}, r"^the collate function failed \(.*py:\d+\): RuntimeError: two\."),
        ({"transform": lambda _: object()}, r"^the samples of a batch cannot be stacked"),
        ({"transform": lambda _: "text", "collate": "pad"}, "^collate='pad' takes tensors"),
    ):
        with pytest.raises(UsageError, match=why):
            list(load(path, num_workers=workers, **more))


def test_a_loader_that_is_dropped_is_gone_at_once(make_dataset: MakeDataset) -> None:
    """A garbage collection would end its workers while the threads of their queues are at work."""
    _, path = make_dataset(**TAR)
    loader = iobench.make_loader(path, batch_size=7, num_workers=1, labels="auto")
    for examples in loader:
        del examples
    inner = weakref.ref(loader)
    gc.disable()
    try:
        del loader
        assert inner() is None
    finally:
        gc.enable()


def test_what_cannot_be_given_is_refused_in_one_line(make_dataset: MakeDataset, load: Load) -> None:
    _, tar = make_dataset(**TAR)
    _, plain = make_dataset(content="jpeg", format="tar", sample_size={"mean": 3000})
    _, raw = make_dataset(format="tar", content="raw")
    _, record = make_dataset(format="tfrecord")
    _, table = make_dataset(format="parquet")
    for path, more, why in (
        (plain, {"labels": "auto"}, "--set labels=10"),
        (record, {"labels": "auto"}, "format 'tfrecord' has no labels"),
        (table, {"labels": "auto"}, "no column 'label'"),
        (tar, {"labels": "folder"}, "need format files"),
        (tar, {"labels": "shelf:x"}, "not a source"),
        (tar, {"labels": [1, 2]}, "2 labels.*60 samples"),
        (tar, {"labels": 5}, "cannot be a int"),
        (tar, {"labels": [0.5] * 60}, "cannot be a list"),
        (tar, {"labels": [1 << 70] * 60}, "cannot be a list"),
        (tar, {"labels": [1 << 63] * 60}, "cannot be a list"),
        (tar, {"layout": "WHC"}, "layout 'WHC' is not known"),
        (raw, {"layout": "CHW"}, "content 'raw'"),
        (tar, {"layout": "CHW", "reader": {"decode": False}}, "reader.decode off"),
        (tar, {"labels": "auto", "reader": {"crop": 300}}, "in a transform"),
        (tar, {"transform": "flip"}, "transform is a str"),
        (tar, {"collate": "sum"}, "collate 'sum'"),
        (tar, {"labels": "auto", "loader": {"kind": "webdataset"}}, "iobench's own loader"),
        (tar, {"labels": "auto", "loader": {"transport": "null"}}, "byte counts"),
        (tar, {"labels": "auto", "rank": 2, "world": 2}, "rank 2 is not one of 2 ranks"),
        (tar, {"rank": -1, "world": 2}, "rank -1"),
    ):
        with pytest.raises((UsageError, DatasetError), match=why):
            load(path, **more)
    spawn = {"start_method": "spawn"}
    with pytest.raises(UsageError, match="start_method"):
        load(tar, num_workers=1, transform=lambda sample: sample, loader=spawn)


def test_a_table_of_labels_may_be_the_users_own(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(format="tfrecord", content="raw")
    numbers = list(range(100, 160))
    for table in (numbers, np.array(numbers, np.int32), torch.tensor(numbers)):
        for examples in load(path, batch_size=60, labels=table):
            assert examples.labels.tolist() == [100 + index for index in examples.indices]
            assert examples.samples.shape == (60, 20_000)
    names = load(path, batch_size=60, labels=["b", "a"] * 30)
    assert names.labels.classes == ("a", "b")


@pytest.mark.nightly
def test_the_script_of_the_documentation_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(import iobench\n.*?)```", page, flags=re.S)
    assert len([line for line in script.splitlines() if line]) < 30
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(script, "api.md", "exec"), names)
    names["loader"].shutdown()
    told = re.findall(r"loss ([\d.]+), (\d+)% right", capsys.readouterr().out)
    assert len(told) == 4
    assert float(told[-1][0]) < float(told[0][0])
    assert int(told[-1][1]) > 70  # ten classes: chance is 10
