"""Loader libraries in place of iobench's own loader (``loader.kind``).

This module checks which datasets and settings a library supports, and converts its batches to
``Batch``.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import numpy as np

from ..base.errors import IobenchError, UsageError, WorkerError
from ..base.extras import package_version
from ..base.units import counted
from ..data.formats import FORMATS
from ..data.formats.base import Blocks
from ..record.manifest import Manifest
from ..settings.workload import OWN, LoaderSpec, ReaderSpec
from ..storage.base import Storage, local_root
from .ending import closed_at_exit
from .layouts import made_layout
from .libraries import library_class
from .libraries.base import Converts, Library, Source
from .loader import Batch, worker_death
from .torch_compat import worker_error


def check_library(
    manifest: Manifest, storage: Storage, reading: ReaderSpec, loading: LoaderSpec, *, world: int
) -> None:
    """Raise UsageError if this kind of loader does not support the dataset, storage or settings.

    Also if its library is not installed.
    """
    library = library_class(loading.kind)
    if library is None:
        return
    name, form = f"loader '{loading.kind}'", manifest.spec.format
    own = f"use --set loader.kind={OWN.kind}"
    if library.formats and form not in library.formats:
        wanted = " or ".join(library.formats)
        raise UsageError(
            f"{name} reads format {wanted}, but this dataset has format '{form}'",
            remedy=f"generate one with --set format={wanted}, or {own}",
        )
    if not library.formats and isinstance(FORMATS.open(form), Blocks):
        raise UsageError(
            f"{name} reads each sample as a byte range, but format '{form}' is read in blocks of "
            "many samples",
            remedy=f"use loader hf-datasets, or {own}",
        )
    if library.local and local_root(storage) is None:
        raise UsageError(
            f"{name} opens files by their path, but {storage.url} is not a local directory",
            remedy=f"mount it, or {own}",
        )
    if issubclass(library, Converts) and manifest.header.origin:
        raise UsageError(
            f"{name} writes a layout (files in its own format) into the dataset's directory, but "
            "iobench did not generate this dataset",
            remedy=own,
        )
    if library.shards_each and manifest.shard_count < world * max(1, loading.workers):
        each = manifest.shard_count // world
        fewer = f"use --set loader.workers={each}, or " if each else "use fewer accelerators, or "
        again = (
            "write the data in more files"
            if manifest.header.origin
            else "generate the dataset with a smaller shard_size"
        )
        raise UsageError(
            f"{name} needs at least one shard for each worker, but this dataset has "
            f"{counted(manifest.shard_count, 'shard')} for {world} x {loading.workers} workers",
            remedy=fewer + again,
        )
    for key, value, default in (
        ("direct", reading.direct, (False, "auto")),
        ("mmap", reading.mmap, (False,)),
        ("columns", reading.columns, (None,)),
        ("check", reading.check, ("none",)),
    ):
        if value not in default:
            raise UsageError(
                f"{name} does not support reader.{key}, which only iobench's own reader has",
                remedy=f"{own}, or leave reader.{key} out",
            )


def library_version(kind: str) -> str:
    """Return name and version of the package of this kind of loader.

    Only the name if the package is not installed under it.
    """
    library = library_class(kind)
    package = library.package if library is not None else "torch"
    version = package_version(package)
    return f"{package} {version}" if version else package


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
    """Open a loader library over a dataset.

    If the library reads its own layout, that must exist (see ``make_layout``). Raises UsageError
    for what this kind does not support or what is missing, and DatasetError for a layout that
    iobench did not write.
    """
    check_library(manifest, storage, reading, loading, world=world)
    library = library_class(loading.kind)
    if library is None:
        raise UsageError(
            f"loader '{loading.kind}' is not a library", remedy="use iobench.make_loader"
        )
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
        if issubclass(library, Converts)
        else None,
    )
    return LibraryLoader(library, source)


class LibraryLoader:
    """A loader library with the interface of BatchLoader.

    Call ``set_epoch``, then iterate over ``Batch``. Libraries do not number samples, so that
    ``indices`` are -1.
    """

    ring = None  # every batch is a tensor of its own

    def __init__(self, library: type[Library], source: Source) -> None:
        self.kind = source.loading.kind
        self.source = source
        self.epoch = 0
        self.cpu_ns: dict[int, int] = {}
        self.in_flight = max(1, source.loading.workers * source.loading.prefetch_factor)
        self.round_batches = max(1, source.loading.workers)
        with _One(self.kind):
            self._library = library(source)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the next iteration reads."""
        self.epoch = epoch

    @closed_at_exit
    def __iter__(self) -> Generator[Batch, None, None]:
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

    def release_maps(self) -> None:
        """Do nothing: a library that maps files has workers for one epoch only.

        Its maps end with these workers; see the modules of the libraries.
        """

    def shutdown(self) -> None:
        self._library.close()
        self.source.storage.close()


class _One:
    """A context manager that turns an exception of a library into an error of one line.

    The error names the kind of loader. The original exception stays its cause, so that ``--debug``
    shows its traceback.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        if error is None or not isinstance(error, Exception):
            return
        passed_on = worker_error(error)
        if isinstance(error, IobenchError) and passed_on is None:
            return
        death = worker_death(error)
        if death is not None:
            raise death from error
        text = passed_on or str(error)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [
            type(error).__name__
        ]
        why = re.sub(r"^iobench\.[\w.]+: ", "", lines[-1])[:300]
        raise WorkerError(
            f"loader '{self.kind}' failed: {why}",
            remedy="use --debug to see its traceback",
        ) from error
