"""Every transport delivers every sample's true bytes, once; the truth is read from the shards by
other libraries.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np
import pytest
import simplejpeg
import torch
import zstandard

from iobench.errors import CorruptSampleError, UsageError, WorkerError
from iobench.load import BatchLoader, make_loader
from iobench.load.loader import worker_death
from iobench.schema.manifest import Manifest
from tests.conftest import ENGINES
from tests.pairs import pairs

TRANSPORTS = [("ring", 0), ("ring", 1), ("ring", 3), ("tensor", 0), ("tensor", 2), ("thread", 2)]

pytestmark = pytest.mark.usefixtures("nothing_left")


def stored(manifest: Manifest, path: Path) -> list[bytes]:
    """The stored bytes of each sample, in order, found by tarfile or by opening the sample's own
    file.
    """
    if manifest.spec.format == "files":
        return [(path / key).read_bytes() for key in manifest.keys()]  # noqa: SIM118
    found = []
    for key in manifest.keys():  # noqa: SIM118
        with tarfile.open(path / key) as tar:
            found += [tar.extractfile(member).read() for member in tar]  # type: ignore[union-attr]
    return found


def plain(manifest: Manifest, path: Path) -> list[bytes]:
    """The same, decompressed."""
    undo = {
        "none": bytes,
        "gzip": gzip.decompress,
        "lz4": lz4.frame.decompress,
        "zstd": lambda data: zstandard.decompress(data),
    }
    return [undo[manifest.spec.codec.partition(":")[0]](data) for data in stored(manifest, path)]


def decoded(manifest: Manifest, path: Path) -> list[bytes]:
    """The same, decoded."""
    undo = {
        "raw": bytes,
        "npz": lambda data: np.load(io.BytesIO(data))["x"].tobytes(),
        "jpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB").tobytes(),
    }
    return [undo[manifest.spec.content](data) for data in plain(manifest, path)]


@pytest.fixture(autouse=True)
def loaders_end(monkeypatch: pytest.MonkeyPatch, nothing_left: set[int]) -> Iterator[None]:
    """A test that fails leaves its loader in the traceback; its workers must not fail the next
    tests, too.
    """
    made: list[BatchLoader] = []
    build = BatchLoader.__init__

    def remember(self: BatchLoader, *arguments: Any, **more: Any) -> None:
        made.append(self)
        build(self, *arguments, **more)

    monkeypatch.setattr(BatchLoader, "__init__", remember)
    yield
    for loader in made:
        loader.shutdown()


def delivered(
    path: Path, *, transport: str, workers: int, batch_size: int = 7, **reader: Any
) -> dict[int, bytes]:
    loader = make_loader(
        path,
        batch_size=batch_size,
        seed=3,
        reader=reader,
        loader={"transport": transport, "workers": workers},
    )
    found: dict[int, bytes] = {}
    for batch in loader:
        for index, sample in zip(batch.indices.tolist(), batch, strict=True):
            assert index not in found
            found[index] = sample.numpy().tobytes()
    loader.shutdown()
    return found


@pytest.mark.parametrize(
    ("way", "form", "content", "engine"),
    pairs(TRANSPORTS, ["files", "tar"], ["raw", "npz", "jpeg"], ENGINES),
    indirect=["engine"],
)
def test_every_sample_arrives_once_and_whole(
    make_dataset: Any, way: tuple[str, int], form: str, content: str, engine: str
) -> None:
    transport, workers = way
    manifest, path = make_dataset(
        format=form, content=content, **({} if form == "files" else {"samples_per_shard": 25})
    )
    truth = decoded(manifest, path)
    found = delivered(path, transport=transport, workers=workers, engine=engine)
    assert len(found) == 60
    assert all(found[index] == truth[index] for index in range(60))


@pytest.mark.parametrize(
    ("way", "codec", "form", "engine"),
    pairs(
        [("ring", 2), ("tensor", 1), ("thread", 1)],
        ["gzip", "zstd:3", "lz4"],
        ["files", "tar"],
        ENGINES,
    ),
    indirect=["engine"],
)
def test_codecs_are_undone(
    make_dataset: Any, way: tuple[str, int], codec: str, form: str, engine: str
) -> None:
    transport, workers = way
    manifest, path = make_dataset(format=form, content="npz", codec=codec, compress_ratio=3)
    truth = decoded(manifest, path)
    found = delivered(path, transport=transport, workers=workers, access="random", engine=engine)
    assert [found[index] for index in range(60)] == truth


@pytest.mark.parametrize(
    ("direct", "decode", "engine"),
    pairs([True, False], [True, False], ENGINES),
    indirect=["engine"],
)
def test_sizes_that_vary(make_dataset: Any, direct: bool, decode: bool, engine: str) -> None:
    sizes = {"distribution": "lognormal", "mean": 30_000, "sigma": 1.0, "min": 300, "max": 200_000}
    manifest, path = make_dataset(
        format="tar", content="npz", sample_size=sizes, shard_size=300_000
    )
    truth = decoded(manifest, path) if decode else plain(manifest, path)
    for transport, workers in TRANSPORTS:
        reading = {"direct": direct, "decode": decode, "engine": engine}
        found = delivered(path, transport=transport, workers=workers, **reading)
        assert [found[index] for index in range(60)] == truth


def test_a_crop_is_the_beginning(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", content="jpeg")
    truth = [pixels[:5000] for pixels in decoded(manifest, path)]
    for transport, workers in TRANSPORTS:
        found = delivered(path, transport=transport, workers=workers, crop=5000)
        assert [found[index] for index in range(60)] == truth


def test_a_stacked_batch_is_the_samples_row_by_row(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar")
    truth = plain(manifest, path)
    for transport, workers in TRANSPORTS:
        loader = make_loader(
            path, batch_size=8, loader={"transport": transport, "workers": workers}
        )
        for batch in loader:
            assert [row.numpy().tobytes() for row in batch.stacked()] == [
                truth[index] for index in batch.indices.tolist()
            ]
        loader.shutdown()


def test_torch_works_on_the_batches(make_dataset: Any) -> None:
    _, path = make_dataset(format="tar")
    loader = make_loader(path, batch_size=8, loader={"workers": 2})
    assert isinstance(loader, torch.utils.data.DataLoader)
    total = sum(int(batch.stacked().to(torch.int64).sum()) for batch in loader)
    assert total == sum(sum(sample) for sample in plain(*make_dataset(format="tar")))
    loader.shutdown()


@pytest.mark.parametrize("workers", [0, 2])
def test_kept_batches_are_never_overwritten(make_dataset: Any, workers: int) -> None:
    manifest, path = make_dataset(format="tar")
    truth = plain(manifest, path)
    loader = make_loader(path, batch_size=3, loader={"workers": workers})
    kept = list(loader)  # 20 batches, many more than slots
    assert loader.ring is not None
    assert loader.ring.misses > 0
    for batch in kept:
        assert [sample.numpy().tobytes() for sample in batch] == [
            truth[index] for index in batch.indices.tolist()
        ]
    del kept, batch
    assert loader.ring.free == loader.ring.count  # every slot came back
    loader.shutdown()


def test_a_view_keeps_its_slot(make_dataset: Any) -> None:
    _, path = make_dataset(format="tar")
    loader = make_loader(path, batch_size=3, loader={"workers": 1})
    batches = iter(loader)
    view = next(batches)[1][5:10]
    before = view.clone()
    for batch in batches:
        assert len(batch)
    assert torch.equal(view, before)
    del batches, batch
    assert loader.ring is not None
    assert loader.ring.free == loader.ring.count - 1
    del view
    assert loader.ring.free == loader.ring.count
    loader.shutdown()


@pytest.mark.parametrize(
    ("transport", "persistent", "engine"),
    pairs(["ring", "tensor", "thread"], [True, False], ENGINES),
    indirect=["engine"],
)
def test_an_epoch_given_up_half_way_harms_no_later_one(
    make_dataset: Any, transport: str, persistent: bool, engine: str
) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=5)
    truth = plain(manifest, path)
    loader = make_loader(
        path,
        batch_size=4,
        reader={"engine": engine},
        loader={"workers": 2, "persistent_workers": persistent, "transport": transport},
    )
    orders = []
    for epoch in range(4):
        loader.set_epoch(epoch)
        seen = []
        for number, batch in enumerate(loader):
            assert [sample.numpy().tobytes() for sample in batch] == [
                truth[index] for index in batch.indices.tolist()
            ]
            seen += batch.indices.tolist()
            if epoch == 1 and number == 3:
                break
        orders.append(seen)
    assert [len(order) for order in orders] == [60, 16, 60, 60]
    assert sorted(orders[0]) == sorted(orders[2]) == sorted(orders[3]) == list(range(60))
    assert orders[0] != orders[2] != orders[3]  # persistent workers see the new epoch's order
    loader.shutdown()


def test_spawned_workers_get_the_ring(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar")
    truth = plain(manifest, path)
    loader = make_loader(path, batch_size=20, loader={"workers": 1, "start_method": "spawn"})
    assert {
        index: s.numpy().tobytes()
        for b in loader
        for index, s in zip(b.indices.tolist(), b, strict=True)
    } == dict(enumerate(truth))
    assert loader.ring is not None
    assert loader.ring.misses == 0
    loader.shutdown()


def test_a_batch_larger_than_a_slot_says_what_to_raise(make_dataset: Any) -> None:
    # Slots are whole huge pages of 2 MiB, so the batch (6 MB) has to be larger than one.
    _, path = make_dataset(format="tar", sample_size={"mean": 100_000})
    loader = make_loader(path, batch_size=60, loader={"workers": 1, "slot_size": 4096})
    with pytest.raises(UsageError, match=r"loader\.slot_size="):
        next(iter(loader))
    loader.shutdown()


@pytest.mark.parametrize(
    ("check", "form", "engine"),
    [
        ("content", "files", "io_uring"),
        ("content", "tar", "threads"),
        ("format", "tfrecord", "threads"),
        ("format", "tfrecord", "io_uring"),
        ("content", "tfrecord", "io_uring"),
    ],
    indirect=["engine"],
)
def test_a_flipped_bit_is_found_and_named(
    make_dataset: Any, tmp_path: Path, check: str, form: str, engine: str
) -> None:
    import shutil

    manifest, path = make_dataset(format=form, samples=61)
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    shard, offset = int(manifest.samples["shard"][17]), int(manifest.samples["offset"][17])
    file = copy / manifest.key(shard)
    data = bytearray(file.read_bytes())
    data[offset + 777] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptSampleError, match=f"sample 17 in shard {manifest.key(shard)}"):
        delivered(copy, transport="ring", workers=2, check=check, engine=engine)
    assert len(delivered(path, transport="ring", workers=1, check=check, engine=engine)) == 61


def test_a_killed_worker_ends_the_epoch_in_one_clear_error(make_dataset: Any) -> None:
    import os
    import signal

    _, path = make_dataset(format="tar", samples=600)
    loader = make_loader(path, batch_size=2, loader={"workers": 2})

    def train() -> None:
        for batch in loader:
            os.kill(batch.stats.process, signal.SIGKILL)

    with pytest.raises((WorkerError, RuntimeError)) as caught:
        train()
    # torch's signal handler may strike in the training code itself; there its own error surfaces.
    assert isinstance(caught.value, WorkerError) or isinstance(
        worker_death(caught.value), WorkerError
    )
    loader.shutdown()


def test_verification_over_the_ring_proves_that_nothing_is_torn(make_dataset: Any) -> None:
    """Workers check each sample's xxh3 before the slot is handed over; the consumer checks it again
    after.
    """
    import xxhash

    manifest, path = make_dataset(format="tar", samples=400)
    loader = make_loader(
        path, batch_size=5, reader={"check": "content", "access": "random"}, loader={"workers": 3}
    )
    for epoch in range(3):
        loader.set_epoch(epoch)
        seen = []
        for batch in loader:
            for index, sample in zip(batch.indices.tolist(), batch, strict=True):
                assert xxhash.xxh3_64_intdigest(sample.numpy()) == int(
                    manifest.samples["xxh3"][index]
                )
                seen.append(index)
        assert sorted(seen) == list(range(400))
    loader.shutdown()
