"""Runs of a library's loader: make its layout, prove what it delivers, and measure it from memory.

The proof comes first and is not timed: an epoch of undecoded samples (or a part of one where the
dataset is large), each hashed and looked up in the manifest. The order in which they came shows
how well they were shuffled.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import xxhash

from ..base.errors import UsageError
from ..base.units import format_bytes
from ..data.dataset import index_file
from ..judge.figures.delivery import delivery, identify, shuffle_quality
from ..load import library_version, make_reader, open_library
from ..load.layouts import held_layout, make_layout
from ..load.libraries import converter_class, library_class
from ..load.libraries.base import Source
from ..load.order import Indices
from ..record.job import Delivery, LayoutFacts, LoaderFacts, Shuffle
from ..record.manifest import Manifest
from ..settings.base import fitting
from ..storage.base import Storage
from ..storage.keys import check_key
from ..storage.local.storage import LocalStorage
from ..storage.scratch import scratch
from .conductor import last_messages
from .crew import ForkedCrew
from .messages import Delivered, Link
from .plan import Plan
from .user_loader import facts_of

COPIES = 8
"""Number of shards that are copied to memory concurrently: over a network each read is a request.
"""

_MEMORY = Path("/dev/shm")


def prepare_library(plan: Plan, held: ExitStack, *, proof: bool) -> LoaderFacts:
    """Return facts about the loader: the library, its layout, and what it delivers.

    The layout is locked, so that nobody makes it again, until ``held`` is closed. A sweep needs the
    proof only once.
    """
    kind = plan.workload.loader.kind
    version = library_version(kind)
    found: dict[str, object] = {"kind": kind, "library": version, "transport": None}
    if plan.subject.users:
        found["user"] = facts_of(plan.tried)
        return fitting("the loader", LoaderFacts, found)
    if converter_class(kind) is not None:
        source = _source(plan, plan.manifest, plan.storage)
        layout, kept = held.enter_context(held_layout(source, version))
        found["layout"] = LayoutFacts(
            seconds=layout.seconds,
            bytes=layout.bytes,
            files=len(layout.files),
            made_earlier=kept,
        )
    if proof:
        found["delivery"], found["shuffle"] = prove(plan)
    return fitting("the loader", LoaderFacts, found)


def prove(plan: Plan) -> tuple[Delivery, Shuffle]:
    """Measure what the plan's loader delivers, and how well it shuffles.

    Each has ``not_measured``, with the reason, if it could not be measured.
    """
    manifest = plan.manifest
    if not manifest.header.checksums:
        why = "the dataset has no checksums of its samples; scan it with --checksums"
        return Delivery(not_measured=why), Shuffle(not_measured=why)
    ranks = last_messages(ForkedCrew(plan.accelerators, ProveDelivery(plan)), Delivered)
    hashes = np.asarray(manifest.samples["xxh3"])
    everything, unknown = identify(hashes, np.concatenate([rank.epochs[0] for rank in ranks]))
    whole = all(len(rank.epochs) > 1 for rank in ranks)
    proof: dict[str, object] = dict(
        delivery(everything, manifest.sample_count if whole else None, unknown=unknown)
    )
    proof |= {"of": manifest.sample_count, "whole_epoch": whole}
    if not whole:
        proof["missing_not_measured"] = (
            f"only the first {format_bytes(MAX_BYTES)} of an epoch were checked; "
            "missing samples may come later"
        )
    # Only one rank's share is examined, because all are shuffled in the same way.
    order, later = (
        identify(hashes, ranks[0].epochs[0])[0],
        identify(hashes, ranks[0].epochs[1])[0] if whole else None,
    )
    quality = shuffle_quality(order, manifest.samples["shard"], plan.workload.batch_size, later)
    return Delivery.model_validate(proof), Shuffle.model_validate(quality)


@contextmanager
def in_memory(plan: Plan, shards: Indices) -> Iterator[tuple[Manifest, Storage]]:
    """Copy some shards into memory; yield a manifest of them, and the storage that holds them.

    If the library has a layout of its own, it is made from these shards.
    """
    manifest = plan.manifest.part(shards)
    kind = plan.workload.loader.kind
    need = int(manifest.shards["size"].sum()) * (2 if converter_class(kind) is not None else 1)
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < need:
        raise UsageError(
            f"{_MEMORY} has no {format_bytes(need)} free for a copy of some shards",
            remedy=f"make it larger: mount -o remount,size=SIZE {_MEMORY}",
        )
    with scratch("copy", within=_MEMORY) as folder:
        with ThreadPoolExecutor(COPIES) as threads:
            deque(
                threads.map(
                    lambda shard: _copy(plan.storage, manifest.key(shard), folder),
                    range(manifest.shard_count),
                ),
                maxlen=0,
            )
        if (index := index_file(manifest)) is not None:
            # The index of these shards, not of the whole dataset.
            (folder / index[0]).write_bytes(index[1])
        storage = LocalStorage(folder)
        if converter_class(kind) is not None:
            make_layout(_source(plan, manifest, storage), library_version(kind))
        make_reader(manifest, storage, plan.workload.reader)
        yield manifest, storage


def enough_shards(plan: Plan, shards: Indices) -> Indices:
    """``shards``, or more of them if each worker of a rank needs a shard of its own."""
    loading = plan.workload.loader
    library = library_class(loading.kind)
    workers = max(1, loading.workers) if library is not None and library.shards_each else 1
    if len(shards) >= workers:
        return shards
    rest = np.setdiff1d(np.arange(plan.manifest.shard_count), shards)
    return np.sort(np.concatenate([shards, rest[: workers - len(shards)]]))


def _source(plan: Plan, manifest: Manifest, storage: Storage) -> Source:
    workload = plan.workload
    reading = workload.reader.model_copy(update={"decode": False, "crop": None})
    return Source(
        manifest=manifest,
        storage=storage,
        reading=reading,
        loading=workload.loader,
        batch_size=workload.batch_size,
    )


def _copy(storage: Storage, key: str, folder: Path) -> None:
    path = folder / check_key(key)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer, offset = memoryview(bytearray(4 << 20)), 0
    with path.open("wb") as file:
        while count := storage.read_into(key, offset, buffer):
            file.write(buffer[:count])
            offset += count


MAX_BYTES = 1 << 30
"""Limit for the samples' bytes, over all ranks, that are hashed; the rest of a dataset is not
checked.
"""


class ProveDelivery:
    """Hash two epochs of the plan's loader, or a part of one epoch if MAX_BYTES allows no more."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def run(self, link: Link) -> None:
        plan, workload = self.plan, self.plan.workload
        reading = workload.reader.model_copy(update={"decode": False, "crop": None})
        loader = open_library(
            plan.manifest,
            plan.storage,
            reading,
            workload.loader,
            batch_size=workload.batch_size,
            rank=link.rank,
            world=link.world,
            seed=plan.seed,
        )
        max_bytes = MAX_BYTES // link.world
        epochs, size = [], 0
        for epoch in range(2):
            seen: list[int] = []
            loader.set_epoch(epoch)
            for batch in loader:
                if link.stopped.value:
                    break
                for sample in batch:
                    seen.append(xxhash.xxh3_64_intdigest(sample.numpy().data))
                    size += len(sample)
                if epoch == 0 and size > max_bytes:
                    break
            epochs.append(np.array(seen, np.uint64))
            if size > max_bytes or link.stopped.value:
                break
        loader.shutdown()
        link.send(Delivered(epochs))
