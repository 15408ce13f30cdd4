"""Some shards of a dataset in this process's memory, for stages measured without storage."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ... import buffers
from ...errors import StorageError
from ...load.order import Indices
from ...storage.simulated.memory import MemoryStorage
from ..plan import Plan
from ..third_party import COPIES

_COPY_BYTES = 512 << 20
"""The most bytes of the dataset that are copied.

At least the shards of one batch are copied, however large they are.
"""

_BLOCK = 64 << 20  # bytes that one call reads


def choose_shards(plan: Plan) -> Indices:
    """Choose shards with the plan's seed: at most ``_COPY_BYTES``, but at least one batch."""
    shards = np.random.default_rng(plan.seed).permutation(plan.manifest.shard_count)
    sizes, counts = plan.manifest.shards["size"][shards], plan.manifest.shards["samples"][shards]
    batch = int(np.searchsorted(np.cumsum(counts), plan.workload.batch_size)) + 1
    small = int(np.searchsorted(np.cumsum(sizes), _COPY_BYTES, side="right"))
    return np.sort(shards[: max(batch, small, 1)])


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
