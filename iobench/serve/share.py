"""What each of several tensor-parallel ranks reads of the weights, and what it then has.

A matrix whose rows are divided (Megatron-LM's column-parallel one) gives each rank one piece of the
file. Of one whose columns are divided (row-parallel) each rank needs a few KiB of every row, less
than a page and its neighbours. So a rank reads it whole, as loaders over memory maps do, and cuts
its columns out in memory. What has no known name is read by every rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from .weights import StoredTensor, Weights, tensors_by_shard

Sharing = Literal["all", "sliced", "exchange"]
"""``all``: each rank reads everything. ``sliced``: each its slices. ``exchange``: each reads its
part of the bytes, and the ranks of the host give one another the rest through shared memory."""

_ROWS = {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3", "q_b_proj", "kv_b_proj"}
_ROWS |= {"qkv_proj", "gate_up_proj", "embed_tokens", "lm_head", "head"}
_COLUMNS = {"o_proj", "down_proj", "w2"}
_VALUES = {"weight", "bias", "weight_scale_inv", "weight_scale"}


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
    if share.how != "sliced" or share.ranks == 1:
        return None
    layer, _, value = tensor.name.rpartition(".")
    layer = layer.rpartition(".")[2]
    axis = 0 if layer in _ROWS else 1 if layer in _COLUMNS else None
    if value not in _VALUES or axis is None or axis >= len(tensor.shape) or len(tensor.shape) > 2:
        return None
    count = tensor.shape[axis]
    if count < share.ranks:
        return None
    return TensorSlice(
        axis, count * share.rank // share.ranks, count * (share.rank + 1) // share.ranks
    )


def bytes_of(tensor: StoredTensor, part: TensorSlice | None) -> FileRange:
    """The bytes of the file that hold a part of a tensor."""
    if part is None or part.axis:
        return FileRange(tensor.shard, tensor.offset, tensor.offset + tensor.nbytes)
    row = tensor.nbytes // tensor.shape[0]
    return FileRange(
        tensor.shard, tensor.offset + part.start * row, tensor.offset + part.stop * row
    )


def ranges_to_read(weights: Weights, share: RankShare, *, alignment: int = 1) -> list[FileRange]:
    """The bytes that the rank reads, by shard and offset, rounded to ``alignment``.

    A range that reaches the end of its file ends there.
    """
    ranges = list(_merged(weights, share, alignment))
    if share.how != "exchange":
        return ranges
    total, place, own = sum(each.nbytes for each in ranges), 0, []
    low, high = (total * (share.rank + n) // share.ranks for n in (0, 1))
    for shard, start, end in ranges:
        # Cuts are rounded down within a range, whose start is rounded already, so that no two
        # ranks read one page.
        begin, stop = (
            start + (min(max(0, cut - place), end - start) // alignment * alignment)
            if cut < place + end - start
            else end
            for cut in (low, high)
        )
        if begin < stop:
            own.append(FileRange(shard, begin, stop))
        place += end - start
    return own


def _merged(weights: Weights, share: RankShare, alignment: int) -> Iterator[FileRange]:
    """What a rank needs, rounded; ranges that touch or overlap after that are one."""
    for shard, tensors in tensors_by_shard(weights):
        last: FileRange | None = None
        for tensor in tensors:
            _, start, end = bytes_of(tensor, slice_of(tensor, share))
            if start == end:
                continue
            start -= start % alignment
            end = min(end + -end % alignment, shard.size)
            if last is not None and start <= last.end:
                last = FileRange(shard.key, last.start, max(last.end, end))
                continue
            if last is not None:
                yield last
            last = FileRange(shard.key, start, end)
        if last is not None:
            yield last
