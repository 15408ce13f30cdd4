"""Loaders of a model's weights. The table of those that iobench has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:
    from .base import ModelLoader

MODEL_LOADERS: Registry[ModelLoader] = Registry(
    "model loader",
    "iobench.model_loaders",
    {
        "direct": PlugIn(
            target="iobench.serve.loaders.direct:DirectLoader",
            summary="parallel reads into kept memory, past the page cache",
        ),
        "mmap": PlugIn(
            target="iobench.serve.loaders.mapped:MmapLoader",
            summary="safetensors.safe_open, tensor after tensor, as most engines do",
            extra="checkpoint",
        ),
        "prefetch": PlugIn(
            target="iobench.serve.loaders.mapped:PrefetchLoader",
            summary="mmap, while threads fill the page cache by reads of 16 MiB",
            extra="checkpoint",
        ),
        "eager": PlugIn(
            target="iobench.serve.loaders.eager:EagerLoader",
            summary="safetensors.torch.load_file, file after file",
            extra="checkpoint",
        ),
    },
)


def make_model_loader(name: str, options: Mapping[str, Any] | None = None) -> ModelLoader:
    """The loader of that name.

    Raises UnknownNameError; UsageError for an option that it does not have or a missing package.
    """
    raise NotImplementedError


def model_loader_options(name: str) -> set[str]:
    """The options of a loader: block_size, concurrency. Raises UnknownNameError, UsageError."""
    raise NotImplementedError
