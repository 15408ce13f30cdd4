"""The protocol of a model loader: it turns the weights on a storage into tensors in memory."""

from __future__ import annotations

import multiprocessing
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from ...base import buffers
from ...base.errors import LostRankError
from ...storage.base import Storage
from ..weights import ALONE, FileRange, RankShare, Weights, require_memory

if TYPE_CHECKING:
    import torch


_WAIT_S = 600.0
"""How long a rank waits for the slowest one; whoever started the ranks sees a dead one sooner."""


class Exchange:
    """Made once, before the ranks are forked.

    ``memory``: all shards one after the other, each at a multiple of 4096 bytes.
    """

    def __init__(self, weights: Weights, ranks: int) -> None:
        """Take the memory for all shards. Raises NoRoomError."""
        self.starts, end = {}, 0
        for shard in weights.shards:
            self.starts[shard.key] = end
            end += shard.size + -shard.size % 4096
        require_memory(end, "the weights that ranks exchange")
        self._region = buffers.shared(max(end, 4096))
        self.memory: buffers.Buffer = self._region.array.data
        self._barrier = multiprocessing.get_context("fork").Barrier(ranks)

    def at(self, piece: FileRange) -> int:
        """Where in the memory these bytes belong."""
        return self.starts[piece.shard] + piece.start

    def wait(self) -> None:
        """Return when all ranks have come here. Raises LostRankError."""
        try:
            self._barrier.wait(_WAIT_S)
        except threading.BrokenBarrierError:
            raise LostRankError("another rank has failed, or does not come") from None

    def abort(self) -> None:
        """Let no rank wait any longer: this one has failed."""
        self._barrier.abort()

    def close(self) -> None:
        """Give up this process's descriptor of the memory, which its maps keep."""
        os.close(self._region.fd)


Stage = Literal["storage", "assembly", "device"]

SIZE_CLASSES = {"below 64 KiB": 1 << 16, "below 1 MiB": 1 << 20, "below 32 MiB": 32 << 20}
"""Classes of tensors by their bytes, and the bytes at which each ends; the last is LARGEST."""

LARGEST = "32 MiB and more"


def size_class(nbytes: int) -> str:
    return next((name for name, end in SIZE_CLASSES.items() if nbytes < end), LARGEST)


class TensorTimes(NamedTuple):
    """How many tensors are of one class of sizes, their bytes, and the seconds for all of them."""

    tensors: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One load by one rank. Seconds since ``load`` was called.

    ``tensors`` are valid until the next ``load`` or ``close``, and must be dropped before either.
    What a loader can't tell is None.
    """

    tensors: dict[str, torch.Tensor]
    load_s: float  # until all tensors were there, also on the device
    first_s: float  # until the first one was
    fetch_s: float | None
    """Until the last byte was in memory. None: tensors and bytes come together."""
    assembly: dict[str, TensorTimes]
    """By class of size. With ``fetch_s`` None the seconds have the reads in them."""
    bytes_read: int | None  # asked of the storage by iobench; None: a library reads by itself
    cpu_s: float  # CPU time of this process meanwhile
    started_s: float  # CLOCK_MONOTONIC at the call


class ModelLoader(Protocol):
    """The loader of one rank, made and used in the process that has the tensors.

    The parameters of its ``__init__`` are its options; their values may come as text.
    """

    name: str
    local_only: bool  # it needs files of this host
    sharing: frozenset[str]  # the values of ``RankShare.how`` that it can do
    can_leave_out: frozenset[Stage]
    buffered: bool  # it reads local files through the page cache

    @property
    def version(self) -> str:
        """The library that reads, and its version; '' if iobench does."""

    def prepare(
        self,
        storage: Storage,
        weights: Weights,
        share: RankShare = ALONE,
        *,
        device: str = "cpu",
        exchange: Exchange | None = None,
    ) -> None:
        """Take all memory, before any clock starts. No byte of a tensor is read.

        ``storage``: for ``direct`` opened with O_DIRECT where it has that. ``exchange``: where the
        ranks of ``exchange`` meet, made before they were forked. Raises UsageError for what the
        loader can't do, NoRoomError, NoMemoryError, StorageError.
        """

    def load(self, *, leave_out: Stage | None = None) -> Loaded:
        """Load everything, as often as it is called.

        ``leave_out`` an ablation: ``storage``: the bytes of the load before are there already;
        ``assembly``: bytes only, no tensors; ``device``: tensors in host memory. Raises
        StorageError, DatasetError.
        """

    def close(self) -> None:
        """Give up memory, threads and files."""
