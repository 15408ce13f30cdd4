"""Small weights for tests: a model of the catalog's kind, and files with tensors of every type."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import save_file

from iobench.serve.generate import generate_weights
from iobench.serve.models import ModelTensor, ServedModel
from iobench.serve.weights import Weights
from iobench.storage.base import Storage

TYPES = (
    *(torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.bool),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)

TINY = ServedModel(
    "tiny",
    "for tests",
    *(4, 3000),
    lambda layers, vocabulary: iter(
        [
            ModelTensor("model.embed_tokens.weight", "BF16", (vocabulary, 128)),
            *(
                ModelTensor(f"model.layers.{layer}.{name}.weight", dtype, shape)
                for layer in range(layers)
                for name, dtype, shape in (
                    ("self_attn.q_proj", "BF16", (128, 128)),
                    ("self_attn.o_proj", "BF16", (128, 128)),
                    ("mlp.down_proj", "F8_E4M3", (128, 1024)),
                    ("mlp.up_proj", "F8_E4M3", (1024, 128)),
                    ("input_layernorm", "F32", (128,)),
                )
            ),
            ModelTensor("lm_head.weight", "BF16", (vocabulary, 128)),
        ]
    ),
)


def tiny(storage: Storage, *, shard_bytes: int = 600_000, seed: int = 0) -> Weights:
    """TINY, in several shards."""
    return generate_weights(TINY, storage, shard_bytes=shard_bytes, seed=seed)


def of_every_type() -> dict[str, torch.Tensor]:
    """Tensors of every type, and none, one and many elements."""
    noise = torch.Generator().manual_seed(0)
    raw = torch.randint(0, 256, (8 * 3 * 5,), dtype=torch.uint8, generator=noise)
    found = {
        str(dtype).removeprefix("torch."): (raw % 2 if dtype is torch.bool else raw)
        .view(dtype)[:15]
        .reshape(3, 5)
        .clone()
        for dtype in TYPES
    }
    return found | {
        "scalar": torch.tensor(2.5, dtype=torch.bfloat16),
        "none": torch.empty((0, 7), dtype=torch.float32),
        "name with ünïcode and 'quotes'": torch.arange(3),
        "large": torch.randn(300, 1000, generator=noise),
    }


def write_every_type(
    folder: Path, *, without: Collection[torch.dtype] = ()
) -> dict[str, torch.Tensor]:
    """Write them into two files without an index, as safetensors does."""
    tensors = {name: each for name, each in of_every_type().items() if each.dtype not in without}
    folder.mkdir(parents=True, exist_ok=True)
    for number in (0, 1):
        names = list(tensors)[number::2]
        save_file({name: tensors[name] for name in names}, folder / f"part{number}.safetensors")
    return tensors


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Also of a NaN, and of types that have no comparison."""
    alike = (one.dtype, one.shape) == (other.dtype, other.shape)
    return alike and (
        not one.numel()
        or torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))
    )
