"""Runs of a library's loader: make its layout, prove what it delivers, and measure it from memory.

The proof comes first and is not timed: an epoch of undecoded samples (or a part of one where the
dataset is large), each hashed and looked up in the manifest. The order in which they came shows
how well they were shuffled.

Each figure of shuffling is 1 for a uniform random order. If neighbouring samples are delivered
together, the batches of a training resemble each other. Loaders that stream accept this for
sequential reads (shards in random order, samples through a buffer), so a report should show these
figures together with the speed.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash

from ..base.errors import NoRoomError
from ..base.units import format_bytes
from ..data.dataset import index_file
from ..load.choose import make_reader
from ..load.layouts import held_layout, make_layout
from ..load.libraries import converter_class, library_class
from ..load.libraries.base import Source
from ..load.order import Indices
from ..load.third_party import library_version, open_library
from ..record.job import Delivery, LayoutFacts, LoaderFacts, Shuffle
from ..record.manifest import Manifest
from ..settings.base import fitting
from ..storage.base import Storage, check_key
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
        raise NoRoomError(
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


Array = npt.NDArray[np.int64]


def shuffle_quality(
    order: Array, shard_of: Array, batch_size: int, later: Array | None = None
) -> dict[str, float | None]:
    """Compute the figures below for one epoch.

    ``order`` holds the sample numbers in the order of delivery, ``later`` those of the next epoch;
    ``shard_of`` maps a sample number to its shard.

    ``distance``: mean distance of the samples from their place in storage, divided by that of a
    uniform permutation (about n / 3).
    ``shards_per_batch``: mean number of distinct shards in a batch, divided by the number that is
    expected in batches drawn at random.
    ``epoch_distance``: like ``distance``, between the two epochs; None without ``later``.
    """
    return {
        "distance": _distance(order, np.sort(order)),
        "shards_per_batch": _diversity(order, shard_of, batch_size),
        "epoch_distance": None if later is None else _distance(later, order),
    }


def _distance(order: Array, reference: Array) -> float | None:
    """Mean displacement of the samples that are in both orders, over that of a random order.

    The first occurrence of each sample counts. For a uniform permutation p of n samples,
    E|i - p(i)| is (n^2 - 1) / 3n. The result is None for fewer than two common samples.
    """
    order, reference = _once(order), _once(reference)
    common = np.intersect1d(order, reference)
    n = len(common)
    if n < 2:
        return None
    here, there = (
        _places(sequence[np.isin(sequence, common)], common) for sequence in (order, reference)
    )
    return float(np.abs(here - there).mean() / ((n * n - 1) / (3 * n)))


def _once(sequence: Array) -> Array:
    """The first occurrence of each value, in order."""
    _, first = np.unique(sequence, return_index=True)
    return np.asarray(sequence[np.sort(first)])


def _places(sequence: Array, common: Array) -> Array:
    """The position in ``sequence`` of each value of ``common`` (sorted)."""
    values, first = np.unique(sequence, return_index=True)
    return np.asarray(first[np.searchsorted(values, common)])


def _diversity(order: Array, shard_of: Array, batch_size: int) -> float | None:
    """Distinct shards per batch, divided by the expected number; None without a full batch.

    A random batch of b out of n samples holds a shard of m samples with the probability
    1 - C(n - m, b) / C(n, b).
    """
    full = len(order) // batch_size * batch_size
    if not full:
        return None
    batches = shard_of[order[:full]].reshape(-1, batch_size)
    seen = np.mean([len(np.unique(batch)) for batch in batches])
    _, counts = np.unique(shard_of[order], return_counts=True)
    n = len(order)
    absent = np.ones(len(counts))
    for drawn in range(batch_size):
        absent *= np.maximum(0, n - counts - drawn) / (n - drawn)
    return float(seen / (1 - absent).sum())


def identify(hashes: npt.NDArray[np.uint64], seen: npt.NDArray[np.uint64]) -> tuple[Array, int]:
    """(sample numbers for the hashes ``seen``, how many of ``seen`` belong to no sample).

    ``hashes`` holds the hashes of all samples, by sample number. Samples of equal contents cannot
    be told apart: the first one seen is taken for the first of them, the second for the second,
    and so on. If one is seen more often than there are such samples, it counts as the last again.
    """
    by_hash = np.argsort(hashes, kind="stable")
    first, after = (
        np.searchsorted(hashes, seen, side=side, sorter=by_hash) for side in ("left", "right")
    )
    by_seen = np.argsort(seen, kind="stable")
    turn = np.empty(len(seen), np.int64)
    turn[by_seen] = np.arange(len(seen)) - np.searchsorted(seen, seen[by_seen], sorter=by_seen)
    known = after > first
    return by_hash[np.minimum(first + turn, after - 1)[known]].astype(np.int64), int((~known).sum())


def delivery(order: Array, samples: int | None, *, unknown: int) -> dict[str, int | None]:
    """Count what one epoch delivered, compared with the ``samples`` of the dataset.

    ``unknown`` is the number of delivered samples whose contents are not in the dataset.
    ``samples`` is None if only a part of the epoch was observed. ``missing`` is then None as well,
    because the rest of the epoch may deliver those samples.
    """
    distinct = len(np.unique(order))
    return {
        "delivered": len(order) + unknown,
        "missing": None if samples is None else samples - distinct,
        "repeated": len(order) - distinct,
        "unknown": unknown,
    }
