"""Where the ranks of one host give one another what each has read: shared memory and a barrier."""

from __future__ import annotations

from ..weights import Weights


class Exchange:
    """Made once, before the ranks are forked."""

    def __init__(self, weights: Weights, ranks: int) -> None:
        """Take the memory for all shards. Raises NoMemoryError."""
        raise NotImplementedError

    def close(self) -> None:
        """Give up this process's map of the memory."""
        raise NotImplementedError
