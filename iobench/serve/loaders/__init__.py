"""Loaders of a model's weights. The table of those that iobench has."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base.errors import UsageError
from ...plugins import PlugIn, Registry

if TYPE_CHECKING:
    from .base import ModelLoader

MODEL_LOADERS: Registry[ModelLoader] = Registry(
    "model loader",
    "iobench.model_loaders",
    __name__,
    {
        "direct": PlugIn(
            ".direct:DirectLoader", "parallel reads into kept memory, past the page cache"
        ),
        "mmap": PlugIn(
            ".safetensors_loaders:MmapLoader",
            "safetensors.safe_open, tensor after tensor, as most engines do",
            "checkpoint",
        ),
        "prefetch": PlugIn(
            ".safetensors_loaders:PrefetchLoader",
            "mmap, while threads fill the page cache by reads of 16 MiB",
            "checkpoint",
        ),
        "eager": PlugIn(
            ".safetensors_loaders:EagerLoader",
            "safetensors.torch.load_file, file after file",
            "checkpoint",
        ),
        "runai": PlugIn(
            ".runai:RunaiLoader",
            "Run:ai Model Streamer: threads that read, tensors as they come",
            "runai",
        ),
        "fastsafetensors": PlugIn(
            ".fast:FastsafetensorsLoader",
            "fastsafetensors: whole files by threads, tensors as views",
            "fastsafetensors",
        ),
    },
)


def make_model_loader(name: str, options: Mapping[str, Any] | None = None) -> ModelLoader:
    """The loader of that name.

    Raises UnknownNameError; UsageError for an option that it does not have or a missing package.
    """
    kind, given = MODEL_LOADERS.load(name), dict(options or {})
    for option in given:
        if option not in (known := model_loader_options(name)):
            raise UsageError(
                f"the loader {name} has no option '{option}'",
                remedy=f"known: {', '.join(sorted(known)) or 'none'}",
            )
    return kind(**given)


def model_loader_options(name: str) -> set[str]:
    """The options of a loader: block_size, concurrency. Raises UnknownNameError, UsageError."""
    return set(inspect.signature(MODEL_LOADERS.load(name)).parameters)
