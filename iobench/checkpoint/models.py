"""What a model's state is made of: its parameters, from its dimensions, and what its optimizer keeps beside each of them. No torch here.

Sources: Llama 3 (Grattafiori et al., "The Llama 3 Herd of Models", 2024, table 3) with the head counts of MLPerf Storage's checkpoint
workloads, whose 70B has 128 heads where the paper's has 64, and whose 1T is not a released model; ResNet-50 (He et al., 2015, as
torchvision builds it); ViT-B/16 (Dosovitskiy et al., 2020); BERT-large (Devlin et al., 2018, with the heads of pre-training).

MLPerf Storage's table of checkpoint sizes says 105, 912, 5,290 and 18,000 GB. The first three are what these dimensions make, in GiB. The
last is not: the 1T's dimensions make 1,183 billion parameters, and at 14 bytes each 15,427 GiB (16.6 TB). The dimensions are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import UnknownNameError

LEAST_LAYERS = 2
"""Layers that a scaled model keeps: fewer would have no 'between'. A pipeline keeps one for each of its stages."""

_NEAR = 0.95
"""Of the bytes asked for: where whole layers come as near as this from below, widths stay as they are."""


class Parameter(NamedTuple):
    """One tensor that is trained.

    ``layer``: the block that it belongs to (-1: before the first, the embedding; None: after the last). ``cut``: the dimension that
    tensor parallelism divides (Megatron-LM: columns of the first matrix, rows of the second), None where each rank has all of it.
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
    """Ranks of a training, tensor x pipeline x data, and the ZeRO stage (Rajbhandari et al., 2019).

    From stage 1 on data ranks share the optimizer's state, at 3 the parameters, too.
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
class Model:
    """``dimensions`` go to ``build``, which yields the parameters. ``width``: the dimensions that scaling shrinks together."""

    name: str
    summary: str
    dimensions: Dimensions
    build: Callable[..., Iterator[Parameter]]
    width: tuple[str, ...]
    step: int = 16  # scaled widths are multiples of this
    dtype: str = "bfloat16"  # of the parameters
    optimizer: tuple[str, ...] = (
        "master",
        "exp_avg",
        "exp_avg_sq",
    )  # float32 tensors beside each parameter: Adam in mixed precision
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
        """Parameters and optimizer, once."""
        return self.parameter_bytes + 4 * len(self.optimizer) * self.parameter_count

    def resized(self, layers: int | None, width: float) -> Model:
        """The same structure with so many layers, and its widths times ``width``."""
        step = self.step
        sizes = dict(self.dimensions)
        if width < 1:
            sizes |= {key: max(step, round(sizes[key] * width / step) * step) for key in self.width}
        if layers is not None:
            sizes["layers"] = layers
        return replace(self, dimensions=sizes)


SIZES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of an element."""


def scale(model: Model, share: float) -> tuple[Model, dict[str, Any]]:
    """The model with about ``share`` of the bytes, and what was done: fewer layers first, then smaller dimensions.

    As many layers go as leave the bytes within 5 % below what was asked for; where no number of them does, the next larger one stays, and
    widths make up for it. More bytes than asked for are left only where every dimension is down at its step.
    """
    if share >= 1:
        return model, {}
    target = model.state_bytes * share
    layers = model.dimensions.get("layers")
    small = model
    if layers is not None:
        lowest = min(max(LEAST_LAYERS, model.layout.pipeline), layers)
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
    kv = (
        max(1, hidden // heads) * kv_heads
    )  # a head's size is rounded down where it does not divide, as DLIO has it (the 1T, scaled ones)
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
    yield Parameter("heads.bias", (vocabulary,), None)  # the matrix is the embedding's
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
        # Batch statistics are saved with the parameters, but no optimizer touches them: they are left out, 0.2 % of the bytes.

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


def _llama_model(name: str, summary: str, layout: Parallelism, *dimensions: int) -> Model:
    keys = ("layers", "hidden", "ffn", "heads", "kv_heads")
    sizes = {**dict(zip(keys, dimensions, strict=True)), "vocabulary": 128_256}
    return Model(
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
            32,
            4096,
            14336,
            32,
            8,
        ),
        _llama_model(
            "llama3-70b",
            "Llama 3 70B, as MLPerf Storage saves it: 64 ranks, ZeRO 3",
            Parallelism(tensor=8, data=8, zero=3),
            80,
            8192,
            28672,
            128,
            8,
        ),
        _llama_model(
            "llama3-405b",
            "Llama 3 405B, as MLPerf Storage saves it: 512 ranks, ZeRO 1",
            Parallelism(tensor=8, pipeline=32, data=2, zero=1),
            *(126, 16384, 53248, 128, 8),
        ),
        _llama_model(
            "llama3-1t",
            "MLPerf Storage's 1T: 1024 ranks, ZeRO 1; 16.6 TB by its dimensions, where the rules' table says 18",
            Parallelism(tensor=8, pipeline=64, data=2, zero=1),
            *(128, 25872, 98304, 192, 32),
        ),
        Model(
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
        Model(
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
        Model(
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


def find_model(name: str) -> Model:
    """Raises UnknownNameError with the nearest names."""
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS, remedy="see: iobench list models")
    return MODELS[name]
