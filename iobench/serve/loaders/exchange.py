"""Where the ranks of one host give one another what each has read: shared memory and a barrier."""

from __future__ import annotations

import multiprocessing
import os
import threading

from ...base import buffers
from ...base.errors import LostRankError
from ..share import FileRange
from ..weights import Weights, require_memory

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
