"""What each tensor-parallel rank reads and has: nothing is missing, nothing is read twice."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.serve.models import find_served_model, shards_of
from iobench.serve.weights import (
    ALONE,
    RankShare,
    StoredTensor,
    Weights,
    WeightShard,
    bytes_of,
    ranges_to_read,
    slice_of,
)
from tests.small_models import bytes_to_read

HEADER = 1000


def laid_out(name: str, layers: int) -> Weights:
    """A model as it would lie on a storage."""
    model = find_served_model(name)
    tensors, shards = [], []
    for number, shard in enumerate(shards_of(model.tensors(layers=layers), model.shard_bytes)):
        end, key = HEADER, f"{number}.safetensors"
        for each in shard:
            tensors.append(StoredTensor(each.name, key, end, each.nbytes, each.dtype, each.shape))
            end += each.nbytes
        shards.append(WeightShard(key, end))
    return Weights(tensors=tuple(tensors), shards=tuple(shards))


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_that_read_slices_share_rows_and_repeat_the_rest(ranks: int) -> None:
    """Llama: rows of q, k, v, gate, up and both embeddings are divided; o and down are read whole,
    and so are norms."""
    weights = laid_out("llama3-8b", 2)
    repeated = sum(
        tensor.nbytes
        for tensor in weights.tensors
        if any(part in tensor.name for part in ("o_proj", "down_proj", "norm"))
    )
    read = sum(bytes_to_read(weights, RankShare("sliced", rank, ranks)) for rank in range(ranks))
    assert read == weights.nbytes + (ranks - 1) * repeated


alignments = st.sampled_from([1, 512, 4096])


@st.composite
def any_weights(draw: st.DrawFn) -> Weights:
    tensors, shards = [], []
    kinds = ("q_proj.weight", "o_proj.weight", "norm.weight", "thing")
    for number in range(draw(st.integers(1, 3))):
        end, key = draw(st.integers(10, 5000)), f"{number}.safetensors"
        for each in range(draw(st.integers(0, 6))):
            shape = draw(st.tuples(st.integers(0, 40), st.integers(1, 40)))
            nbytes = 4 * shape[0] * shape[1]
            name = f"{number}.{each}.{draw(st.sampled_from(kinds))}"
            tensors.append(StoredTensor(name, key, end, nbytes, "F32", shape))
            end += nbytes
        shards.append(WeightShard(key, end))
    return Weights(tensors=tuple(tensors), shards=tuple(shards))


@given(any_weights(), st.integers(1, 5), alignments)
def test_ranks_that_exchange_read_each_byte_exactly_once(
    weights: Weights, ranks: int, alignment: int
) -> None:
    whole = ranges_to_read(weights, ALONE, alignment=alignment)
    parts = [
        each
        for rank in range(ranks)
        for each in ranges_to_read(weights, RankShare("exchange", rank, ranks), alignment=alignment)
    ]
    joined = list(parts[:1])
    for each in parts[1:]:
        if (each.shard, each.start) == (joined[-1].shard, joined[-1].end):
            joined[-1] = joined[-1]._replace(end=each.end)
        else:
            joined.append(each)
    assert joined == whole


@given(any_weights(), st.integers(1, 5), alignments)
def test_what_is_read_holds_what_a_rank_has(weights: Weights, ranks: int, alignment: int) -> None:
    sizes = {shard.key: shard.size for shard in weights.shards}
    for rank in range(ranks):
        share = RankShare("sliced", rank, ranks)
        ranges = ranges_to_read(weights, share, alignment=alignment)
        assert ranges == sorted(ranges)
        for shard, start, end in ranges:
            assert start % alignment == 0
            assert end % alignment == 0 or end == sizes[shard]
            assert start < end <= sizes[shard]
        for one, other in pairwise(ranges):
            assert one.shard != other.shard or one.end < other.start
        for tensor in weights.tensors:
            held = bytes_of(tensor, slice_of(tensor, share))
            assert not held.nbytes or any(
                each.shard == held.shard and each.start <= held.start and held.end <= each.end
                for each in ranges
            )
