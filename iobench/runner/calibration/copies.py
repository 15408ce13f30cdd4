"""Some shards of a dataset in this process's memory, for stages measured without storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from ...base import buffers
from ...base.errors import StorageError
from ...load.order import Indices
from ...record.manifest import Manifest
from ...storage.base import Storage
from ...storage.simulated.memory import MemoryStorage
from ..plan import Plan
from ..third_party import COPIES, enough_shards, in_memory

MIN_COPY_BYTES, MAX_COPY_BYTES = 64 << 20, 512 << 20
"""Bounds of the bytes that are copied: more than a CPU's caches hold, and little of the memory."""

_WINDOWS = 2
"""How long a copy may take, as a multiple of the time of a window."""

_BLOCK = 64 << 20  # bytes that one call reads


def bytes_to_copy(fetch_bytes_per_s: float | None, seconds: float) -> int:
    """How many bytes to copy, so that a slow storage is not read for much longer than a window.

    ``fetch_bytes_per_s`` is the rate at which the storage was read, if it is known; ``seconds`` is
    the time of a window.
    """
    if not fetch_bytes_per_s:
        return MAX_COPY_BYTES
    return int(min(MAX_COPY_BYTES, max(MIN_COPY_BYTES, fetch_bytes_per_s * seconds * _WINDOWS)))


def choose_shards(plan: Plan, max_bytes: int = MAX_COPY_BYTES) -> Indices:
    """Choose shards with the plan's seed: at most ``max_bytes``, but at least those of one batch.

    The shards of a batch are copied however large they are.
    """
    shards = np.random.default_rng(plan.seed).permutation(plan.manifest.shard_count)
    sizes, counts = plan.manifest.shards["size"][shards], plan.manifest.shards["samples"][shards]
    batch = int(np.searchsorted(np.cumsum(counts), plan.workload.batch_size)) + 1
    small = int(np.searchsorted(np.cumsum(sizes), max_bytes, side="right"))
    return np.sort(shards[: max(batch, small, 1)])


@dataclass(frozen=True, kw_only=True)
class MemoryCopy:
    """Shards in memory, and the manifest that describes what ``storage`` holds.

    ``shards``: the numbers of the copied ones, if ``manifest`` is that of the whole dataset.
    """

    manifest: Manifest
    storage: Storage
    shards: Indices | None
    bytes: int
    whole: bool  # all shards were copied


def make_copy(plan: Plan, max_bytes: int, held: ExitStack) -> MemoryCopy:
    """Copy shards for this plan's loader; they stay in memory until ``held`` is closed.

    Raises StorageError; for a loader library also UsageError if there is no room for files in
    memory.
    """
    shards = choose_shards(plan, max_bytes)
    if plan.subject.reads_itself:
        shards = enough_shards(plan, shards)
        manifest, files = held.enter_context(in_memory(plan, shards))
        return MemoryCopy(
            manifest=manifest,
            storage=files,
            shards=None,
            bytes=manifest.header.stored_bytes,
            whole=len(shards) == plan.manifest.shard_count,
        )
    storage, copied = copy_to_memory(plan, shards)
    return MemoryCopy(
        manifest=plan.manifest,
        storage=storage,
        shards=shards,
        bytes=copied,
        whole=len(shards) == plan.manifest.shard_count,
    )


def copy_to_memory(plan: Plan, shards: Indices) -> tuple[MemoryStorage, int]:
    """Copy shards; return a storage that holds them, and their bytes. Raises StorageError."""
    with ThreadPoolExecutor(COPIES) as threads:
        copies = list(threads.map(lambda shard: _copy(plan, shard), shards.tolist()))
    objects = dict(zip(map(plan.manifest.key, shards.tolist()), copies, strict=True))
    return MemoryStorage(objects=objects), sum(len(data) for data in copies)


def _copy(plan: Plan, shard: int) -> memoryview:
    size = int(plan.manifest.shards["size"][shard])
    step = plan.storage.alignment
    memory = buffers.private(-(-size // step) * step).array.data
    done = 0
    while done < size:
        block = min(_BLOCK, len(memory) - done)
        count = plan.storage.read_into(plan.manifest.key(shard), done, memory[done : done + block])
        if count == 0:
            raise StorageError(
                f"{plan.manifest.key(shard)} ends at byte {done}, but {size} bytes were expected",
                remedy="check it: iobench verify",
            )
        done += count
    return memory[:size]
