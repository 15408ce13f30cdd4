"""What each of several tensor-parallel ranks reads of the weights, and what it then has."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .weights import StoredTensor, Weights

Sharing = Literal["all", "sliced", "exchange"]
"""``all``: each rank reads everything. ``sliced``: each its slices. ``exchange``: each reads its
part of the bytes, and the ranks of the host give one another the rest through shared memory."""


class RankShare(NamedTuple):
    how: Sharing = "all"
    rank: int = 0
    ranks: int = 1


ALONE = RankShare()


class TensorSlice(NamedTuple):
    """The part of a tensor that a rank has: of dimension ``axis`` the indices [start, stop)."""

    axis: int
    start: int
    stop: int


class FileRange(NamedTuple):
    """Bytes [start, end) of a shard."""

    shard: str
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def slice_of(tensor: StoredTensor, share: RankShare) -> TensorSlice | None:
    """The part of a tensor that the rank has; None: the whole tensor."""
    raise NotImplementedError


def ranges_to_read(weights: Weights, share: RankShare, *, alignment: int = 1) -> list[FileRange]:
    """The bytes that the rank reads, by shard and offset, rounded to ``alignment``.

    A range that reaches the end of its file ends there.
    """
    raise NotImplementedError


def bytes_to_read(weights: Weights, share: RankShare, *, alignment: int = 1) -> int:
    return sum(piece.nbytes for piece in ranges_to_read(weights, share, alignment=alignment))
