"""Which rank holds what: parameters and optimizer of a model cut by tensor, pipeline and data parallelism. No torch here.

The bytes are those of MLPerf Storage's checkpoint workloads (mlcommons/storage, checkpointing; DLIO's base_checkpointing.py):

- ZeRO 3: every rank holds an equal part of each parameter of its pipeline stage, and of the optimizer's state.
- ZeRO 1 and 2: data rank 0 saves the parameters; the optimizer's state is divided evenly over all ranks, whatever stage they are in.
- ZeRO 0: data rank 0 saves everything, the others nothing.

A part of a tensor that no dimension follows (ZeRO) is flat, as DeepSpeed and FSDP keep it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError
from .models import SIZES, Model, Parallelism, Parameter


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


def layout(model: Model, ranks: int | None, asked: dict[str, int] | None = None) -> Parallelism:
    """How ``ranks`` share the model: as asked for, else as published where the number is the published one, else ZeRO 3 over data ranks.

    Raises UsageError where the numbers contradict one another.
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
            raise UsageError("parallelism: tensor, pipeline and data are 1 or more, zero is 0 to 3")
        if ranks is not None and chosen.ranks != ranks:
            raise UsageError(
                f"tensor {chosen.tensor} x pipeline {chosen.pipeline} x data {chosen.data} are {chosen.ranks} ranks, not {ranks}",
                remedy="make them agree",
            )
        return chosen
    if ranks is None or ranks == model.layout.ranks:
        return model.layout
    return Parallelism(data=ranks, zero=3 if ranks > 1 else 0)


def shares(model: Model, parallelism: Parallelism) -> list[Share]:
    """Each rank's share; rank = (data x pipeline stages + stage) x tensor ranks + tensor rank.

    Raises UsageError for more stages than layers.
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


def _parameters(
    model: Model, pieces: Sequence[Parameter], parallelism: Parallelism, data: int
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
    model: Model, pieces: Sequence[Parameter], parallelism: Parallelism, data: int, rank: int
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
    """``count`` elements over ``ranks``: the first ones hold one more where it does not divide."""
    return count // ranks + (rank < count % ranks)


def _piece(parameter: Parameter, rank: int, ranks: int) -> Parameter:
    """What a tensor-parallel rank has of a parameter; of one that is not cut, rank 0 saves it."""
    if ranks == 1:
        return parameter
    if parameter.cut is None:
        return parameter if rank == 0 else parameter._replace(shape=(0,))
    shape = list(parameter.shape)
    shape[parameter.cut] = _part(shape[parameter.cut], rank, ranks)
    return parameter._replace(shape=tuple(shape))


def _stages(parameters: Sequence[Parameter], count: int) -> list[list[Parameter]]:
    """Layers in order over the stages, the first ones with one more; the embedding in the first, what follows the layers in the last."""
    layers = 1 + max(
        (parameter.layer for parameter in parameters if parameter.layer is not None), default=-1
    )
    if count > max(layers, 1):
        raise UsageError(
            f"{count} pipeline stages for {layers} layers",
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
