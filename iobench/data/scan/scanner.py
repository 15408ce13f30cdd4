"""Scan a storage: from a listing and the shards' headers to a manifest and a spec.

The data is only read; the result is written next to the spec, never into the data. Worker processes
open the files, because some libraries end the process over a damaged one. From the spec, which has
the shape of the data, ``generate`` makes a similar dataset.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ... import __version__
from ...base.beneath import key_problem
from ...base.documents import require_place
from ...base.errors import DatasetError, UsageError
from ...base.text import printable
from ...base.units import counted, utc_now
from ...record.manifest import (
    SAMPLE_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
    SHARDS,
    Header,
    Manifest,
    hash_bytes,
    write_table,
)
from ...settings.base import build
from ...settings.dataset import DatasetSpec
from ...storage.base import Entry, Storage, innermost, local_root
from ...storage.files import ReadWindow
from ..codecs import CODECS
from ..contents import CONTENTS
from ..formats import FORMATS
from ..formats.base import Assembled
from ..generator.pool import run_tasks, working_on
from .contents import (
    Contents,
    FoundFiles,
    classify,
    content_of,
    has_no_type,
    shard_suffix,
    types_of,
)
from .contents import checksums as checksums_of
from .index import indexer, prepare, tfrecord
from .samples import LEAVE_IT_OUT, FoundSample, Int64, ShardSamples, listed, suffix_of

_QUANTILES = 33

_NEAREST = "lz4"
"""The codec most similar to Parquet codecs that iobench does not have (mostly snappy)."""

_LARGEST_BLOCK = 1 << 30  # limit of a DatasetSpec


def shape(
    name: str,
    form: str,
    content: str,
    codec: str,
    table: dict[str, Any],
    shards: Sequence[ShardSamples],
    count: int,
    url: str,
    notes: list[str],
) -> DatasetSpec:
    """Make a spec with the number of samples, sizes, format, content and codec of ``count`` shards.

    Adds to ``notes`` which properties of the data a clone can't have.
    """
    sizes = table["size"]
    least = CONTENTS.open(content).min_bytes
    if sizes.min() == sizes.max():
        distribution: dict[str, Any] = {
            "distribution": "constant",
            "mean": max(least, int(sizes[0])),
        }
    else:
        points = np.linspace(0, 1, _QUANTILES)
        values = np.maximum(least, np.quantile(sizes, points, method="inverted_cdf")).astype(
            np.int64
        )
        distribution = {
            "distribution": "quantiles",
            "quantiles": [[float(p), int(v)] for p, v in zip(points, values, strict=True)],
        }
        distribution |= {"min": int(values[0]), "max": int(values[-1])}
    data: dict[str, Any] = {
        "name": name,
        "description": f"the shape of {counted(len(sizes), 'sample')} in {counted(count, 'shard')}",
        "source": f"scanned at {printable(url.partition('?')[0])}",
        "samples": len(sizes),
        "sample_size": distribution,
        "format": form,
        "content": content,
        "codec": codec,
    }
    if form != "files":
        data["samples_per_shard"] = max(1, round(len(sizes) / count))
    if form == "parquet":
        data |= {"codec": _page_codec(shards, notes), "block_size": _block_size(shards)}
    packing = FORMATS.open(form)
    most = packing.max_shard_bytes if isinstance(packing, Assembled) else 0
    if most and (fit := int(most // max(1, sizes.mean()))) < data["samples_per_shard"]:
        notes.append(
            f"a clone has smaller shards: format '{form}' builds them in memory, of "
            f"{most >> 30} GiB at most"
        )
        data["samples_per_shard"] = max(1, fit)
    if data["codec"] != "none" and content != "jpeg":
        stored = sum(found.nbytes for found in shards)
        data["compress_ratio"] = round(min(1000.0, max(1.0, float(sizes.sum()) / stored)), 3)
    if content == "arrays":
        notes.append("a clone's files hold one stored array each, so that decoding them costs less")
    return build(DatasetSpec, data, where="the scan")


def _page_codec(shards: Sequence[ShardSamples], notes: list[str]) -> str:
    """The codec of most bytes, or the most similar one that iobench can write."""
    codecs: Counter[str] = sum((found.codecs for found in shards), Counter())
    if not codecs:
        return "none"
    ((codec, _),) = codecs.most_common(1)
    for name in CODECS.entries():
        try:
            if codec in CODECS.load(name).parquet_names:
                return name
        except UsageError:
            continue  # a third-party codec that can't be loaded can't write a clone's pages
    notes.append(f"a clone has pages behind {_NEAREST}: format 'parquet' can't write {codec}")
    return _NEAREST


def _block_size(shards: Sequence[ShardSamples]) -> int:
    """Median bytes of samples in a full block; the last block of each shard may not be full."""
    full = [size for found in shards for size in (found.blocks[:-1] or found.blocks)]
    return min(_LARGEST_BLOCK, max(1, int(np.median(full))))


_DIVIDED = {".bin": "tokens", ".jsonl": "lines", ".ndjson": "lines", ".csv": "lines"}
"""Suffixes of files that usually hold many samples, which nothing in them tells apart."""

_WORKERS = 8  # shards at a time: over a network each read is a request


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """What was found.

    ``left_out``: files that are not the data; ``notes``: remarks for the reader of the report.
    """

    manifest: Manifest
    left_out: list[Entry]
    notes: list[str]
    bytes_read: int


def scan(
    storage: Storage,
    *,
    name: str | None = None,
    checksums: bool = False,
    progress: Callable[[int, int], None] | None = None,
    workers: int = _WORKERS,
) -> ScanReport:
    """Find the samples below a storage's root. ``progress`` gets (shards done, shards in all).

    ``workers`` 0 does everything in this process. Raises DatasetError if there is no data or a
    shard is damaged, WorkerError that names the shard over which a worker died, StorageError.
    """
    root = local_root(innermost(storage))
    if root is not None:
        require_place(root, "name the one that your data is in")
    url = innermost(storage).url  # URL of the data itself: a later run adds its own wrappers
    entries = list(storage.list())
    odd = [entry for entry in entries if key_problem(entry.key)]
    kind = classify([entry for entry in entries if not key_problem(entry.key)])
    links = _links(root) if root is not None else []
    if not kind.data:
        raise DatasetError(
            f"{storage.url} holds no data" + (f"; {links[0]}" if links else ""),
            remedy="name a directory with files in it",
        )
    if _has_records(storage, kind.data[0].key):
        kind = kind._replace(format="tfrecord")
    prepare(kind.format)
    run = partial(run_tasks, remedy=LEAVE_IT_OUT)
    shards, counts, bytes_read = _walk(storage, kind.format, kind.data, progress, run, workers)
    notes = [*links, *_notes(kind, odd, shards)]
    if not any(found.size.any() for found in shards):
        raise DatasetError(
            f"{storage.url} holds no sample in {counted(len(counts), 'shard')}"
            + "".join(f"; {note}" for note in notes)
        )
    if empty := [
        entry.key for entry, count in zip(kind.data, counts.tolist(), strict=True) if not count
    ]:
        notes.append(f"shards without a sample: {len(empty)}, e.g. {empty[0]}")
    data = [entry for entry, count in zip(kind.data, counts.tolist(), strict=True) if count]
    shards, counts = [found for found in shards if len(found)], counts[counts > 0]
    keys = [entry.key for entry in data]
    table, codec = _table(shards, counts, notes)

    def contents() -> Contents:
        return Contents(storage, kind.format, codec, keys, table)

    def look() -> Callable[[int], tuple[str, float | None, list[str], int]]:
        def content(_task: int) -> tuple[str, float | None, list[str], int]:
            looked, found = contents(), list[str]()
            return *content_of(looked, shards, found), found, looked.bytes_read

        return content

    ((content, expansion, found, more),) = run([0], look, workers=min(1, workers))
    notes += found
    bytes_read += more
    spec = shape(
        name or _name(url), kind.format, content, codec, table, shards, len(data), url, notes
    )
    if checksums:
        table["xxh3"], more = checksums_of(contents, table, run, workers=workers)
        bytes_read += more
    return ScanReport(
        manifest=_manifest(
            spec,
            url,
            data,
            counts,
            table,
            stored_bytes=sum(found.nbytes for found in shards),
            checksums=checksums,
            expansion=expansion,
        ),
        left_out=[*kind.left_out, *odd],
        notes=notes,
        bytes_read=bytes_read,
    )


def _has_records(storage: Storage, key: str) -> bool:
    """Whether a file that does not say what it is begins with a record of TFRecord."""
    if not has_no_type(key):
        return False
    window = ReadWindow(storage, 1 << 12, nbytes=1 << 12)
    try:
        next(tfrecord(window, key, window.open(key)))
    except DatasetError:
        return False
    return True


def _links(root: Path) -> list[str]:
    """What is to be known of the symbolic links below a directory, if there are any."""
    found = [*_links_below(str(root))]
    if not found:
        return []
    first = printable(os.path.relpath(min(found), root), 100)
    return [
        f"symbolic links, which are not followed: {len(found)}, e.g. {first} (cp -rlL DIR NEW "
        "makes hard links of them)"
    ]


def _links_below(root: str) -> Iterator[str]:
    folders = [root]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:  # the listing tells failures
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)


def _notes(kind: FoundFiles, odd: Sequence[Entry], shards: Sequence[ShardSamples]) -> list[str]:
    """What is to be known of the data; ``odd``: objects that are not looked at."""
    notes = []
    if odd:
        notes.append(
            f"objects with names that are not paths: {len(odd)}, e.g. "
            f"'{printable(odd[0].key, 100)}'"
        )
    if kind.format == "files" and kind.suffix in _DIVIDED:
        notes.append(
            f"each {kind.suffix} file is one sample: a scan does not divide it into "
            f"{_DIVIDED[kind.suffix]}"
        )
    packed = [entry.key for entry in kind.data if ".mds." in entry.key]
    if kind.format == "files" and packed:
        notes.append(
            f"each compressed MDS shard is one sample: {len(packed)}, e.g. "
            f"'{printable(packed[0], 100)}'"
        )
    if kind.format == "files" and len({shard_suffix(entry.key) for entry in kind.data}) > 1:
        notes.append(f"each file is one sample: {types_of([entry.key for entry in kind.data])}")
    every = sum((found.notes for found in shards), Counter[str]())
    return [*notes, *(f"{text}: {count}" for text, count in sorted(every.items()))]


def _manifest(
    spec: DatasetSpec,
    url: str,
    data: Sequence[Entry],
    counts: Int64,
    table: dict[str, Any],
    *,
    stored_bytes: int,
    checksums: bool,
    expansion: float | None,
) -> Manifest:
    """That of the shards ``data`` at this URL, each of which has so many samples of the table."""
    keys = [entry.key for entry in data]
    sizes = np.array([entry.size for entry in data], np.int64)
    rows = {
        "size": sizes,
        "first": np.cumsum(counts) - counts,
        "samples": counts,
        "xxh3": np.zeros(len(data), np.uint64),
    }
    digest = xxhash.xxh3_128(f"{url}\n".encode("utf-8", "surrogateescape"))
    for entry in data:
        digest.update(f"{entry.key}\0{entry.size}\n".encode("utf-8", "surrogateescape"))
    header = Header(
        generator=f"iobench {__version__} scan",
        id=digest.hexdigest(),
        created=utc_now(),
        spec=spec,
        samples=len(table["stored"]),
        shards=len(data),
        stored_bytes=stored_bytes,
        sample_bytes=int(table["size"].sum()),
        origin=url,
        checksums=checksums,
        expansion=expansion,
        tables={
            SAMPLES: hash_bytes(write_table(SAMPLE_COLUMNS, table)),
            SHARDS: hash_bytes(write_table(SHARD_COLUMNS, rows, keys)),
        },
    )
    return Manifest(header, table, rows, keys)


def _walk(
    storage: Storage,
    form: str,
    data: Sequence[Entry],
    progress: Callable[[int, int], None] | None,
    run: Any,
    workers: int,
) -> tuple[list[ShardSamples], Int64, int]:
    """Find the samples of all shards: (samples, how many each shard has, bytes read)."""
    if form == "files":  # all files together are one ``ShardSamples``, since there may be a million
        samples = [FoundSample(0, entry.size, suffix_of(entry.key)) for entry in data]
        return [listed(samples, sum(entry.size for entry in data))], np.ones(len(data), np.int64), 0

    def make() -> Callable[[int], tuple[int, ShardSamples, int]]:
        find = indexer(form)  # may fork, so it comes before any thread of the storage
        window = ReadWindow(storage, 1 << 20, nbytes=1 << 20)

        def walk(shard: int) -> tuple[int, ShardSamples, int]:
            key, before = data[shard].key, window.bytes_read
            working_on(key)
            found = find(window, key, window.open(key))
            return shard, found, window.bytes_read - before

        return walk

    shards: dict[int, ShardSamples] = {}
    bytes_read = 0
    for shard, found, nbytes in run(range(len(data)), make, workers=workers):
        shards[shard] = found
        bytes_read += nbytes
        if progress is not None:
            progress(len(shards), len(data))
    ordered = [shards[shard] for shard in range(len(data))]
    return ordered, np.array([len(found) for found in ordered], np.int64), bytes_read


def _table(
    shards: Sequence[ShardSamples], counts: Int64, notes: list[str]
) -> tuple[dict[str, Any], str]:
    """Build the table of samples, and find the one codec of all of them."""
    table = {
        name: np.concatenate([getattr(found, name) for found in shards])
        for name in ("offset", "stored", "size")
    }
    table["shard"] = np.repeat(np.arange(len(counts), dtype=np.uint32), counts)
    table["xxh3"] = np.zeros(len(table["size"]), np.uint64)
    none = [
        np.zeros(len(found), np.bool_) if found.deflated is None else found.deflated
        for found in shards
    ]
    deflated = np.concatenate(none)
    if deflated.all():
        return table, "gzip"
    if deflated.any():
        notes.append(
            f"{counted(int(deflated.sum()), 'sample')} will be delivered deflated, as stored, "
            "because others are not compressed"
        )
        table["size"][deflated] = table["stored"][deflated]
    return table, "none"


def _name(url: str) -> str:
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "scanned"
