"""Which rank saves what: a model divided by tensor, pipeline and data parallelism. Without torch.

The bytes are those of MLPerf Storage's checkpoint workloads (mlcommons/storage, checkpointing;
DLIO's base_checkpointing.py):

- ZeRO 3: every rank saves an equal part of each parameter of its pipeline stage, and of the
  optimizer's state.
- ZeRO 1 and 2: data rank 0 saves the parameters. The optimizer's state is divided evenly over all
  ranks, in whatever stage they are.
- ZeRO 0: data rank 0 saves everything, the other data ranks nothing.

A part that ZeRO cuts out of a tensor is one-dimensional, as DeepSpeed and FSDP keep it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ..base.errors import UsageError
from .models import SIZES, Parallelism, Parameter, StateModel


class TensorSpec(NamedTuple):
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * SIZES[self.dtype]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank saves."""

    model: tuple[TensorSpec, ...]
    optimizer: tuple[TensorSpec, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (*self.model, *self.optimizer))

    @property
    def tensors(self) -> int:
        return len(self.model) + len(self.optimizer)


def layout(
    model: StateModel, ranks: int | None, asked: dict[str, int] | None = None
) -> Parallelism:
    """How ``ranks`` divide the model.

    As ``asked`` if given; otherwise as published if ``ranks`` is None or the published number, else
    ZeRO 3 over data ranks. Raises UsageError for numbers that contradict each other.
    """
    if asked:
        unknown = sorted(set(asked) - set(Parallelism.__dataclass_fields__))
        if unknown:
            raise UsageError(
                f"parallelism has no '{unknown[0]}'",
                remedy=f"known: {', '.join(Parallelism.__dataclass_fields__)}",
            )
        chosen = Parallelism(**asked)
        if min(chosen.tensor, chosen.pipeline, chosen.data) < 1 or not 0 <= chosen.zero <= 3:
            raise UsageError(
                "parallelism: tensor, pipeline and data must be at least 1, zero must be 0 to 3"
            )
        if ranks is not None and chosen.ranks != ranks:
            raise UsageError(
                f"tensor {chosen.tensor} x pipeline {chosen.pipeline} x data {chosen.data} are "
                f"{chosen.ranks} ranks, not {ranks}",
                remedy="change one of them, so that the product is the number of ranks",
            )
        return chosen
    if ranks is None or ranks == model.layout.ranks:
        return model.layout
    return Parallelism(data=ranks, zero=3 if ranks > 1 else 0)


def shares(model: StateModel, parallelism: Parallelism) -> list[Share]:
    """Each rank's share, by rank.

    rank = (data rank x pipeline stages + stage) x tensor ranks + tensor rank. Raises UsageError for
    more stages than layers.
    """
    parameters = model.parameters()
    stages = _stages(parameters, parallelism.pipeline)
    found: list[Share] = []
    for data in range(parallelism.data):
        for stage in range(parallelism.pipeline):
            for tensor in range(parallelism.tensor):
                pieces = [
                    _piece(parameter, tensor, parallelism.tensor) for parameter in stages[stage]
                ]
                rank = len(found)
                found.append(
                    Share(
                        tuple(_parameters(model, pieces, parallelism, data)),
                        tuple(_optimizer(model, pieces, parallelism, data, rank)),
                    )
                )
    return found


def changing(share: Share, part: Fraction, *, seed: int) -> Share:
    """The tensors of a rank that change from save to save, with at most ``part`` of its bytes.

    Whole tensors are drawn, each that still fits; the smallest one alone if none does.
    """
    drawn = [tensor for tensor in (*share.model, *share.optimizer) if tensor.nbytes]
    random.Random(seed).shuffle(drawn)
    room, chosen = share.nbytes * part, set[TensorSpec]()
    for tensor in drawn:
        if tensor.nbytes <= room:
            room -= tensor.nbytes
            chosen.add(tensor)
    if not chosen:
        chosen.update(sorted(drawn, key=lambda tensor: tensor.nbytes)[:1])
    return Share(
        tuple(tensor for tensor in share.model if tensor in chosen),
        tuple(tensor for tensor in share.optimizer if tensor in chosen),
    )


def _parameters(
    model: StateModel, pieces: Sequence[Parameter], parallelism: Parallelism, data: int
) -> Iterator[TensorSpec]:
    if parallelism.zero == 3 and parallelism.data > 1:
        for piece in pieces:
            yield TensorSpec(
                piece.name, (_part(piece.elements, data, parallelism.data),), model.dtype
            )
    elif data == 0:
        for piece in pieces:
            yield TensorSpec(piece.name, piece.shape, model.dtype)


def _optimizer(
    model: StateModel, pieces: Sequence[Parameter], parallelism: Parallelism, data: int, rank: int
) -> Iterator[TensorSpec]:
    if parallelism.zero == 0 or parallelism.ranks == 1:
        if data == 0:
            for kind in model.optimizer:
                for piece in pieces:
                    yield TensorSpec(f"{piece.name}.{kind}", piece.shape, "float32")
        return
    # DeepSpeed keeps one flat tensor of each kind.
    for kind in model.optimizer:
        yield TensorSpec(kind, (_part(model.parameter_count, rank, parallelism.ranks),), "float32")


def _part(count: int, rank: int, ranks: int) -> int:
    """One rank's part of ``count`` elements; the first ranks have one more if it is not even."""
    return count // ranks + (rank < count % ranks)


def _piece(parameter: Parameter, rank: int, ranks: int) -> Parameter:
    """A tensor-parallel rank's part of a parameter; rank 0 saves a parameter that is not cut."""
    if ranks == 1:
        return parameter
    if parameter.cut is None:
        return parameter if rank == 0 else parameter._replace(shape=(0,))
    shape = list(parameter.shape)
    shape[parameter.cut] = _part(shape[parameter.cut], rank, ranks)
    return parameter._replace(shape=tuple(shape))


def _stages(parameters: Sequence[Parameter], count: int) -> list[list[Parameter]]:
    """The parameters of each stage.

    The layers are divided in order, the first stages have one more. The embedding is in the first
    stage, what follows the layers in the last.
    """
    layers = 1 + max(
        (parameter.layer for parameter in parameters if parameter.layer is not None), default=-1
    )
    if count > max(layers, 1):
        raise UsageError(
            f"{count} pipeline stages are more than the {layers} layers",
            remedy="use fewer stages, or a larger --scale",
        )
    ends = [sum(_part(layers, stage, count) for stage in range(last + 1)) for last in range(count)]
    stages: list[list[Parameter]] = [[] for _ in range(count)]
    for parameter in parameters:
        if parameter.layer is None:
            stages[-1].append(parameter)
        else:
            stages[next(stage for stage, end in enumerate(ends) if parameter.layer < end)].append(
                parameter
            )
    return stages
