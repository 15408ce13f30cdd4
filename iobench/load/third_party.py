"""Loaders that others wrote (``loader.kind``), in the place of iobench's own: what they can't have, and their batches as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import IobenchError, UsageError, WorkerError
from ..formats.base import Blocks
from ..registry import FORMATS, LOADERS
from ..schema.manifest import Manifest
from ..schema.workload import LoaderSpec, ReaderSpec
from ..storage.base import Storage
from ..storage.catalog import local_root
from .layouts import made_layout
from .loader import Batch, worker_death

if TYPE_CHECKING:
    from .libraries.base import Source

OWN = "torch"
"""The kind that is iobench's own."""


def check_library(
    manifest: Manifest, storage: Storage, reading: ReaderSpec, loading: LoaderSpec, *, world: int
) -> None:
    """Raises UsageError for a dataset, a place or a setting that this kind of loader can't have, or a library that is not installed."""
    library = LOADERS.load(loading.kind)
    if loading.kind == OWN:
        return
    name, form = f"loader '{loading.kind}'", manifest.spec.format
    own = f"use --set loader.kind={OWN}"
    if library.formats and form not in library.formats:
        wanted = " or ".join(library.formats)
        raise UsageError(
            f"{name} reads format {wanted}, this dataset is '{form}'",
            remedy=f"generate one with --set format={wanted}, or {own}",
        )
    if not library.formats and isinstance(FORMATS.open(form), Blocks):
        raise UsageError(
            f"{name} reads byte ranges, and format '{form}' is read by blocks",
            remedy=f"use loader hf-datasets, or {own}",
        )
    if library.local and local_root(storage) is None:
        raise UsageError(
            f"{name} opens files by their path, and {storage.url} has none",
            remedy=f"mount it, or {own}",
        )
    if library.layout and manifest.header.origin:
        raise UsageError(
            f"{name} writes a layout of its own beside the data, and this data is not iobench's",
            remedy=own,
        )
    if library.shards_each and manifest.shard_count < world * max(1, loading.workers):
        raise UsageError(
            f"{name} gives each worker shards of its own: {manifest.shard_count} are too few for {world} x {loading.workers} workers",
            remedy="lower loader.workers, or generate the dataset with a smaller shard_size",
        )
    for key, value, default in (
        ("direct", reading.direct, (False, "auto")),
        ("mmap", reading.mmap, (False,)),
        ("columns", reading.columns, (None,)),
        ("check", reading.check, ("none",)),
    ):
        if value not in default:
            raise UsageError(
                f"{name} has no reader.{key}, which is iobench's own reader's",
                remedy=f"{own}, or leave reader.{key} out",
            )


def library_version(kind: str) -> str:
    """Of the package behind a kind of loader; '' where it can't be told."""
    package = getattr(LOADERS.load(kind), "package", "torch")
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return str(package)


def open_library(
    manifest: Manifest,
    storage: Storage,
    reading: ReaderSpec,
    loading: LoaderSpec,
    *,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
) -> LibraryLoader:
    """A loader of another kind than iobench's own over a dataset. Its layout, if it has one, must have been made (``make_layout``).

    Raises UsageError for whatever this kind can't have, or has not.
    """
    from .libraries.base import Source

    check_library(manifest, storage, reading, loading, world=world)
    source = Source(
        manifest=manifest,
        storage=storage,
        reading=reading,
        loading=loading,
        batch_size=batch_size,
        rank=rank,
        world=world,
        seed=seed,
        layout=made_layout(manifest, storage, loading.kind)
        if LOADERS.load(loading.kind).layout
        else None,
    )
    return LibraryLoader(source)


class LibraryLoader:
    """As BatchLoader: ``set_epoch``, then iterate over ``Batch``. Libraries do not number samples, so ``indices`` are -1."""

    ring = None  # every batch is a tensor of its own

    def __init__(self, source: Source) -> None:
        self.kind = source.loading.kind
        self.source = source
        self.epoch = 0
        self.cpu_ns: dict[int, int] = {}
        self.in_flight = max(1, source.loading.workers * source.loading.prefetch_factor)
        with _One(self.kind):
            self._library = LOADERS.load(self.kind)(source)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that the next iteration reads."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Batch]:
        with _One(self.kind):
            for packed in self._library.epoch(self.epoch):
                self.cpu_ns[packed.stats.process] = packed.stats.cpu_ns
                ends = np.cumsum(packed.lengths)
                yield Batch(
                    packed.data,
                    np.full(len(ends), -1, np.int64),
                    ends - packed.lengths,
                    packed.lengths,
                    packed.stats,
                )

    def let_go(self) -> None:
        """Libraries that map files have workers for one epoch at a time (see their own modules)."""

    def shutdown(self) -> None:
        self._library.close()
        self.source.storage.close()


class _One:
    """What goes wrong in a library, in one line that names it; its own traceback stays behind it for --debug."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is None or not isinstance(error, Exception):
            return
        if isinstance(error, IobenchError) and "\n" not in str(error):
            return  # torch makes a traceback of what its workers raise
        death = worker_death(error)
        if death is not None:
            raise death from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [
            type(error).__name__
        ]
        why = re.sub(r"^iobench\.errors\.\w+: ", "", lines[-1])[:300]
        raise WorkerError(
            f"loader '{self.kind}' failed: {why}",
            remedy="see its own traceback with --debug",
        ) from error
