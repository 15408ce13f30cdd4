"""Released models: the name, type and shape of each tensor of their weights. Without torch.

Sources: the ``config.json`` of each model at the hub, and the names in its index. DeepSeek-V3's
last layer, which predicts a second token, is part of the whole model only: a model of fewer layers
ends with a usual one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..base.errors import UnknownNameError, UsageError

DTYPES = {
    "BOOL": (1, "bool"),
    "U8": (1, "uint8"),
    "I8": (1, "int8"),
    "F8_E4M3": (1, "float8_e4m3fn"),
    "F8_E5M2": (1, "float8_e5m2"),
    "U16": (2, "uint16"),
    "I16": (2, "int16"),
    "F16": (2, "float16"),
    "BF16": (2, "bfloat16"),
    "U32": (4, "uint32"),
    "I32": (4, "int32"),
    "F32": (4, "float32"),
    "U64": (8, "uint64"),
    "I64": (8, "int64"),
    "F64": (8, "float64"),
    "C64": (8, "complex64"),
}
"""The format's types that torch has, too: the bytes of an element, and torch's name."""

_BLOCK = 128
"""Rows and columns of DeepSeek-V3's matrices that share one scale."""


class ModelTensor(NamedTuple):
    name: str
    dtype: str  # of the format: BF16, F8_E4M3, F32
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][0]


@dataclass(frozen=True)
class ServedModel:
    """A model as it was released.

    ``build`` yields the tensors for a number of layers and a vocabulary. ``shard_bytes``: the most
    bytes of tensors in a shard, with which as many shards come out as were released.
    """

    name: str
    summary: str
    layers: int
    vocabulary: int
    build: Callable[[int, int], Iterator[ModelTensor]]
    shard_bytes: int = 5_000_000_000

    def tensors(
        self, *, layers: int | None = None, vocabulary: int | None = None
    ) -> list[ModelTensor]:
        """All tensors, of fewer layers or a smaller vocabulary where that is asked for.

        Tensors keep their sizes otherwise: small tensors would cost other things than large ones.
        Raises UsageError for more layers, or a larger vocabulary, than the model has, or none.
        """
        for what, asked, most in (
            ("layers", layers, self.layers),
            ("vocabulary", vocabulary, self.vocabulary),
        ):
            if asked is not None and not 1 <= asked <= most:
                raise UsageError(
                    f"{self.name} can't have {what} {asked}", remedy=f"use 1 to {most}"
                )
        return list(self.build(layers or self.layers, vocabulary or self.vocabulary))


def shards_of(tensors: Iterable[ModelTensor], shard_bytes: int) -> list[list[ModelTensor]]:
    """The tensors in shards as the hub's library cuts them.

    In the model's order; a shard ends before the tensor with which it would be too large.
    """
    shards: list[list[ModelTensor]] = [[]]
    room = shard_bytes
    for tensor in tensors:
        if tensor.nbytes > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.nbytes
    return shards


def find_served_model(name: str) -> ServedModel:
    """The model of that name; ``llama3-8b-weights`` is ``llama3-8b``. Raises UnknownNameError."""
    short = name.removesuffix("-weights")
    if short not in SERVED_MODELS:
        raise UnknownNameError("model", short, SERVED_MODELS)
    return SERVED_MODELS[short]


def _bf16(name: str, *shape: int) -> ModelTensor:
    return ModelTensor(f"{name}.weight", "BF16", shape)


@dataclass(frozen=True, kw_only=True)
class _Attention:
    """Grouped-query attention. ``norms``: queries and keys are normalized, head by head."""

    hidden: int
    heads: int
    kv_heads: int
    head: int = 128
    norms: bool = False

    def tensors(self, at: str) -> Iterator[ModelTensor]:
        queries, keys = self.heads * self.head, self.kv_heads * self.head
        yield _bf16(f"{at}.self_attn.q_proj", queries, self.hidden)
        yield _bf16(f"{at}.self_attn.k_proj", keys, self.hidden)
        yield _bf16(f"{at}.self_attn.v_proj", keys, self.hidden)
        yield _bf16(f"{at}.self_attn.o_proj", self.hidden, queries)
        if self.norms:
            yield _bf16(f"{at}.self_attn.q_norm", self.head)
            yield _bf16(f"{at}.self_attn.k_norm", self.head)


def _mlp(at: str, hidden: int, ffn: int) -> Iterator[ModelTensor]:
    yield _bf16(f"{at}.gate_proj", ffn, hidden)
    yield _bf16(f"{at}.up_proj", ffn, hidden)
    yield _bf16(f"{at}.down_proj", hidden, ffn)


def _norms(at: str, hidden: int) -> Iterator[ModelTensor]:
    yield _bf16(f"{at}.input_layernorm", hidden)
    yield _bf16(f"{at}.post_attention_layernorm", hidden)


def _transformer(
    attention: _Attention, *, ffn: int, experts: int = 0
) -> Callable[[int, int], Iterator[ModelTensor]]:
    hidden = attention.hidden

    def build(layers: int, vocabulary: int) -> Iterator[ModelTensor]:
        yield _bf16("model.embed_tokens", vocabulary, hidden)
        for layer in range(layers):
            at = f"model.layers.{layer}"
            yield from attention.tensors(at)
            if experts:
                yield _bf16(f"{at}.mlp.gate", experts, hidden)
                for expert in range(experts):
                    yield from _mlp(f"{at}.mlp.experts.{expert}", hidden, ffn)
            else:
                yield from _mlp(f"{at}.mlp", hidden, ffn)
            yield from _norms(at, hidden)
        yield _bf16("model.norm", hidden)
        yield _bf16("lm_head", vocabulary, hidden)

    return build


_DEEPSEEK_HIDDEN, _DEEPSEEK_LAYERS, _DEEPSEEK_DENSE, _DEEPSEEK_EXPERTS = 7168, 61, 3, 256


def _fp8(name: str, rows: int, columns: int) -> Iterator[ModelTensor]:
    yield ModelTensor(f"{name}.weight", "F8_E4M3", (rows, columns))
    yield ModelTensor(
        f"{name}.weight_scale_inv", "F32", (-(-rows // _BLOCK), -(-columns // _BLOCK))
    )


def _fp8_mlp(at: str, ffn: int) -> Iterator[ModelTensor]:
    yield from _fp8(f"{at}.gate_proj", ffn, _DEEPSEEK_HIDDEN)
    yield from _fp8(f"{at}.up_proj", ffn, _DEEPSEEK_HIDDEN)
    yield from _fp8(f"{at}.down_proj", _DEEPSEEK_HIDDEN, ffn)


def _deepseek_layer(layer: int) -> Iterator[ModelTensor]:
    at, heads, hidden = f"model.layers.{layer}", 128, _DEEPSEEK_HIDDEN
    attention = f"{at}.self_attn"
    yield from _fp8(f"{attention}.q_a_proj", 1536, hidden)
    yield _bf16(f"{attention}.q_a_layernorm", 1536)
    yield from _fp8(f"{attention}.q_b_proj", heads * (128 + 64), 1536)
    yield from _fp8(f"{attention}.kv_a_proj_with_mqa", 512 + 64, hidden)
    yield _bf16(f"{attention}.kv_a_layernorm", 512)
    yield from _fp8(f"{attention}.kv_b_proj", heads * (128 + 128), 512)
    yield from _fp8(f"{attention}.o_proj", hidden, heads * 128)
    if layer < _DEEPSEEK_DENSE:
        yield from _fp8_mlp(f"{at}.mlp", 18432)
    else:
        yield _bf16(f"{at}.mlp.gate", _DEEPSEEK_EXPERTS, hidden)
        yield ModelTensor(f"{at}.mlp.gate.e_score_correction_bias", "F32", (_DEEPSEEK_EXPERTS,))
        for expert in range(_DEEPSEEK_EXPERTS):
            yield from _fp8_mlp(f"{at}.mlp.experts.{expert}", 2048)
        yield from _fp8_mlp(f"{at}.mlp.shared_experts", 2048)
    yield from _norms(at, hidden)


def _deepseek(layers: int, vocabulary: int) -> Iterator[ModelTensor]:
    hidden = _DEEPSEEK_HIDDEN
    yield _bf16("model.embed_tokens", vocabulary, hidden)
    for layer in range(layers):
        yield from _deepseek_layer(layer)
    if layers == _DEEPSEEK_LAYERS:
        at = f"model.layers.{layers}"
        yield _bf16(f"{at}.embed_tokens", vocabulary, hidden)
        yield _bf16(f"{at}.enorm", hidden)
        yield _bf16(f"{at}.hnorm", hidden)
        yield _bf16(f"{at}.eh_proj", hidden, 2 * hidden)
        yield from _deepseek_layer(layers)
        yield _bf16(f"{at}.shared_head.norm", hidden)
        yield _bf16(f"{at}.shared_head.head", vocabulary, hidden)
    yield _bf16("model.norm", hidden)
    yield _bf16("lm_head", vocabulary, hidden)


SERVED_MODELS = {
    model.name: model
    for model in (
        ServedModel(
            "llama3-8b",
            "Llama 3.1 8B, bfloat16",
            *(32, 128_256),
            _transformer(_Attention(hidden=4096, heads=32, kv_heads=8), ffn=14_336),
        ),
        ServedModel(
            "llama3-70b",
            "Llama 3.1 70B, bfloat16",
            *(80, 128_256),
            _transformer(_Attention(hidden=8192, heads=64, kv_heads=8), ffn=28_672),
        ),
        ServedModel(
            "llama3-405b",
            "Llama 3.1 405B, bfloat16",
            *(126, 128_256),
            _transformer(_Attention(hidden=16_384, heads=128, kv_heads=8), ffn=53_248),
        ),
        ServedModel(
            "qwen3-0.6b",
            "Qwen3 0.6B, bfloat16: small enough to try things",
            *(28, 151_936),
            _transformer(_Attention(hidden=1024, heads=16, kv_heads=8, norms=True), ffn=3072),
        ),
        ServedModel(
            "qwen3-32b",
            "Qwen3 32B, bfloat16",
            *(64, 151_936),
            _transformer(_Attention(hidden=5120, heads=64, kv_heads=8, norms=True), ffn=25_600),
            4_000_000_000,
        ),
        ServedModel(
            "qwen3-30b-a3b",
            "Qwen3 30B-A3B, bfloat16: 128 experts in each layer, 18,867 tensors",
            *(48, 151_936),
            _transformer(
                _Attention(hidden=2048, heads=32, kv_heads=4, norms=True), ffn=768, experts=128
            ),
            4_000_000_000,
        ),
        ServedModel(
            "deepseek-v3",
            "DeepSeek-V3, float8 with scales: 256 experts in each layer, 91,991 tensors",
            *(_DEEPSEEK_LAYERS, 129_280),
            _deepseek,
            4_250_000_000,
        ),
    )
}
