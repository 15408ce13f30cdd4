"""Loaders of other libraries, one file each, behind one protocol (base.py).

A library is imported only if a workload names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # they import torch, which who asks for names does not need
    from ...subject.loader import UserLoader
    from ..loader import BatchLoader
    from .base import Converts, Library

LOADERS: Registry[Library | BatchLoader | UserLoader] = Registry(
    "loader",
    "iobench.loaders",
    __name__,
    {
        "iobench": PlugIn("..loader:BatchLoader", "iobench's own readers in torch's DataLoader"),
        "user": PlugIn(
            "...subject.loader:UserLoader",
            "your own loader, made by loader.factory (run --loader module:function)",
        ),
        "torch-map": PlugIn(
            ".torch_map:TorchMap", "a map-style torch Dataset: a file read for each sample"
        ),
        "torch-iterable": PlugIn(
            ".torch_iterable:TorchIterable",
            "an iterable torch Dataset: shards streamed front to back",
        ),
        "webdataset": PlugIn(".wds:WebDataset", "webdataset over tar shards", "webdataset"),
        "hf-datasets": PlugIn(
            ".hf_datasets:HFDatasets", "Hugging Face datasets, streaming Parquet", "hf-datasets"
        ),
        "litdata": PlugIn(".lit:LitData", "litdata over chunks of its own layout", "litdata"),
        "mosaicml-streaming": PlugIn(
            ".mosaic:Mosaic", "mosaicml-streaming over MDS shards", "mosaicml-streaming"
        ),
        "torchdata": PlugIn(
            ".nodes:TorchDataNodes", "torchdata.nodes: threads read samples", "torchdata"
        ),
        "spdl": PlugIn(".spdl_pipeline:Spdl", "SPDL: a pipeline of threads reads batches", "spdl"),
        "grain": PlugIn(
            ".grain_dataset:Grain", "grain: threads read a shuffled map-style dataset", "grain"
        ),
    },
    base=".base:Library",
)


def library_class(kind: str) -> type[Library] | None:
    """Return the plug-in of a loader library; None for iobench's own loader, which is no library.

    Raises UnknownNameError, and UsageError if the library's package is not installed.
    """
    from .base import Library

    found = LOADERS.load(kind)
    return found if issubclass(found, Library) else None


def converter_class(kind: str) -> type[Converts] | None:
    """Return the plug-in of a library that reads files of its own layout; None for other loaders.

    Raises the same errors as ``library_class``.
    """
    from .base import Converts

    found = library_class(kind)
    return found if found is not None and issubclass(found, Converts) else None
