"""The samples of a dataset of any format as other software reads them, without iobench."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import struct
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import lmdb
import lz4.frame
import numpy as np
import pyarrow.parquet as pq
import simplejpeg
import zstandard

from iobench.record.manifest import Manifest

UNCOMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "gzip": gzip.decompress,
    "lz4": lz4.frame.decompress,
    "zstd": zstandard.decompress,
}
DECODE: dict[str, Callable[[bytes], bytes]] = {
    "raw": bytes,
    "npz": lambda data: np.load(io.BytesIO(data))["x"].tobytes(),
    "jpeg": lambda data: simplejpeg.decode_jpeg(data, "RGB").tobytes(),
}


def by_tarfile(path: Path) -> Iterator[bytes]:
    with tarfile.open(path) as tar:
        yield from (tar.extractfile(member).read() for member in tar)  # type: ignore[union-attr]


def by_tfrecord(path: Path) -> Iterator[bytes]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tfrecord.reader import tfrecord_loader

        for record in tfrecord_loader(str(path), None, {"data": "byte"}):
            yield bytes(record["data"])


def by_h5py(path: Path) -> Iterator[bytes]:
    with h5py.File(path) as file:
        assert list(file) == sorted(file)
        yield from (file[name][:].tobytes() for name in file)


def by_lmdb(path: Path) -> list[bytes]:
    options = {"subdir": False, "lock": False, "readonly": True}
    with lmdb.open(str(path), **options) as environment, environment.begin() as transaction:
        entries = list(transaction.cursor())
    assert [key for key, _ in entries] == [b"%09d" % place for place in range(len(entries))]
    return [value for _, value in entries]


def by_pyarrow(path: Path) -> Iterator[bytes]:
    table = pq.read_table(path, page_checksum_verification=True)
    yield from (b"".join(row.values()) for row in table.to_pylist())


def of_mds(shard: bytes) -> Iterator[bytes]:
    """The layout by hand, as the reader of Mosaic's library walks it."""
    (count,) = struct.unpack_from("<I", shard)
    offsets = struct.unpack_from(f"<{count + 1}I", shard, 4)
    config = json.loads(shard[4 + 4 * (count + 1) : offsets[0]])
    expected = {"format": "mds", "version": 2, "column_encodings": ["bytes"]}
    assert {**config, **expected} == config
    assert config["column_sizes"] == [None]
    for begin, end in itertools.pairwise(offsets):
        (size,) = struct.unpack_from("<I", shard, begin)
        assert begin + 4 + size == end
        yield shard[begin + 4 : end]


READ: dict[str, Callable[[Path], Any]] = {
    "tar": by_tarfile,
    "tfrecord": by_tfrecord,
    "hdf5": by_h5py,
    "lmdb": by_lmdb,
    "parquet": by_pyarrow,
    "mds": lambda path: of_mds(path.read_bytes()),
}
COMPRESS_THEMSELVES = ("hdf5", "parquet")
"""Formats whose own library uncompresses what it reads."""


def stored(manifest: Manifest, path: Path) -> list[bytes]:
    """Each sample's stored bytes, in the order of their numbers; of the formats that compress
    themselves, the uncompressed ones.
    """
    form = manifest.spec.format
    if form == "tokens":
        size = int(manifest.spec.sample_size.mean_bytes)
        maps = [np.memmap(path / key, np.uint16, "r") for key in manifest.keys()]  # noqa: SIM118
        return [row.tobytes() for shard in maps for row in shard.reshape(-1, size // 2)]
    read = READ.get(form, lambda file: [file.read_bytes()])
    return [sample for key in manifest.keys() for sample in read(path / key)]  # noqa: SIM118


def plain(manifest: Manifest, path: Path) -> list[bytes]:
    """The same, uncompressed."""
    if manifest.spec.format in COMPRESS_THEMSELVES:
        return stored(manifest, path)
    undo = UNCOMPRESS[manifest.spec.codec.partition(":")[0]]
    return [undo(sample) for sample in stored(manifest, path)]


def decoded(manifest: Manifest, path: Path) -> list[bytes]:
    """What each sample must be in the training process."""
    return [DECODE[manifest.spec.content](sample) for sample in plain(manifest, path)]


def taken(batches: Any, into: dict[int, bytes] | None = None) -> dict[int, bytes]:
    """Every delivered sample by its number; none twice."""
    found = {} if into is None else into
    for batch in batches:
        for index, sample in zip(batch.indices.tolist(), batch, strict=True):
            assert index not in found
            found[index] = sample.numpy().tobytes()
    return found


def in_order(batches: Any) -> list[bytes]:
    """Every delivered sample, in the order of their numbers."""
    found = taken(batches)
    return [found[index] for index in range(len(found))]
