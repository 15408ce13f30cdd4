"""Make the loader of a dataset: iobench's own, that of a library, or the user's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Required, TypedDict, Unpack, overload

import numpy as np

from ..base.errors import UsageError
from ..base.units import counted
from ..data.dataset import Dataset, find_dataset, place_of, read_by_blocks, read_manifest
from ..record.manifest import Manifest
from ..settings.base import build
from ..settings.workload import LoaderSpec, ReaderSpec
from ..storage import open_storage
from ..storage.base import Storage
from .choose import is_sequential, make_reader, use_direct
from .loader import BatchLoader, Finish
from .null import AnyReader, NullReader, ReadyReader
from .order import BatchPlan, Indices, epoch_order, rank_share
from .reader import BatchReader
from .third_party import LibraryLoader, open_library
from .training.labels import Given, Labels, given_labels, labels_from
from .training.loader import Collate, Layout, TrainingLoader, Transform, Wishes, loading_for

_BATCHES_PER_WORKER = 64
"""Batches that each worker should have in a chain of epochs (see ``build_loader``)."""

_SOME_BATCHES = 16
"""Batches whose requests are counted, to decide whether to read ahead."""

_MAX_LINKS = 1000
"""Largest number of epochs in one chain."""


class LoaderArguments(TypedDict, total=False):
    """The arguments of ``make_loader`` that any loader takes."""

    batch_size: Required[int]
    num_workers: int | None
    storage: Storage | None
    rank: int
    world: int
    seed: int
    reader: ReaderSpec | dict[str, object] | None
    loader: LoaderSpec | dict[str, object] | None
    origin: str | None


@overload
def make_loader(
    data: str | Path | Dataset | Manifest, **arguments: Unpack[LoaderArguments]
) -> BatchLoader | LibraryLoader: ...


@overload
def make_loader(
    data: str | Path | Dataset | Manifest,
    *,
    labels: Given,
    layout: Layout | None = None,
    transform: Transform | None = None,
    collate: Collate | None = None,
    **arguments: Unpack[LoaderArguments],
) -> TrainingLoader: ...


@overload
def make_loader(
    data: str | Path | Dataset | Manifest,
    *,
    labels: Given | None = None,
    layout: Layout | None = None,
    transform: Transform | None = None,
    collate: Collate | None = None,
    **arguments: Unpack[LoaderArguments],
) -> BatchLoader | LibraryLoader | TrainingLoader: ...


def make_loader(
    data: str | Path | Dataset | Manifest,
    *,
    batch_size: int,
    num_workers: int | None = None,
    storage: Storage | None = None,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    reader: ReaderSpec | dict[str, object] | None = None,
    loader: LoaderSpec | dict[str, object] | None = None,
    origin: str | None = None,
    labels: Given | None = None,
    layout: Layout | None = None,
    transform: Transform | None = None,
    collate: Collate | None = None,
) -> BatchLoader | LibraryLoader | TrainingLoader:
    """Make a torch DataLoader over a dataset, as ``iobench run`` uses it, for your own training.

    ``data`` is a directory, a URL, or the result of ``open_dataset`` or ``load_manifest``. Give
    ``storage`` if the shards are in another place, or ``origin`` (a directory or URL) for the
    shards of a scanned dataset. This is rank ``rank`` of ``world`` ranks. ``reader`` and ``loader``
    take the keys of a workload's sections of these names; ``num_workers`` is torch's name for
    ``loader={"workers": ...}``. Call ``set_epoch`` before each epoch, as with torch's
    DistributedSampler.

    With one of the last four arguments the result is a ``TrainingLoader``, whose batches are
    ``samples, labels``. ``labels``: a source as ``read_labels`` takes it (such as "auto"), its
    result, or one whole number or name for each sample. ``layout``: "HWC" (the default) or "CHW"
    for images. ``transform``: a function of one sample, which runs in the workers. ``collate``:
    "stack" (the default), "pad", "list", or a function of a list of samples.

    Raises DatasetError, SpecError, StorageError, UsageError.

    >>> loader = iobench.make_loader("demo-data", batch_size=8, num_workers=0)
    >>> loader.set_epoch(0)
    >>> sum(len(batch) for batch in loader)
    40
    """
    reading = (
        reader
        if isinstance(reader, ReaderSpec)
        else build(ReaderSpec, reader or {}, where="make_loader")
    )
    loading = loader if isinstance(loader, LoaderSpec) else _loading(loader or {}, num_workers)
    if loading is loader and num_workers is not None:
        raise UsageError(
            "num_workers and the LoaderSpec both state the number of workers",
            remedy="set LoaderSpec.workers, and leave num_workers out",
        )
    if loading.subject.users:
        raise UsageError(
            f"kind '{loading.kind}' is a loader that your own code makes",
            remedy="call your function; 'iobench run --loader' measures it",
        )
    if not 0 <= rank < world:
        raise UsageError(
            f"rank {rank} is not one of {counted(world, 'rank')}",
            remedy="ranks are numbered from 0: rank 0 of world 1 is a training alone",
        )
    wishes = Wishes(layout, transform, collate)
    training = labels is not None or wishes != Wishes()
    if training:
        loading = loading_for(wishes, loading)
    manifest, place = _dataset(data, origin, apart=storage is not None)
    if storage is None:
        direct = (
            use_direct(reading, open_storage(place), manifest)
            if not loading.subject.reads_itself
            else False
        )
        storage = open_storage(place, direct=direct)
    made = make_reader(manifest, storage, reading)
    # Samples that share blocks cost least where each worker reads its own blocks.
    steady = not read_by_blocks(manifest.spec)
    table = None
    if training:
        wishes.check(made, reading)
        if isinstance(labels, str):
            table = labels_from(manifest, storage, labels)
        elif labels is not None:
            table = given_labels(labels, manifest.sample_count)
    loaded = build_loader(
        made,
        loading,
        reading,
        batch_size=batch_size,
        rank=rank,
        world=world,
        seed=seed,
        finish=wishes.finish(loading) if training else None,
        steady=training and steady,
    )
    if not training or not isinstance(loaded, BatchLoader):
        return loaded
    facts = {} if steady else {"workers": max(1, loading.workers)}
    facts |= {
        "samples": manifest.sample_count,
        "batch_size": batch_size,
        "rank": rank,
        "world": world,
        "seed": seed,
    }
    return TrainingLoader(loaded, table, wishes, facts)


def _loading(keys: dict[str, object], num_workers: int | None) -> LoaderSpec:
    """The loader's settings, where torch's name for the number of workers may be used."""
    if num_workers is not None:
        if "workers" in keys:
            raise UsageError(
                "num_workers and loader['workers'] are the same setting",
                remedy="pass only one of them",
            )
        keys = {"workers": num_workers, **keys}
        if num_workers == 0 and "transport" not in keys:
            keys["transport"] = "tensor"  # the default, "ring", is for worker processes
    return build(LoaderSpec, keys, where="make_loader")


def read_labels(
    data: str | Path | Manifest | Dataset,
    source: str = "auto",
    *,
    raw: bool = False,
    storage: Storage | None = None,
    origin: str | None = None,
) -> Labels:
    """Read the labels of all samples of a dataset.

    ``data``, ``storage`` and ``origin`` as for ``make_loader``. ``source``: ``folder``, the first
    folder of each file below the folder that all of them share; ``member:NAME``, a member of each
    sample of tar shards, such as ``member:cls``; ``member:json:KEY``, a value in its member
    ``json``; ``column:NAME``, a column of Parquet files. ``auto`` is folder for files, member:cls
    for tar and column:label for Parquet. Whole numbers are taken as they are; names are numbered in
    sorted order (``Labels.classes``). ``raw``: a list of what the data has, text, numbers or bytes.

    Raises UsageError if the dataset's format has no labels beside its samples, DatasetError for a
    sample without a label, StorageError.
    """
    manifest, place = _dataset(data, origin, apart=storage is not None)
    return labels_from(manifest, storage or open_storage(place), source, raw=raw)


def _dataset(
    data: str | Path | Manifest | Dataset, origin: str | None, *, apart: bool
) -> tuple[Manifest, str]:
    """Return the manifest and the place of its shards.

    The place is '' if ``apart``: the caller gave the storage of the shards separately.

    Raises UsageError, DatasetError, StorageError.
    """
    if apart and origin is not None:
        raise UsageError(
            "storage and origin both state where the shards are", remedy="pass only one of them"
        )
    if isinstance(data, Dataset):
        if origin is None:
            return data.manifest, "" if apart else data.place
        data = data.manifest
    if not isinstance(data, Manifest):
        if apart:
            return read_manifest(open_storage(str(data))), ""
        return find_dataset(str(data), origin=origin)
    if apart:
        return data, ""
    if data.root is None and origin is None:
        raise UsageError(
            "this manifest does not state where its shards are",
            remedy="pass their storage: make_loader(..., storage=...)",
        )
    return data, place_of(data, str(data.root or "a manifest"), origin)


def build_loader(
    reader: AnyReader,
    loading: LoaderSpec,
    reading: ReaderSpec,
    *,
    batch_size: int,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    epochs: int = 1,
    shards: Indices | None = None,
    chain: bool = False,
    finish: Finish | None = None,
    steady: bool = False,
) -> BatchLoader | LibraryLoader:
    """Make a loader around a reader.

    ``shards`` restricts it to some shards. The slots are sized for the batches of the first
    ``epochs`` epochs. ``chain`` joins epochs into one (at most 1000) until a rank has 64 batches
    for each worker, so that a rate is not dominated by the start and the end of the pipeline. If
    ``loading`` names a loader library, only the reader's dataset and storage are used. ``finish``
    is what workers do with the samples of a batch. ``steady``: the order of batches does not depend
    on the number of workers.
    """
    manifest = reader.manifest
    if loading.subject.reads_itself and isinstance(reader, BatchReader):
        return open_library(
            manifest,
            reader.storage,
            reading,
            loading,
            batch_size=batch_size,
            rank=rank,
            world=world,
            seed=seed,
        )
    firsts, counts = manifest.shards["first"], manifest.shards["samples"]
    if shards is not None:
        firsts, counts = firsts[shards], counts[shards]
        reader.restrict(shards)
    sequential = is_sequential(reading, manifest)
    if not loading.in_order:  # a batch is announced to a worker that may not get it
        reading = reading.model_copy(update={"read_ahead": False})

    total = int(counts.sum())
    enough = _BATCHES_PER_WORKER * max(1, loading.workers) * batch_size * world  # samples
    links = min(_MAX_LINKS, -(-enough // total)) if chain else 1

    def plan_epoch(epoch: int) -> BatchPlan:
        orders = [
            epoch_order(
                firsts,
                counts,
                sequential=sequential,
                shuffle=reading.shuffle,
                seed=seed,
                epoch=epoch * links + link,
            )
            for link in range(links)
        ]
        order = np.concatenate(orders)
        share = rank_share(order, rank=rank, world=world, batch_size=batch_size, tail=reading.tail)
        streams = loading.workers if sequential and not steady else 1
        return BatchPlan(share, batch_size=batch_size, streams=streams)

    room = reader.room()
    # Exact for the first epochs that will run (at most 4). For later epochs the bound is the sum
    # of the ``batch_size`` largest samples; with few epochs, 10 % above the exact size is enough.
    first = plan_epoch(0)
    rest = (plan_epoch(epoch).largest(room) for epoch in range(1, min(epochs, 4)))
    largest = max([first.largest(room), *rest])
    if room.size > batch_size:
        bound = int(np.partition(room, room.size - batch_size)[-batch_size:].sum())
        largest = min(bound, int(largest * 1.1)) if epochs <= 4 else bound
    if isinstance(reader, BatchReader):
        reader.check_there(largest)
    return BatchLoader(
        reader,
        loading,
        plan_epoch,
        samples=total,
        largest_batch=largest,
        ahead=planned_ahead(reader, reading, first, streams=max(1, loading.workers)),
        finish=finish,
    )


def offered(reader: BatchReader | ReadyReader, plan: BatchPlan) -> tuple[float, float]:
    """Return the mean number of requests of a batch, and how many the reader issues at once.

    That is without read-ahead. Up to 16 batches of the epoch are counted, and none is read.
    """
    numbers = np.unique(np.linspace(0, len(plan) - 1, min(_SOME_BATCHES, len(plan)), dtype=int))
    found = [reader.offers(plan.batch(number)) for number in numbers.tolist()]
    requests, at_once = (float(np.mean(counts)) for counts in zip(*found, strict=True))
    return requests, at_once


def planned_ahead(reader: AnyReader, reading: ReaderSpec, plan: BatchPlan, *, streams: int) -> int:
    """Return how many batches each of the ``streams`` workers reads ahead."""
    rounds = -(-len(plan) // streams)  # batches of one worker in an epoch
    if isinstance(reader, NullReader) or rounds < 2:
        return 0
    if reading.read_ahead is False or not reader.reads_ahead:
        return 0
    requests, at_once = offered(reader, plan)
    if reading.read_ahead == "auto" and at_once >= reading.concurrency:
        return 0
    # As many as keep ``concurrency`` requests waiting behind those of the current batch.
    ahead = math.ceil(reading.concurrency / max(1.0, requests) - 1e-9)
    return min(max(1, ahead), rounds - 1)
