"""Targets that are data: manifests with their tables, shards of every format, contents, codecs."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from iobench.base.documents import json_text
from iobench.base.errors import IobenchError
from iobench.data.codecs import CODECS
from iobench.data.contents.jpeg import Jpeg
from iobench.data.contents.npz import Arrays, Npz
from iobench.data.dataset import index_file, load_manifest, packing_at
from iobench.data.formats.parquet import Parquet
from iobench.data.formats.tfrecord import masked_crc
from iobench.data.scan import hdf5
from iobench.data.scan.scanner import scan
from iobench.load.training.labels import labels_from
from iobench.record.manifest import (
    MANIFEST,
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    hash_bytes,
    parse_header,
    read_table,
)
from iobench.record.packing import Keys
from tests.fuzz.target import Target, parts, scratch
from tests.looking import look, stored_as

ROOM = 16 << 20
"""Bytes of the output into which a sample is decoded, where its own claim is more."""

BLOCK = 512  # of a tar


def manifest_header(data: bytes) -> None:
    header = parse_header(data, where="manifest.json")
    Keys(packing_at(header.spec, "manifest.json"))(0)
    json_text(header)


def manifest(data: bytes) -> None:
    """A dataset's folder. Its header says what the tables are, so that they are looked into."""
    header, samples, shards = parts(data, 3)
    root = scratch("manifest")
    (root / MANIFEST).write_bytes(_agreeing(header, samples, shards))
    (root / SAMPLES).write_bytes(samples)
    (root / SHARDS).write_bytes(shards)
    found = load_manifest(root)
    found.keys()
    found.folder()
    found.part(np.arange(found.shard_count)[::-1])
    index_file(found)
    _ = found.mean_stored_bytes


def _agreeing(header: bytes, samples: bytes, shards: bytes) -> bytes:
    """The header with the checksums, numbers of rows and sums of these tables."""
    try:
        document = json.loads(header)
        document["tables"] = {SAMPLES: hash_bytes(samples), SHARDS: hash_bytes(shards)}
    except (ValueError, TypeError, RecursionError):
        return header
    with suppress(IobenchError):
        rows, _ = read_table(SAMPLE_COLUMNS, samples)
        document["samples"] = len(rows["size"])
        document["sample_bytes"] = int(rows["size"].sum())
        rows, _ = read_table(SHARD_COLUMNS, shards)
        document["shards"] = len(rows["size"])
        document["stored_bytes"] = int(rows["size"].sum())
    return json.dumps(document).encode()


# Shards


def _shard(suffix: str, mended: Callable[[bytes], bytes]) -> Target:
    """A shard as it is, and with right checksums: scanned, verified and read."""

    def parse(data: bytes) -> None:
        for form in dict.fromkeys((data, mended(data))):
            look({f"a{suffix}": form})

    return Target(parse)


def with_tar_checksums(data: bytes) -> bytes:
    out = bytearray(data)
    position = 0
    while position + BLOCK <= len(out) and any(out[position : position + BLOCK]):
        header = out[position : position + BLOCK]
        header[148:156] = b" " * 8
        out[position + 148 : position + 156] = b"%06o\0 " % sum(header)
        try:
            size = int(bytes(header[124:136]).strip(b" \0") or b"0", 8)
        except ValueError:
            break
        position += BLOCK + max(0, -(-size // BLOCK) * BLOCK)
    return bytes(out)


def with_record_checksums(data: bytes) -> bytes:
    out = bytearray(data)
    position = 0
    while position + 16 <= len(out):
        length = int.from_bytes(out[position : position + 8], "little")
        crc = masked_crc(memoryview(bytes(out[position : position + 8])))
        out[position + 8 : position + 12] = crc.to_bytes(4, "little")
        end = position + 12 + length
        if end + 4 > len(out):
            break
        crc = masked_crc(memoryview(bytes(out[position + 12 : end])))
        out[end : end + 4] = crc.to_bytes(4, "little")
        position = end + 4
    return bytes(out)


def parquet(data: bytes) -> None:
    """Opened and decoded in this process, as readers do; ``parquet-rows`` scans it first."""
    shard = memoryview(data)
    opened = Parquet().open(shard, len(shard))
    for group in range(min(16, opened.groups)):
        begin, end = opened.extent(group)
        opened.decode(group, None, [(begin, shard[begin:end])], check=False)


def parquet_rows(data: bytes) -> None:
    look({"a.parquet": data})


def _labels(key: str, source: str, mended: Callable[[bytes], bytes] | None = None) -> Target:
    """A shard with labels, as it is and with right checksums, scanned first."""

    def parse(data: bytes) -> None:
        if mended is not None:
            with suppress(IobenchError):
                _read_labels(key, mended(data), source)
        _read_labels(key, data, source)

    return Target(parse)


def _read_labels(key: str, data: bytes, source: str) -> None:
    storage = stored_as({key: data})
    manifest = scan(storage, workers=0).manifest
    found = labels_from(manifest, storage, source)
    assert len(found.of(np.arange(manifest.sample_count))) == manifest.sample_count


def hdf5_heap(data: bytes) -> None:
    """The part of a scan that reads the file by itself.

    The first byte is the number of references, which come before the file.
    """
    count = data[0] % 8 if data else 0
    begins = 1 + count * hdf5._REFERENCE.itemsize

    def read(begin: int, end: int) -> bytes:
        if not 0 <= begin <= end <= len(data):
            raise ValueError("outside of the file")
        return data[begin:end]

    if begins > len(data):
        return
    found = np.frombuffer(data[1:begins], hdf5._REFERENCE)
    for each in (1, 8):
        hdf5.locate(found, each, begins, read)


# Samples


def _content(*kinds: Any) -> Callable[[bytes], None]:
    def parse(data: bytes) -> None:
        sample = memoryview(data)
        for kind in kinds:
            with suppress(ValueError):  # of each: readers and scans name the sample
                kind.identify(sample)
                if kind.in_place:
                    begin, end = kind.locate(sample)
                    assert 0 <= begin <= end <= len(data)
                size = kind.decoded_bytes(sample)
                if size <= ROOM:
                    out = memoryview(bytearray(size))
                    assert kind.decode(sample, out) <= size

    return parse


def codecs(data: bytes) -> None:
    """The first byte chooses the codec, the second how much room there is."""
    names = ("gzip", "zstd", "lz4", "none")
    if len(data) < 2:
        return
    codec = CODECS.open(names[data[0] % len(names)])
    out = memoryview(bytearray(data[1] * 64))
    assert codec.decompress(memoryview(data)[2:], out) <= len(out)


TARGETS = {
    "manifest-header": Target(manifest_header),
    "manifest": Target(manifest),
    "tar": _shard(".tar", with_tar_checksums),
    "tar-labels": _labels("a.tar", "member:json:a.b", with_tar_checksums),
    "tfrecord": _shard(".tfrecord", with_record_checksums),
    # ValueError: verify and the readers of blocks name the shard.
    "parquet": Target(parquet, (ValueError,)),
    "parquet-rows": Target(parquet_rows),
    "parquet-labels": _labels("a.parquet", "column:label"),
    # ValueError: scan/hdf5.py names the file.
    "hdf5-heap": Target(hdf5_heap, (ValueError,)),
    "npz": Target(_content(Npz(), Arrays())),
    "jpeg": Target(_content(Jpeg())),
    # ValueError: readers name the sample.
    "codecs": Target(codecs, (ValueError,)),
}
