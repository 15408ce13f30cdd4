"""A real vector search engine: LanceDB, with an IVF_PQ index over vectors made of a dataset.

The samples of the dataset are the vectors: a byte for each dimension is the noise around a centre,
of which there are ``clusters``, so that a vector has near ones, as those of real data do. Queries
are drawn from the same distribution, each only once. The engine's table with its index lies in
``layouts/lancedb`` below the dataset, and is built on first use.

The engine reads by itself, through the page cache, and keeps what it has read of the index in its
own memory: each window has a connection of its own, whose memory is empty at first. How many bytes
the storage delivered is what the kernel counts for this process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from threading import local
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil

from ..base.documents import MAX_DOCUMENT_BYTES, read_regular
from ..base.errors import DatasetError, StorageError, UsageError
from ..base.extras import install_command
from ..load.layouts import LibraryLayout, layout_place, lock_place, recorded_layout, write_layout
from ..record.manifest import LAYOUT_RECORD, LAYOUTS, Manifest, layout_lock
from ..settings.scenario import EngineSpec
from ..storage.base import Storage, local_root
from ..storage.locks.lock import exclusive
from .arrivals import Instants
from .client import Issued, Sequel, issue

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]

TABLE = "vectors"
WRITES = tuple(
    f"{TABLE}.lance/{name}" for name in ("data/*", "_indices/*/*", "_versions/*", "_transactions/*")
)

SPREAD = 0.5
"""Standard deviation around a centre; that of the centres is 1."""

CHUNK = 1 << 15
"""Vectors that are in memory at a time, beside those that the engine keeps to train its codes."""

MIN_VECTORS = 256
"""The codes of the index are trained with so many at least."""


def check_vectors(manifest: Manifest, storage: Storage, spec: EngineSpec) -> None:
    """Check that the engine is there, and that its index fits the dataset. Raises UsageError."""
    _version()
    name, sizes = manifest.spec.name, manifest.samples["stored"]
    size = int(sizes.max())
    if manifest.spec.format != "tokens" or size != int(sizes.min()):
        raise UsageError(
            f"dataset '{name}' has no vectors: they must be a flat array of bytes (format "
            "'tokens'), one byte for each dimension",
            remedy="generate some: iobench generate vectors --to DIR",
        )
    if size % spec.sub_vectors:
        raise UsageError(
            f"vectors of {size} dimensions can't be cut into {spec.sub_vectors} equal parts",
            remedy=f"set engine.sub_vectors to a divisor of {size}, such as {_divisor(size)}",
        )
    least = max(MIN_VECTORS, spec.partitions, spec.top)
    if manifest.sample_count < least:
        raise UsageError(
            f"dataset '{name}' has {manifest.sample_count:,} vectors, and an index of "
            f"{spec.partitions:,} partitions needs {least:,}",
            remedy="generate more samples, or set a lower engine.partitions",
        )
    if local_root(storage) is None:
        raise UsageError(
            f"the engine reads files of this host by itself, and {storage.url} is not one of its "
            "directories",
            remedy="name a local directory with --data",
        )
    folder = layout_place(storage, spec.kind)
    found = recorded_layout(folder)
    if found is not None:
        _check_same(folder, found, manifest, spec)


def _check_same(
    folder: Path, found: LibraryLayout, manifest: Manifest, spec: EngineSpec
) -> LibraryLayout:
    """The index, if it is that of this dataset, version and settings. Raises UsageError."""
    wanted = _package(spec)
    if (found.dataset, found.package) != (manifest.header.id, wanted):
        other = (
            f"by {found.package}" if found.dataset == manifest.header.id else "of another dataset"
        )
        raise UsageError(
            f"the index in {folder} was built {other}; this run needs one by {wanted}",
            remedy="use the settings and the version that it was built with, or remove that "
            "directory: the next run builds it again",
        )
    _check_contained(folder, found)
    return found


def _check_contained(folder: Path, layout: LibraryLayout) -> None:
    """Check that the engine will open no other files than those of the index. Raises DatasetError.

    An index may come from others with its dataset, and its manifests can name files elsewhere, also
    by URLs. Those that are built here name none.
    """
    there = {str(each.relative_to(folder)) for each in folder.rglob("*") if not each.is_dir()}
    more = sorted(there - {*layout.files, LAYOUT_RECORD})
    linked = [str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_symlink()]
    for name in layout.files if not (more or linked) else ():
        if name.endswith(".manifest"):
            content = read_regular(folder / name, MAX_DOCUMENT_BYTES)
            texts = _TEXT.findall(content.replace(b"/lance.", b"").replace(b"/google.", b""))
            if any(b"/" in text or b".." in text for text in texts):
                more.append(name)
    if more or linked:
        raise DatasetError(
            f"the index in {folder} is not one that iobench built: see {[*more, *linked][0]}",
            remedy="remove that directory: the next run builds it again",
        )


_TEXT = re.compile(rb"[\x20-\x7e]{4,}")


def _package(spec: EngineSpec) -> str:
    """What an index depends on beside the dataset."""
    return (
        f"lancedb {_version()}, {spec.partitions} partitions, codes of {spec.sub_vectors} bytes, "
        f"{spec.clusters} clusters"
    )


def _divisor(size: int) -> int:
    return next(each for each in range(max(1, size // 8), 0, -1) if size % each == 0)


def _version() -> str:
    try:
        return metadata.version("lancedb")
    except metadata.PackageNotFoundError:
        raise UsageError(
            "the engine LanceDB is not installed",
            remedy=f"install it: {install_command('lancedb')}",
        ) from None


def _lancedb() -> Any:
    # Its warnings are about calls of its own Python package, one line for each query.
    os.environ.setdefault("LANCE_LOG", "error")
    import lancedb

    return lancedb


@contextmanager
def _failures(what: str) -> Iterator[None]:
    """Errors of the engine, which are of many classes, as one of ours. Raises StorageError."""
    try:
        yield
    except (OSError, RuntimeError, ValueError, KeyError, AttributeError) as error:
        why = " ".join(str(error).split())[:200]
        raise StorageError(
            f"LanceDB failed to {what}: {why}",
            remedy="if files of the index are missing or damaged, remove its directory: the next "
            "run builds it again",
        ) from error


class VectorSet:
    """The vectors of a dataset, and queries for them."""

    def __init__(self, manifest: Manifest, storage: Storage, clusters: int) -> None:
        self._manifest, self._storage = manifest, storage
        self.dimensions = int(manifest.samples["stored"].max())
        seeded = np.random.default_rng((manifest.spec.seed, 1))
        self._centres = seeded.standard_normal((clusters, self.dimensions), np.float32)

    def chunks(self) -> Iterator[tuple[int, Vectors]]:
        """The number of the first vector, and the vectors; all of them, in order."""
        firsts, counts = (self._manifest.shards[name] for name in ("first", "samples"))
        for shard, (first, count) in enumerate(zip(firsts.tolist(), counts.tolist(), strict=True)):
            offset = int(self._manifest.samples["offset"][first])
            for begin in range(0, count, CHUNK):
                number = min(CHUNK, count - begin)
                content = np.empty(number * self.dimensions, np.uint8)
                at = offset + begin * self.dimensions
                read = self._storage.read_into(self._manifest.key(shard), at, content.data)
                if read < len(content):
                    raise DatasetError(f"{self._manifest.key(shard)} ends early")
                rows = np.arange(first + begin, first + begin + number)
                yield int(rows[0]), self._around(rows, content.reshape(number, -1))

    def _around(self, rows: Ids, noise: npt.NDArray[np.uint8]) -> Vectors:
        # Numbers without a pattern that the order of the samples would have.
        centres = self._centres[(rows * 2_654_435_761 >> 7) % len(self._centres)]
        deviation = 256 / 12**0.5
        around = (noise.astype(np.float32) - 127.5) * np.float32(SPREAD / deviation)
        return np.asarray(centres + around, np.float32)

    def queries(self, seed: int, count: int) -> Vectors:
        """Queries that no other seed has."""
        drawn = np.random.default_rng((seed, 2))
        noise = drawn.integers(256, size=(count, self.dimensions), dtype=np.uint8)
        return self._around(drawn.integers(1 << 40, size=count), noise)

    def nearest(self, queries: Vectors, top: int) -> Ids:
        """The numbers of the exactly nearest vectors of each query, by comparing with all."""
        best: Vectors = np.zeros((len(queries), 0), np.float32)
        ids: Ids = np.zeros((len(queries), 0), np.int64)
        for first, vectors in self.chunks():
            lengths = np.einsum("ij,ij->i", vectors, vectors)
            distances = lengths - 2 * (queries @ vectors.T)  # less the length of the query
            numbers = np.broadcast_to(first + np.arange(len(vectors)), distances.shape)
            best, ids = np.hstack([best, distances]), np.hstack([ids, numbers])
            few = np.argpartition(best, min(top, best.shape[1]) - 1, axis=1)[:, :top]
            best = np.take_along_axis(best, few, axis=1)
            ids = np.take_along_axis(ids, few, axis=1)
        return ids


@dataclass(frozen=True)
class LanceIndex:
    """A table with its index. ``keys``: its files, as keys of the dataset's storage."""

    vectors: VectorSet
    spec: EngineSpec
    folder: Path
    layout: LibraryLayout
    built: bool  # by this run

    @property
    def keys(self) -> list[str]:
        return [f"{LAYOUTS}/{self.spec.kind}/{name}" for name in self.layout.files]

    @classmethod
    def of(
        cls, manifest: Manifest, storage: Storage, spec: EngineSpec, building: Callable[[], None]
    ) -> LanceIndex:
        """The index of a dataset, which is built if there is none; ``building`` is called before.

        Raises UsageError for one of other data, settings or versions.
        """
        vectors = VectorSet(manifest, storage, spec.clusters)
        folder = layout_place(storage, spec.kind)
        found = recorded_layout(folder)
        built = found is None
        if found is None:
            building()
            with exclusive(lock_place(folder), layout_lock(spec.kind), verb="serve", make=True):
                found = recorded_layout(folder) or write_layout(
                    folder,
                    dataset=manifest.header.id,
                    package=_package(spec),
                    writes=WRITES,
                    convert=lambda part: _build(vectors, spec, part),
                )
        return cls(vectors, spec, folder, _check_same(folder, found, manifest, spec), built)

    def searches(
        self, seed: int, count: int, in_flight: int, nprobes: int, refine: int
    ) -> LanceSearches:
        """Searches of so many fresh queries."""
        queries = self.vectors.queries(seed, count + in_flight)
        return LanceSearches(self, queries[:count], queries[count:], nprobes, refine)

    def recall(self, searches: LanceSearches) -> list[float]:
        """The share of the exactly nearest vectors that each query has found."""
        exact = self.vectors.nearest(searches.queries, self.spec.top)
        return [
            len(set(mine).intersection(truth)) / len(truth)
            for mine, truth in zip(searches.found, exact.tolist(), strict=True)
        ]


def _build(vectors: VectorSet, spec: EngineSpec, folder: Path) -> None:
    import pyarrow as pa

    kind = pa.list_(pa.float32(), vectors.dimensions)
    schema = pa.schema([("id", pa.int64()), ("vector", kind)])

    def batches() -> Iterator[pa.RecordBatch]:
        for first, rows in vectors.chunks():
            flat = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), type=kind)
            yield pa.record_batch([pa.array(first + np.arange(len(rows))), flat], schema=schema)

    with _failures("build the index"):
        lancedb = _lancedb()
        from lancedb.index import IvfPq

        source = pa.RecordBatchReader.from_batches(schema, batches())
        table = lancedb.connect(str(folder)).create_table(TABLE, source)
        table.create_index(
            "vector",
            config=IvfPq(
                distance_type="l2",
                num_partitions=spec.partitions,
                num_sub_vectors=spec.sub_vectors,
            ),
        )


class LanceSearches:
    """The searches of one window, as ``client.issue`` issues them. ``found``: ids of each query."""

    reads = None  # which parts of its files the engine reads is its own affair

    def __init__(
        self, index: LanceIndex, queries: Vectors, warm: Vectors, nprobes: int, refine: int
    ) -> None:
        self.queries, self._warm = queries, warm
        self.found: list[list[int]] = [[] for _ in queries]
        self._top, self._nprobes, self._refine = index.spec.top, nprobes, refine
        with _failures("open the index"):
            self._table = _lancedb().connect(str(index.folder)).open_table(TABLE)
            if self._table.index_stats("vector_idx") is None:
                raise ValueError("the table has no index")

    def issue(
        self,
        instants: Instants,
        numbers: Ids,
        *,
        drain_s: float,
        prepare: Callable[[], None] = lambda: None,
        sequel: Sequel | None = None,
    ) -> Issued:
        """Search ``queries[numbers[i]]`` at ``instants[i]``; as ``client.issue``.

        What each thread does before the window is the search of a query of its own.
        """
        before, begun = psutil.Process().io_counters().read_bytes, local()
        others = iter(self._warm)

        def read(number: int) -> int:
            if not getattr(begun, "yes", False):
                begun.yes = True
                self._search(next(others))
            else:
                self.found[number] = self._search(self.queries[number])
            return 0

        def prepared() -> None:
            nonlocal before
            prepare()
            before = psutil.Process().io_counters().read_bytes

        readers = [read] * len(self._warm)
        found = issue(
            instants, numbers.tolist(), readers, drain_s=drain_s, prepare=prepared, sequel=sequel
        )
        fetched = psutil.Process().io_counters().read_bytes - before
        return Issued(**{**vars(found), "bytes": fetched})

    def _search(self, vector: Vectors) -> list[int]:
        with _failures("search"):
            query = self._table.search(vector).limit(self._top).nprobes(self._nprobes)
            if self._refine:
                query = query.refine_factor(self._refine)
            answer = query.select(["id", "_distance"]).to_arrow()
            return [int(each) for each in answer["id"].to_pylist()]

    def close(self) -> None:
        """Give up the connection, and what the engine keeps in memory."""
        del self._table
