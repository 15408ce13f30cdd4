"""Released models: the name, type and shape of each tensor of their weights. Without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import UnknownNameError

SHARD_BYTES = 5_000_000_000
"""The largest shard of a released model, in bytes of tensors, as the hub cuts them."""


class ModelTensor(NamedTuple):
    name: str
    dtype: str  # of the format: BF16, F8_E4M3, F32
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """``build`` yields the tensors for a number of layers and a vocabulary."""

    name: str
    summary: str
    layers: int
    vocabulary: int
    build: Callable[[int, int], Iterator[ModelTensor]]

    def tensors(
        self, *, layers: int | None = None, vocabulary: int | None = None
    ) -> list[ModelTensor]:
        """All tensors, of fewer layers or a smaller vocabulary where that is asked for.

        Tensors keep their sizes otherwise: small tensors would cost other things than large ones.
        Raises UsageError for more layers, or a larger vocabulary, than the model has, or none.
        """
        raise NotImplementedError


SERVED_MODELS: dict[str, ServedModel] = {}


def find_served_model(name: str) -> ServedModel:
    """The model of that name; ``llama3-8b-weights`` is ``llama3-8b``. Raises UnknownNameError."""
    short = name.removesuffix("-weights")
    if short not in SERVED_MODELS:
        raise UnknownNameError("model", short, SERVED_MODELS)
    return SERVED_MODELS[short]
