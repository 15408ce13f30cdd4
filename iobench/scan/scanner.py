"""A listing and a walk over headers, to a manifest and a spec. Reads only; what is written goes beside the spec, never into the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import xxhash
import yaml

from .. import __version__
from ..errors import DatasetError, TargetRefusedError, UsageError
from ..registry import CONTENTS
from ..spec.base import build
from ..spec.dataset import DatasetSpec
from ..spec.manifest import MANIFEST, SAMPLE_COLUMNS, SAMPLES, SHARD_COLUMNS, SHARDS, Header, Manifest, hash_bytes, write_table
from ..storage.base import Entry, Storage
from ..storage.window import Window
from .classify import CONTENTS as KNOWN_CONTENTS
from .classify import classify
from .index import INDEXERS, Sample, damaged

_PROBES = 64
"""Samples that are looked into, to find what they are and by how much decoding expands them."""

_MARGIN = 2.0
"""Decoded samples may be this many times larger than the probes', at most."""

_QUANTILES = 33
_WORKERS = 8  # shards that are walked at once: over a network each step is a request
_LARGEST = 64 << 20


@dataclass(frozen=True, kw_only=True)
class ScanReport:
    """What was found. ``left_out``: files that are not the data; ``notes``: what the reader of the report should know."""

    manifest: Manifest
    left_out: list[Entry]
    notes: list[str]
    bytes_read: int


def scan(
    storage: Storage, *, name: str | None = None, checksums: bool = False, progress: Callable[[int, int], None] | None = None
) -> ScanReport:
    """Find the samples below a storage's root. ``progress`` gets (shards done, shards in all).

    Raises DatasetError where nothing is there or a shard is damaged, StorageError.
    """
    kind = classify(list(storage.list()))
    if not kind.data:
        raise DatasetError(f"{storage.url} holds no data", remedy="name a folder with files in it")
    notes: list[str] = []
    shards, bytes_read = _walk(storage, kind.format, kind.data, progress)
    empty = [entry.key for entry, found in zip(kind.data, shards, strict=True) if not found]
    if empty:
        notes.append(f"{len(empty)} shards hold no sample, e.g. {empty[0]}")
        kept = [(entry, found) for entry, found in zip(kind.data, shards, strict=True) if found]
        if not kept:
            raise DatasetError(f"{storage.url} holds no sample: its {len(empty)} shards are empty")
        data, shards = [entry for entry, _ in kept], [found for _, found in kept]
    else:
        data = kind.data
    table = _table(shards)
    content, expansion = _content(storage, data, table, shards, notes)
    spec = _spec(name or _name(storage.url), kind.format, content, table["stored"], shards, storage.url)
    if checksums:
        table["xxh3"] = _checksums(storage, data, table)
        bytes_read += int(table["stored"].sum())
    sizes = np.array([entry.size for entry in data], np.int64)
    counts = np.array([len(found) for found in shards], np.int64)
    rows = {"size": sizes, "first": np.cumsum(counts) - counts, "samples": counts, "xxh3": np.zeros(len(data), np.uint64)}
    keys = [entry.key for entry in data]
    digest = xxhash.xxh3_128(f"{storage.url}\n".encode())
    for entry in data:
        digest.update(f"{entry.key}\0{entry.size}\n".encode())
    header = Header(
        generator=f"iobench {__version__} scan",
        id=digest.hexdigest(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        spec=spec,
        samples=len(table["stored"]),
        shards=len(data),
        stored_bytes=int(sizes.sum()),
        sample_bytes=int(table["size"].sum()),
        origin=storage.url,
        checksums=checksums,
        expansion=expansion,
        tables={
            SAMPLES: hash_bytes(write_table(SAMPLE_COLUMNS, table)),
            SHARDS: hash_bytes(write_table(SHARD_COLUMNS, rows, keys)),
        },
    )
    return ScanReport(manifest=Manifest(header, table, rows, keys), left_out=kind.left_out, notes=notes, bytes_read=bytes_read)


def save(report: ScanReport, path: Path) -> Path:
    """Write the spec to ``path`` (a .yaml) and the manifest to a folder beside it, whose path is returned; nothing is overwritten.

    Raises UsageError, TargetRefusedError.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"'{path}' is no YAML file name", remedy="use --save mine.yaml")
    folder = path.with_suffix(".manifest")
    manifest = report.manifest
    origin = Path(manifest.header.origin)
    if "://" not in manifest.header.origin and path.resolve().is_relative_to(origin.resolve()):
        raise TargetRefusedError(f"{path} lies within the data, and a scan writes nothing there", remedy="choose another place for --save")
    for taken in (path, folder):
        if taken.exists() or taken.is_symlink():
            raise TargetRefusedError(f"{taken} exists, and is not overwritten", remedy="choose another name, or remove it")
    data = manifest.spec.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    try:
        folder.mkdir(parents=True)
        (folder / SAMPLES).write_bytes(write_table(SAMPLE_COLUMNS, manifest.samples))
        (folder / SHARDS).write_bytes(write_table(SHARD_COLUMNS, manifest.shards, manifest.names))
        (folder / MANIFEST).write_text(manifest.header.model_dump_json(indent=2) + "\n", encoding="utf-8")
        path.write_text(yaml.safe_dump(data, sort_keys=False, width=130), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or path}: {error.strerror}", remedy="choose another place for --save") from error
    return folder


def _walk(
    storage: Storage, form: str, data: Sequence[Entry], progress: Callable[[int, int], None] | None
) -> tuple[list[list[Sample]], int]:
    """The samples of each shard, and the bytes that it took to find them."""
    if form == "files":
        from .index import suffix_of

        return [[Sample(0, entry.size, suffix_of(entry.key))] for entry in data], 0
    mine = local()
    windows: list[Window] = []

    def walk(entry: Entry) -> list[Sample]:
        if not hasattr(mine, "window"):
            mine.window = Window(storage, 1 << 20, nbytes=1 << 20)
            windows.append(mine.window)
        return list(INDEXERS[form](mine.window, entry.key, mine.window.open(entry.key)))

    shards: list[list[Sample]] = []
    with ThreadPoolExecutor(_WORKERS) as threads:
        for found in threads.map(walk, data):
            shards.append(found)
            if progress is not None:
                progress(len(shards), len(data))
    return shards, sum(window.bytes_read for window in windows)


def _table(shards: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    stored = np.array([sample.size for found in shards for sample in found], np.int64)
    return {
        "shard": np.repeat(np.arange(len(shards), dtype=np.uint32), [len(found) for found in shards]),
        "offset": np.array([sample.offset for found in shards for sample in found], np.int64),
        "stored": stored,
        "size": stored.copy(),
        "xxh3": np.zeros(len(stored), np.uint64),
    }


def _content(
    storage: Storage, data: Sequence[Entry], table: dict[str, Any], shards: Sequence[Sequence[Sample]], notes: list[str]
) -> tuple[str, float | None]:
    """What the samples are, by their names and by a look into some of them; and by how much decoding expands them at most."""
    suffixes = {sample.suffix for found in shards for sample in found}
    kinds = {KNOWN_CONTENTS.get(suffix, "raw") for suffix in suffixes}
    if len(kinds) != 1 or kinds == {"raw"}:
        return "raw", None
    content = CONTENTS.load(name := kinds.pop())
    probes = np.random.default_rng(0).choice(len(table["stored"]), min(_PROBES, len(table["stored"])), replace=False)
    most = 1.0
    for index in probes.tolist():
        sample = _bytes(storage, data[int(table["shard"][index])].key, int(table["offset"][index]), int(table["stored"][index]))
        try:
            if content.in_place:
                content.locate(sample)
            else:
                most = max(most, content.decoded_bytes(sample) / len(sample))
        except ValueError as error:
            key = data[int(table["shard"][index])].key
            notes.append(f"samples are delivered as raw bytes: {key} is no {name} that can be decoded ({error})")
            return "raw", None
    return name, None if content.in_place else most * _MARGIN


def _checksums(storage: Storage, data: Sequence[Entry], table: dict[str, Any]) -> Any:
    def one(index: int) -> int:
        sample = _bytes(storage, data[int(table["shard"][index])].key, int(table["offset"][index]), int(table["stored"][index]))
        return xxhash.xxh3_64_intdigest(sample)

    with ThreadPoolExecutor(_WORKERS) as threads:
        return np.fromiter(threads.map(one, range(len(table["stored"]))), np.uint64, len(table["stored"]))


def _bytes(storage: Storage, key: str, offset: int, size: int) -> memoryview:
    buffer = memoryview(bytearray(size))
    if storage.read_into(key, offset, buffer) < size:
        raise damaged(key, f"it ends before byte {offset + size}")
    return buffer


def _spec(name: str, form: str, content: str, sizes: Any, shards: Sequence[Sequence[Sample]], url: str) -> DatasetSpec:
    """The shape of the data: counts, the distribution of sizes, format and content; what ``generate`` needs to make another like it."""
    least = int(CONTENTS.load(content).min_bytes)
    if sizes.min() == sizes.max():
        distribution: dict[str, Any] = {"distribution": "constant", "mean": max(least, int(sizes[0]))}
    else:
        points = np.linspace(0, 1, _QUANTILES)
        values = np.maximum(least, np.quantile(sizes, points, method="inverted_cdf")).astype(np.int64)
        distribution = {"distribution": "quantiles", "quantiles": [[float(p), int(v)] for p, v in zip(points, values, strict=True)]}
        distribution |= {"min": int(values[0]), "max": int(values[-1])}
    data: dict[str, Any] = {
        "name": name,
        "description": f"the shape of {len(sizes)} samples in {len(shards)} shards",
        "source": f"scanned at {url.partition('?')[0]}",
        "samples": len(sizes),
        "sample_size": distribution,
        "format": form,
        "content": content,
    }
    if form != "files":
        data["samples_per_shard"] = max(1, round(len(sizes) / len(shards)))
    return build(DatasetSpec, data, where="the scan")


def _name(url: str) -> str:
    last = url.partition("?")[0].rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._") or "scanned"
