"""Every format through every transport: each sample's true bytes, once. The truth is read from the
shards by other libraries.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.base.errors import CorruptSampleError, UsageError
from iobench.data.verify import verify
from iobench.load.choose import make_reader
from iobench.settings.workload import ReaderSpec
from iobench.storage.local.storage import LocalStorage
from tests.conftest import ENGINES, MakeDataset
from tests.contract.conftest import Load
from tests.contract.truth import decoded, in_order, plain, stored
from tests.pairs import one_of, pairs

TRANSPORTS = [("ring", 0), ("ring", 1), ("ring", 3), ("tensor", 0), ("tensor", 2), ("thread", 2)]
"""(transport, workers)"""

SOME = [("ring", 0), ("tensor", 2), ("thread", 2)]
"""Each transport once."""

VARIED = {"distribution": "lognormal", "mean": 3000, "sigma": 0.8, "min": 200, "max": 20_000}


def spec(form: str, **more: Any) -> dict[str, Any]:
    return {"format": form, **more}


SMALL = {"mean": 30}
LARGER = {**VARIED, "mean": 30_000, "min": 300, "max": 200_000}

SPECS: dict[str, dict[str, Any]] = {
    "files behind lz4": spec("files", codec="lz4", compress_ratio=2),
    "files of jpeg": spec("files", content="jpeg"),
    # So small that a request spans what lies between samples.
    "small samples in tar": spec("tar", sample_size={"mean": 700}),
    "tar of jpeg behind gzip": spec("tar", content="jpeg", codec="gzip:1"),
    "tar of npz of any size behind zstd": spec(
        "tar",
        content="npz",
        codec="zstd:3",
        compress_ratio=3,
        sample_size=LARGER,
        shard_size=300_000,
    ),
    "tfrecord": spec("tfrecord", samples_per_shard=13),
    "tfrecord of npz behind zstd": spec("tfrecord", content="npz", codec="zstd:1"),
    "hdf5": spec("hdf5", samples_per_shard=13),
    "hdf5 of any size behind gzip": spec(
        "hdf5", sample_size=VARIED, codec="gzip:1", compress_ratio=3
    ),
    "many small samples in hdf5": spec("hdf5", sample_size=SMALL, samples=500),
    "hdf5 of npz": spec("hdf5", content="npz"),
    "parquet of any size behind zstd": spec(
        "parquet", sample_size=VARIED, codec="zstd:1", compress_ratio=3, block_size=9000
    ),
    "parquet of columns behind lz4": spec(
        "parquet", sample_size=VARIED, columns=7, codec="lz4", compress_ratio=2, block_size=16_384
    ),
    "parquet of many columns behind gzip": spec(
        "parquet", sample_size={"mean": 761}, columns=200, codec="gzip", block_size=7610
    ),
    "parquet of jpeg": spec("parquet", content="jpeg", samples_per_shard=25),
    "lmdb of any size": spec("lmdb", sample_size=VARIED, samples_per_shard=25),
    "lmdb of npz": spec("lmdb", content="npz", samples_per_shard=30),
    "many small samples in lmdb": spec("lmdb", sample_size=SMALL, samples=500),
    "mds": spec("mds", samples_per_shard=25),
    "tokens": spec("tokens", sample_size={"mean": 4098}, samples_per_shard=25),
}
READING: dict[str, dict[str, Any]] = {
    "in any order": {"access": "random"},
    "checked": {"access": "sequential", "check": "content"},
    "not decoded": {"decode": False, "check": "format"},
    "buffered": {"direct": False},
    "by a map": {"engine": "threads", "mmap": True, "decode": False},  # it issues no reads
}

pytestmark = pytest.mark.usefixtures("nothing_left")


BY = list(itertools.product([("ring", 0), ("thread", 2)], ENGINES))

TWICE = [
    pytest.param(
        *(what, list(READING)[(place + 2 * turn) % len(READING)], *BY[(place + turn) % len(BY)]),
        marks=[pytest.mark.slow] * turn,
    )
    for turn in range(2)
    for place, what in enumerate(SPECS)
]
"""Each dataset in two of the ways to read, which differ from those of the next dataset."""


@pytest.mark.parametrize(("what", "reading", "way", "engine"), TWICE, indirect=["engine"])
def test_every_format_is_read_as_others_read_it(
    make_dataset: MakeDataset,
    load: Load,
    what: str,
    reading: str,
    way: tuple[str, int],
    engine: str,
) -> None:
    manifest, path = make_dataset(**SPECS[what])
    reader = {"engine": engine, **READING[reading]}
    expected = (decoded if reader.get("decode", True) else plain)(manifest, path)
    assert len(expected) == manifest.sample_count
    assert in_order(load(path, way, seed=5, reader=reader)) == expected


@pytest.mark.parametrize("what", SPECS)
def test_what_was_generated_is_verified(make_dataset: MakeDataset, what: str) -> None:
    manifest, path = make_dataset(**SPECS[what])
    assert verify(LocalStorage(path), manifest, workers=0).ok


@pytest.mark.parametrize(
    ("way", "what", "engine"),
    one_of(
        2,
        pairs(
            TRANSPORTS,
            [
                "files of jpeg",
                "tar of npz of any size behind zstd",
                "parquet of columns behind lz4",
            ],
            ENGINES,
        ),
    ),
    indirect=["engine"],
)
def test_every_sample_arrives_once_and_whole(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], what: str, engine: str
) -> None:
    manifest, path = make_dataset(**SPECS[what])
    found = in_order(load(path, way, seed=3, reader={"engine": engine}))
    assert found == decoded(manifest, path)


@pytest.mark.parametrize(
    ("what", "workers", "engine"),
    pairs(["files behind lz4", "small samples in tar", "tfrecord"], [0, 2], ENGINES),
    indirect=["engine"],
)
def test_counts_only(
    make_dataset: MakeDataset, load: Load, what: str, workers: int, engine: str
) -> None:
    manifest, path = make_dataset(**SPECS[what])
    batches = list(load(path, ("null", workers), reader={"direct": False, "engine": engine}))
    assert sorted(index for batch in batches for index in batch.indices.tolist()) == list(range(60))
    size = sum(map(len, stored(manifest, path)))
    assert sum(batch.stats.sample_bytes for batch in batches) == size
    files = sum((path / key).stat().st_size for key in manifest.keys())  # noqa: SIM118
    assert size <= sum(batch.stats.bytes_read for batch in batches) <= files
    assert all(batch.data is None for batch in batches)
    for look in (lambda: batches[0][0], lambda: batches[0].stacked(), lambda: list(batches[0])):
        with pytest.raises(UsageError, match="transport 'null'"):
            look()


CROPPED: dict[str, dict[str, Any]] = {
    "raw": spec("tar", sample_size=VARIED),
    "npz": spec("tar", content="npz", sample_size={**VARIED, "min": 400}),
    "jpeg": spec("tar", content="jpeg"),
    "columns": spec("parquet", sample_size=VARIED, columns=3, block_size=20_000),
}


@pytest.mark.parametrize(
    ("way", "what", "crop", "check"),
    one_of(2, pairs(SOME, list(CROPPED), [10, 2500], ["none", "content"])),
)
def test_a_crop_is_the_beginning_of_what_is_longer(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int], what: str, crop: int, check: str
) -> None:
    manifest, path = make_dataset(**CROPPED[what])
    found = in_order(load(path, way, reader={"crop": crop, "check": check}))
    assert found == [sample[:crop] for sample in decoded(manifest, path)]


def test_the_lengths_of_a_crop_are_known_without_its_bytes(make_dataset: MakeDataset) -> None:
    manifest, path = make_dataset(**CROPPED["raw"])
    reader = make_reader(manifest, LocalStorage(path), ReaderSpec(crop=2500))
    indices = np.arange(manifest.sample_count)
    lengths = reader.read(indices, None).lengths
    assert lengths.tolist() == [min(len(sample), 2500) for sample in decoded(manifest, path)]
    reader.close()


def test_samples_of_unequal_length_are_not_stacked(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(format="tar", sample_size=VARIED)
    with pytest.raises(UsageError, match=r"reader\.crop"):
        next(iter(load(path, batch_size=30))).stacked()


# Damage


@pytest.mark.parametrize(
    ("way", "engine"),
    [
        (("ring", 1), "threads"),
        (("tensor", 1), "threads"),
        (("thread", 1), "io_uring"),
        (("null", 1), "io_uring"),
    ],
    indirect=["engine"],
)
def test_damage_is_found_by_every_transport(
    make_dataset: MakeDataset, load: Load, tmp_path: Path, way: tuple[str, int], engine: str
) -> None:
    manifest, path = make_dataset(**SPECS["tfrecord"])
    copy = Path(shutil.copytree(path, tmp_path / "copy"))
    shard, start = int(manifest.samples["shard"][40]), int(manifest.samples["offset"][40])
    file = copy / manifest.key(shard)
    whole = file.read_bytes()
    for where, check in ((start, "content"), (start + 19_999, "content"), (start - 1, "format")):
        damaged = bytearray(whole)
        damaged[where] ^= 128
        file.write_bytes(damaged)
        with pytest.raises(CorruptSampleError) as caught:
            list(load(copy, way, reader={"check": check, "engine": engine}))
        assert f"sample 40 in shard {manifest.key(shard)}" in str(caught.value)
    assert sum(map(len, load(copy, way))) == 60  # nobody asked
    file.write_bytes(whole)
    assert sum(map(len, load(copy, way, reader={"check": "format"}))) == 60


@pytest.mark.parametrize(
    ("block_size", "direct", "engine"),
    one_of(2, pairs([4096, 30_000, 1 << 20], [True, False], ENGINES)),
    indirect=["engine"],
)
def test_checksums_are_checked_on_whole_samples(
    make_dataset: MakeDataset,
    load: Load,
    tmp_path: Path,
    block_size: int,
    direct: bool,
    engine: str,
) -> None:
    """Requests are aligned and split into blocks, and a sample may lie across two: only whole ones
    may be checked, and all must be.
    """
    sizes = {"distribution": "normal", "mean": 30_000, "stdev": 9000}
    manifest, path = make_dataset(format="tfrecord", samples_per_shard=20, sample_size=sizes)
    settings = {"check": "format", "direct": direct, "block_size": block_size, "engine": engine}
    assert sum(map(len, load(path, batch_size=20, reader=settings))) == 60
    file = Path(shutil.copytree(path, tmp_path / "copy")) / manifest.key(0)
    whole = file.read_bytes()
    for victim in (0, 7, 19):
        damaged = bytearray(whole)
        offset, size = (int(manifest.samples[name][victim]) for name in ("offset", "stored"))
        damaged[offset + size - 1] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CorruptSampleError, match=f"^sample {victim} in shard"):
            list(load(tmp_path / "copy", batch_size=20, reader=settings))


# Memory of batches


@pytest.mark.parametrize("way", [("ring", 0), ("ring", 2), ("thread", 2), ("tensor", 2)])
def test_kept_batches_are_not_overwritten_and_outlive_their_loader(
    make_dataset: MakeDataset, load: Load, way: tuple[str, int]
) -> None:
    """20 of them, many more than slots."""
    manifest, path = make_dataset(format="tar")
    loader = load(path, way, batch_size=3)
    kept = list(loader)
    ring = loader.ring
    assert ring is None or ring.misses > 0
    loader.shutdown()
    assert in_order(kept) == plain(manifest, path)
    del kept
    assert ring is None or ring.free == ring.count


def test_a_view_keeps_its_slot(make_dataset: MakeDataset, load: Load) -> None:
    _, path = make_dataset(format="tar")
    loader = load(path, ("ring", 1), batch_size=3)
    batches = iter(loader)
    view = next(batches)[1][5:10]
    before = view.clone()
    for batch in batches:
        assert len(batch)
    assert view.equal(before)
    del batches, batch
    assert loader.ring.free == loader.ring.count - 1
    del view
    assert loader.ring.free == loader.ring.count
