"""The parameters of models, from their dimensions, and what optimizers keep. Without torch.

Sources: Llama 3 (Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 3) with the head
counts of MLPerf Storage's checkpoint workloads, whose 70B has 128 heads where the paper's has 64,
and whose 1T is not a released model; ResNet-50 (He et al., 2015, as torchvision builds it);
ViT-B/16 (Dosovitskiy et al., 2020); BERT-large (Devlin et al., 2018, with the heads of
pre-training).

MLPerf Storage's table of checkpoint sizes says 105, 912, 5,290 and 18,000 GB. The first three are
the sizes of these dimensions, in GiB. The last is not: the 1T's dimensions give 1,183 billion
parameters, and at 14 bytes each 15,427 GiB (16.6 TB). iobench follows the dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..base.errors import UnknownNameError

MIN_LAYERS = 2
"""Layers that a scaled model keeps, so that it has a first and a last one. A model with pipeline
parallelism keeps one for each stage."""

_NEAR = 0.95
"""Fraction of the wanted bytes: if whole layers give at least this, the widths stay as they are."""


class Parameter(NamedTuple):
    """One tensor that is trained.

    ``layer``: its block (-1: before the first, the embedding; None: after the last). ``cut``: the
    dimension that tensor parallelism divides (Megatron-LM: columns of the first matrix, rows of
    the second); None: each rank has the whole tensor.
    """

    name: str
    shape: tuple[int, ...]
    layer: int | None
    cut: int | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """The ranks of a training, tensor x pipeline x data, and the ZeRO stage.

    Data ranks share the optimizer's state from ZeRO stage 1 on, and the parameters in stage 3
    (Rajbhandari et al., 2019).
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero: int = 0

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data


Dimensions = Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class StateModel:
    """A model: ``build`` yields the parameters of ``dimensions``.

    ``width``: the dimensions that scaling shrinks together.
    """

    name: str
    summary: str
    dimensions: Dimensions
    build: Callable[..., Iterator[Parameter]]
    width: tuple[str, ...]
    step: int = 16  # scaled dimensions are multiples of this
    dtype: str = "bfloat16"  # of the parameters
    optimizer: tuple[str, ...] = ("master", "exp_avg", "exp_avg_sq")
    """float32 tensors for each parameter; the default: Adam in mixed precision."""
    layout: Parallelism = Parallelism()  # as published

    def parameters(self) -> list[Parameter]:
        return list(self.build(**self.dimensions))

    @cached_property
    def parameter_count(self) -> int:
        return sum(parameter.elements for parameter in self.parameters())

    @property
    def parameter_bytes(self) -> int:
        return SIZES[self.dtype] * self.parameter_count

    @property
    def state_bytes(self) -> int:
        """Bytes of the parameters and the optimizer's state, without replicas."""
        return self.parameter_bytes + 4 * len(self.optimizer) * self.parameter_count

    def weights(self) -> StateModel:
        """The same model without the optimizer's state: what an evaluation or a server loads."""
        return replace(self, optimizer=())

    def resized(self, layers: int | None, width: float) -> StateModel:
        """The same structure with ``layers`` layers, and its widths multiplied by ``width``."""
        step = self.step
        sizes = dict(self.dimensions)
        if width < 1:
            sizes |= {key: max(step, round(sizes[key] * width / step) * step) for key in self.width}
        if layers is not None:
            sizes["layers"] = layers
        return replace(self, dimensions=sizes)


SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes per element."""


def scale(model: StateModel, share: float) -> tuple[StateModel, dict[str, Any]]:
    """The model with about ``share`` of the bytes, and the changes: fewer layers, then less width.

    Layers are removed until the bytes are at most 5 % below the wanted size. If no number of layers
    gives that, the next larger number stays, and the widths shrink. The result is larger than
    wanted only if every dimension has reached its step.
    """
    if share >= 1:
        return model, {}
    target = model.state_bytes * share
    layers = model.dimensions.get("layers")
    small = model
    if layers is not None:
        lowest = min(max(MIN_LAYERS, model.layout.pipeline), layers)
        least = model.resized(lowest, 1.0).state_bytes
        each = model.resized(lowest + 1, 1.0).state_bytes - least
        fitting = min(layers, lowest + max(0, math.floor((target - least) / each)))
        small = model.resized(fitting, 1.0)
        if fitting < layers and small.state_bytes < _NEAR * target:
            small = model.resized(fitting + 1, 1.0)
    if small.state_bytes > target:
        low, high, kept = 0.0, 1.0, small.dimensions.get("layers")
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high)
                if model.resized(kept, middle).state_bytes <= target
                else (low, middle)
            )
        small = model.resized(kept, high if low == 0 else low)
    changed = {
        key: [value, small.dimensions[key]]
        for key, value in model.dimensions.items()
        if small.dimensions[key] != value
    }
    return small, {"share": small.state_bytes / model.state_bytes, "changed": changed}


def _llama(
    *, layers: int, hidden: int, ffn: int, heads: int, kv_heads: int, vocabulary: int
) -> Iterator[Parameter]:
    # A head's size is rounded down if it does not divide evenly, as in DLIO (1T, scaled models).
    kv = max(1, hidden // heads) * kv_heads
    yield Parameter("embed_tokens.weight", (vocabulary, hidden), -1, 0)
    for layer in range(layers):
        at = f"layers.{layer}"
        yield Parameter(f"{at}.self_attn.q_proj.weight", (hidden, hidden), layer, 0)
        yield Parameter(f"{at}.self_attn.k_proj.weight", (kv, hidden), layer, 0)
        yield Parameter(f"{at}.self_attn.v_proj.weight", (kv, hidden), layer, 0)
        yield Parameter(f"{at}.self_attn.o_proj.weight", (hidden, hidden), layer, 1)
        yield Parameter(f"{at}.mlp.gate_proj.weight", (ffn, hidden), layer, 0)
        yield Parameter(f"{at}.mlp.up_proj.weight", (ffn, hidden), layer, 0)
        yield Parameter(f"{at}.mlp.down_proj.weight", (hidden, ffn), layer, 1)
        yield Parameter(f"{at}.input_layernorm.weight", (hidden,), layer)
        yield Parameter(f"{at}.post_attention_layernorm.weight", (hidden,), layer)
    yield Parameter("norm.weight", (hidden,), None)
    yield Parameter("lm_head.weight", (vocabulary, hidden), None, 0)


def _linear(
    name: str, rows: int, columns: int, layer: int | None, cut: int | None = None
) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (rows, columns), layer, cut)
    yield Parameter(f"{name}.bias", (rows,), layer, 0 if cut == 0 else None)


def _norm(name: str, size: int, layer: int | None) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (size,), layer)
    yield Parameter(f"{name}.bias", (size,), layer)


def _encoder(layers: int, hidden: int, ffn: int) -> Iterator[Parameter]:
    for layer in range(layers):
        at = f"layers.{layer}"
        for part in ("query", "key", "value"):
            yield from _linear(f"{at}.attention.{part}", hidden, hidden, layer, 0)
        yield from _linear(f"{at}.attention.output", hidden, hidden, layer, 1)
        yield from _norm(f"{at}.attention.norm", hidden, layer)
        yield from _linear(f"{at}.ffn.up", ffn, hidden, layer, 0)
        yield from _linear(f"{at}.ffn.down", hidden, ffn, layer, 1)
        yield from _norm(f"{at}.ffn.norm", hidden, layer)


def _bert(
    *, layers: int, hidden: int, ffn: int, vocabulary: int, positions: int
) -> Iterator[Parameter]:
    yield Parameter("embeddings.word.weight", (vocabulary, hidden), -1, 0)
    yield Parameter("embeddings.position.weight", (positions, hidden), -1)
    yield Parameter("embeddings.type.weight", (2, hidden), -1)
    yield from _norm("embeddings.norm", hidden, -1)
    yield from _encoder(layers, hidden, ffn)
    yield from _linear("pooler", hidden, hidden, None)
    yield from _linear("heads.transform", hidden, hidden, None)
    yield from _norm("heads.norm", hidden, None)
    yield Parameter("heads.bias", (vocabulary,), None)  # its matrix is the embedding's
    yield from _linear("heads.next_sentence", 2, hidden, None)


def _vit(
    *, layers: int, hidden: int, ffn: int, patch: int, positions: int, classes: int
) -> Iterator[Parameter]:
    yield Parameter("patch.weight", (hidden, 3, patch, patch), -1)
    yield Parameter("patch.bias", (hidden,), -1)
    yield Parameter("class_token", (1, 1, hidden), -1)
    yield Parameter("position", (1, positions, hidden), -1)
    yield from _encoder(layers, hidden, ffn)
    yield from _norm("norm", hidden, None)
    yield from _linear("head", classes, hidden, None)


def _resnet(*, width: int, classes: int) -> Iterator[Parameter]:
    def unit(name: str, out: int, inner: int, kernel: int, layer: int) -> Iterator[Parameter]:
        yield Parameter(f"{name}.conv.weight", (out, inner, kernel, kernel), layer)
        yield from _norm(f"{name}.bn", out, layer)
        # Batch statistics are saved too, but no optimizer changes them; they are left out here
        # (0.2 % of the bytes).

    yield from unit("stem", width, 3, 7, -1)
    inner, layer = width, 0
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = width << stage
        for block in range(blocks):
            at = f"stage{stage + 1}.{block}"
            yield from unit(f"{at}.reduce", planes, inner, 1, layer)
            yield from unit(f"{at}.spatial", planes, planes, 3, layer)
            yield from unit(f"{at}.expand", 4 * planes, planes, 1, layer)
            if block == 0:
                yield from unit(f"{at}.shortcut", 4 * planes, inner, 1, layer)
            inner, layer = 4 * planes, layer + 1
    yield from _linear("fc", classes, inner, None)


def _llama_model(name: str, summary: str, layout: Parallelism, *dimensions: int) -> StateModel:
    keys = ("layers", "hidden", "ffn", "heads", "kv_heads")
    sizes = {**dict(zip(keys, dimensions, strict=True)), "vocabulary": 128_256}
    return StateModel(
        name=name,
        summary=summary,
        dimensions=sizes,
        build=_llama,
        width=("hidden", "ffn", "vocabulary"),
        layout=layout,
    )


MODELS = {
    model.name: model
    for model in (
        _llama_model(
            "llama3-8b",
            "Llama 3 8B, as MLPerf Storage saves it: 8 ranks, ZeRO 3",
            Parallelism(data=8, zero=3),
            *(32, 4096, 14336, 32, 8),
        ),
        _llama_model(
            "llama3-70b",
            "Llama 3 70B, as MLPerf Storage saves it: 64 ranks, ZeRO 3",
            Parallelism(tensor=8, data=8, zero=3),
            *(80, 8192, 28672, 128, 8),
        ),
        _llama_model(
            "llama3-405b",
            "Llama 3 405B, as MLPerf Storage saves it: 512 ranks, ZeRO 1",
            Parallelism(tensor=8, pipeline=32, data=2, zero=1),
            *(126, 16384, 53248, 128, 8),
        ),
        _llama_model(
            "llama3-1t",
            "MLPerf Storage's 1T: 1024 ranks, ZeRO 1; 16.6 TB by its dimensions (the rules' table "
            "says 18)",
            Parallelism(tensor=8, pipeline=64, data=2, zero=1),
            *(128, 25872, 98304, 192, 32),
        ),
        StateModel(
            name="bert-large",
            summary="BERT-large, float32 with Adam",
            dimensions={
                "layers": 24,
                "hidden": 1024,
                "ffn": 4096,
                "vocabulary": 30_522,
                "positions": 512,
            },
            build=_bert,
            width=("hidden", "ffn", "vocabulary"),
            dtype="float32",
            optimizer=("exp_avg", "exp_avg_sq"),
        ),
        StateModel(
            name="vit-b16",
            summary="ViT-B/16, float32 with Adam",
            dimensions={
                "layers": 12,
                "hidden": 768,
                "ffn": 3072,
                "patch": 16,
                "positions": 197,
                "classes": 1000,
            },
            build=_vit,
            width=("hidden", "ffn"),
            dtype="float32",
            optimizer=("exp_avg", "exp_avg_sq"),
        ),
        StateModel(
            name="resnet50",
            summary="ResNet-50, float32 with momentum",
            dimensions={"width": 64, "classes": 1000},
            build=_resnet,
            width=("width",),
            step=2,
            dtype="float32",
            optimizer=("momentum",),
        ),
    )
}


def find_model(name: str) -> StateModel:
    """The model with that name. Raises UnknownNameError with similar names."""
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS, remedy="see: iobench list models")
    return MODELS[name]
