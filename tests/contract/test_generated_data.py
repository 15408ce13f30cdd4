"""What is generated is unique and incompressible, also where a format cuts samples into columns.

A storage that compresses or finds duplicates would else look faster than it is.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard

from iobench.base import payload
from iobench.base.errors import SpecError
from iobench.data.generator.engine import generate
from iobench.settings.dataset import load_dataset_spec, resized
from iobench.storage.local.storage import LocalStorage
from tests.datasets import generated, spec_of
from tests.processes import printed

BLOCK = 4096
NAMES = sorted(path.stem for path in (Path(__file__).parents[2] / "datasets").glob("*.yaml"))
LARGEST = 200_000
"""Bytes of a sample here; the real ones of some datasets have hundreds of MB."""


def files(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / "data").rglob("*")) if path.is_file()]


def chunks(shard: bytes, columns: int) -> Iterator[bytes]:
    """The column chunks of a Parquet file, of its first columns, by pyarrow alone."""
    metadata = pq.read_metadata(io.BytesIO(shard))
    for group in range(metadata.num_row_groups):
        for column in range(min(columns, metadata.num_columns)):
            chunk = metadata.row_group(group).column(column)
            yield shard[chunk.data_page_offset :][: chunk.total_compressed_size]


def test_files_are_divided_into_directories_as_asked(tmp_path: Path) -> None:
    spec = {"samples": 20, "sample_size": {"mean": 100}}
    made(tmp_path / "each", **spec, files_per_directory=7)
    folders = [path for path in (tmp_path / "each/data").iterdir() if path.is_dir()]
    assert sorted(len(list(folder.iterdir())) for folder in folders) == [6, 7, 7]
    assert printed(f"verify {tmp_path / 'each'}")
    made(tmp_path / "usual", **spec)
    assert len(list((tmp_path / "usual/data").iterdir())) == 1
    assert files(tmp_path / "each") == files(tmp_path / "usual")
    with pytest.raises(SpecError):
        made(tmp_path / "tar", **spec, format="tar", files_per_directory=7)


def duplicates(parts: list[bytes]) -> int:
    blocks = [
        part[start : start + BLOCK]
        for part in parts
        for start in range(0, len(part) - BLOCK + 1, BLOCK)
    ]
    return len(blocks) - len(set(blocks))


def ratio(parts: list[bytes]) -> float:
    whole = b"".join(parts)
    return len(whole) / len(zstandard.compress(whole, 1))


def made(path: Path, **spec: Any) -> Path:
    generated(path, **spec)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_dataset(name: str, tmp_path: Path) -> None:
    spec = load_dataset_spec(name)
    if spec.sample_size.mean_bytes > LARGEST:
        spec = spec_of(**{**spec.model_dump(mode="json"), "sample_size": {"mean": LARGEST}})
    size = 9_900_000 if name == "dlrm" else 2_000_000
    scaled = resized(spec, size_bytes=size)
    generate(scaled, LocalStorage(tmp_path / "d"), workers=0)
    shards = files(tmp_path / "d")
    assert sum(map(len, shards)) > 0.9 * size
    assert duplicates(shards) == 0
    # Headers and padding of the format compress, and so do the stamps at the beginning of samples;
    # they are much where samples are small.
    mean = scaled.sample_size.mean_bytes
    unstamped = scaled.samples * (mean - payload.STAMP_BYTES)
    assert ratio(shards) <= 1.01 * max(1.01, sum(map(len, shards)) / unstamped)
    if spec.columns is not None:
        read = [chunk for shard in shards for chunk in chunks(shard, 40)]
        assert len(read) >= min(40, spec.columns)
        assert duplicates(read) == 0
        assert ratio(read) <= 1.02
        assert max(ratio([chunk]) for chunk in read) <= 1.02


@pytest.mark.parametrize(("size", "columns"), [(64, 64), (100, 50), (300, 100), (40, 3), (9000, 2)])
def test_columns_of_any_width(tmp_path: Path, size: int, columns: int) -> None:
    """Of a single byte, too; and of several rows of a block."""
    path = made(
        tmp_path / "d",
        samples=min(10_000, 1_500_000 // size),
        sample_size={"mean": size},
        format="parquet",
        columns=columns,
        block_size="500kB",
    )
    read = [chunk for shard in files(path) for chunk in chunks(shard, columns)]
    assert duplicates(read) == 0
    assert max(ratio([chunk]) for chunk in read if len(chunk) > 5000) <= 1.02


@pytest.mark.parametrize("wanted", [2, 4])
def test_columns_have_the_ratio_that_was_asked_for(tmp_path: Path, wanted: int) -> None:
    path = made(
        tmp_path / "d",
        samples=9000,
        sample_size={"mean": 300},
        format="parquet",
        columns=75,
        compress_ratio=wanted,
    )
    read = [chunk for shard in files(path) for chunk in chunks(shard, 75)]
    assert ratio(read) == pytest.approx(wanted, rel=0.1)
    for chunk in read:
        assert ratio([chunk]) == pytest.approx(wanted, rel=0.15)
