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

_HERE = "iobench.load.libraries"

LOADERS: Registry[Library | BatchLoader | UserLoader] = Registry(
    "loader",
    "iobench.loaders",
    {
        "iobench": PlugIn(
            target="iobench.load.loader:BatchLoader",
            summary="iobench's own readers in torch's DataLoader",
        ),
        "user": PlugIn(
            target="iobench.subject.loader:UserLoader",
            summary="your own loader, made by loader.factory (run --loader module:function)",
        ),
        "torch-map": PlugIn(
            target=f"{_HERE}.torch_map:TorchMap",
            summary="a map-style torch Dataset: a file read for each sample",
        ),
        "torch-iterable": PlugIn(
            target=f"{_HERE}.torch_iterable:TorchIterable",
            summary="an iterable torch Dataset: shards streamed front to back",
        ),
        "webdataset": PlugIn(
            target=f"{_HERE}.wds:WebDataset",
            summary="webdataset over tar shards",
            extra="webdataset",
        ),
        "hf-datasets": PlugIn(
            target=f"{_HERE}.hf_datasets:HFDatasets",
            summary="Hugging Face datasets, streaming Parquet",
            extra="hf-datasets",
        ),
        "litdata": PlugIn(
            target=f"{_HERE}.lit:LitData",
            summary="litdata over chunks of its own layout",
            extra="litdata",
        ),
        "mosaicml-streaming": PlugIn(
            target=f"{_HERE}.mosaic:Mosaic",
            summary="mosaicml-streaming over MDS shards",
            extra="mosaicml-streaming",
        ),
        "torchdata": PlugIn(
            target=f"{_HERE}.nodes:TorchDataNodes",
            summary="torchdata.nodes: threads read samples",
            extra="torchdata",
        ),
        "spdl": PlugIn(
            target=f"{_HERE}.spdl_pipeline:Spdl",
            summary="SPDL: a pipeline of threads reads batches",
            extra="spdl",
        ),
        "grain": PlugIn(
            target=f"{_HERE}.grain_dataset:Grain",
            summary="grain: threads read a shuffled map-style dataset",
            extra="grain",
        ),
    },
    base=f"{_HERE}.base:Library",
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
