"""The parts of mosaicml-streaming that are not public. Written for mosaicml-streaming 0.13."""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from operator import attrgetter
from typing import Any

from streaming.base.constant import EPOCH_DATA, EPOCH_SHAPE
from streaming.base.world import World

_MEMORY = (
    "_shared_barrier._arr.shm",
    "_next_epoch.arr.shm",
    "_cache_usage.arr.shm",
    "_shard_states.shm",
    "_shard_access_times.shm",
    "_locals_shm",  # the last: while it exists, nobody else takes these names
)
"""Attributes of a StreamingDataset that hold its shared memory."""


def divide_samples(dataset: Any, *, rank: int, world: int) -> None:
    """Divide the samples of a StreamingDataset among all ranks; its memory stays this rank's."""
    dataset._parallel_rank_world = World(
        num_nodes=1, ranks_per_node=world, workers_per_rank=1, worker=rank
    )


def end(dataset: Any) -> None:
    """End a StreamingDataset's threads, and remove its lock files and shared memory.

    The library leaves that to ``atexit``, which neither a rank nor a worker reaches. The dataset
    may be half made.
    """
    if hasattr(dataset, "_executor"):
        dataset._event.set()
        if hasattr(dataset, "_iterator"):
            dataset._iterator.non_blocking_exit()
        dataset._executor.shutdown()
    if not hasattr(dataset, "_shm_prefix_int"):
        return
    for place in ("_shared_barrier.filelock_path", "_cache_filelock_path"):
        with suppress(AttributeError, FileNotFoundError):
            os.unlink(attrgetter(place)(dataset))
    # Left by a worker that was ended while it distributed an epoch.
    for name in (EPOCH_SHAPE, EPOCH_DATA):
        with suppress(FileNotFoundError):
            left = SharedMemory(f"{dataset._shm_prefix_int:06}_{name}")
            left.close()
            left.unlink()
    for place in _MEMORY:
        with suppress(AttributeError):
            memory = attrgetter(place)(dataset)
            atexit.unregister(memory.cleanup)  # by then another process may have the name
            memory.cleanup()
