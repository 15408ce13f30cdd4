"""A rank's state as real tensors.

The content is unique and can't be compressed. The memory is page-aligned, as pinned host memory is,
and on huge pages where possible.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import buffers, payload
from .base import State
from .sharding import Share, TensorSpec

_ALIGN = 4096


def build_state(share: Share, *, seed: int, rank: int) -> State:
    """A state of random content: {"model": {name: tensor}, "optimizer": {name: tensor}, "step": 0}.

    The content depends only on ``seed`` and ``rank``. It takes the share's bytes of memory, and up
    to 4 KiB more for each tensor.
    """
    specs = (*share.model, *share.optimizer)
    memory = buffers.private(sum(_room(spec) for spec in specs) or 1, prefault=False).array
    tensors: list[torch.Tensor] = []
    start = 0
    for number, spec in enumerate(specs):
        piece = memory[start : start + spec.nbytes]
        if spec.nbytes:
            payload.fill(piece.data, seed=seed, index=(rank << 20) + number)
        tensors.append(_tensor(piece, spec))
        start += _room(spec)
    return {
        "model": _named(share.model, tensors),
        "optimizer": _named(share.optimizer, tensors[len(share.model) :]),
        "step": 0,
    }


def _room(spec: TensorSpec) -> int:
    return -(-spec.nbytes // _ALIGN) * _ALIGN


def _tensor(piece: object, spec: TensorSpec) -> torch.Tensor:
    dtype = getattr(torch, spec.dtype)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=dtype)
    return torch.from_numpy(piece).view(dtype).view(spec.shape)


def _named(specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    return dict(zip((spec.name for spec in specs), tensors, strict=False))
