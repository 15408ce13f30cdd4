"""Weights of a few MB, for tests of what loads them."""

from __future__ import annotations

from pathlib import Path

from iobench.serve.generate import generate_weights
from iobench.serve.models import find_served_model
from iobench.serve.weights import RankShare, Weights, ranges_to_read
from iobench.storage import open_storage

MODEL, LAYERS, VOCABULARY = "qwen3-0.6b", 1, 64


def small_weights(place: Path | str, *, shard_bytes: int = 10_000_000) -> int:
    """Generate a model of one layer there, in some shards; return the bytes of its tensors."""
    model = find_served_model(MODEL)
    made = generate_weights(
        model,
        open_storage(str(place)),
        layers=LAYERS,
        vocabulary=VOCABULARY,
        shard_bytes=shard_bytes,
    )
    return made.nbytes


def bytes_to_read(weights: Weights, share: RankShare, *, alignment: int = 1) -> int:
    """Bytes that a rank of such a share reads."""
    return sum(piece.nbytes for piece in ranges_to_read(weights, share, alignment=alignment))
