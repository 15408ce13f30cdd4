"""mosaicml-streaming: MDS shards where they lie, samples in an order that it shuffles within and across shards."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.shared_memory import SharedMemory
from operator import attrgetter
from typing import Any

import streaming
from streaming.base.constant import EPOCH_DATA, EPOCH_SHAPE, TICK
from streaming.base.world import World

from ...dataset import ResolvedSpec
from ...storage.catalog import local_root
from .base import Library, Packed, Source
from .pieces import Undo, Workers, collate

_ALONE = {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}

_PATIENCE_S = 10
"""For other processes that choose names for their shared memory at the same moment: ranks do."""

_MEMORY = (
    "_shared_barrier._arr.shm",
    "_next_epoch.arr.shm",
    "_cache_usage.arr.shm",
    "_shard_states.shm",
    "_shard_access_times.shm",
    "_locals_shm",  # the last: while it is there, nobody else takes these names
)
"""Where a dataset keeps its shared memory."""


class Mosaic(Library):
    """``StreamingDataset(local=...)`` in torch's DataLoader, with its own shuffle and partition, as of one node with all ranks.

    Where samples do not divide by ranks, it repeats some, fewer than there are ranks. In a training, ranks meet at the start of each epoch
    and share one order; here each rank computes that order by itself.
    A rank that is killed leaves two empty lock files in the temporary folder.
    """

    package = "mosaicml-streaming"
    formats = ("mds",)
    local = True

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        source.check_index()  # it could name files elsewhere, or encodings that run code
        for shard in range(source.manifest.shard_count):
            os.stat(
                source.path(shard) or ""
            )  # a shard that is not there makes its threads wait for a download, for ever
        self._dataset = _open(source)
        self._loader = Workers(
            self._dataset, source.loading, batch_size=source.batch_size, collate_fn=collate, drop_last=source.drop_last
        )  # fmt: skip

    def epoch(self, epoch: int) -> Iterator[Packed]:
        self._dataset.next_epoch = epoch  # a number in shared memory: workers that last see it, too
        return iter(self._loader)

    def close(self) -> None:
        self._loader.stop()
        self._dataset.end()


def _open(source: Source) -> _Samples:
    """Names of shared memory begin with the next free number, which is another process's where both look at once."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _Samples(source)
        except FileExistsError:
            if time.monotonic() > deadline:
                raise
            time.sleep(TICK)


class _Samples(streaming.StreamingDataset):  # type: ignore[misc]
    """Its way to do more with a sample: a subclass with ``__getitem__``."""

    def __init__(self, source: Source) -> None:
        root, index = local_root(source.storage), ResolvedSpec.of(source.manifest).packing.index_key
        assert root is not None
        assert index is not None
        self.undo = Undo(source)
        try:
            with _environment(
                _ALONE
            ):  # with more ranks it would meet them through torch.distributed
                super().__init__(
                    local=str((root / index).parent),
                    batch_size=source.batch_size,
                    shuffle=source.reading.shuffle,
                    shuffle_seed=source.seed,
                )
        except BaseException:
            self.end()
            raise
        # Who shares the memory stays this rank alone; who shares the samples are all of them.
        self._parallel_rank_world = World(
            num_nodes=1, ranks_per_node=source.world, workers_per_rank=1, worker=source.rank
        )

    def __getitem__(self, at: Any) -> Any:
        started = time.monotonic_ns()
        row = super().__getitem__(at)
        return self.undo(row["content"], int(at), started, time.monotonic_ns() - started)

    def end(self) -> None:
        """End threads, and remove lock files and shared memory, which it leaves to ``atexit``: a rank or a worker never comes to that."""
        if hasattr(self, "_executor"):
            self._event.set()
            if hasattr(self, "_iterator"):
                self._iterator.non_blocking_exit()
            self._executor.shutdown()
        if not hasattr(self, "_shm_prefix_int"):
            return
        for place in ("_shared_barrier.filelock_path", "_cache_filelock_path"):
            with suppress(AttributeError, FileNotFoundError):
                os.unlink(attrgetter(place)(self))
        for name in (
            EPOCH_SHAPE,
            EPOCH_DATA,
        ):  # of a worker that was ended while it dealt out an epoch
            with suppress(FileNotFoundError):
                left = SharedMemory(f"{self._shm_prefix_int:06}_{name}")
                left.close()
                left.unlink()
        for place in _MEMORY:
            with suppress(AttributeError):
                memory = attrgetter(place)(self)
                atexit.unregister(memory.cleanup)  # by then the name may be another process's
                memory.cleanup()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
