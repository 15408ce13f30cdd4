"""Formats: how samples are arranged in a shard. The table of those that iobench has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Format

FORMATS: Registry[Format] = Registry(
    "format",
    "iobench.data.formats",
    {
        "files": PlugIn(
            target="iobench.data.formats.files:OneFileEach", summary="one file per sample"
        ),
        "tar": PlugIn(
            target="iobench.data.formats.tar:Tar",
            summary="POSIX tar shards, as the webdataset library reads them",
        ),
        "tfrecord": PlugIn(
            target="iobench.data.formats.tfrecord:TFRecord",
            summary="TFRecord shards of tf.train.Example, masked CRC32C",
        ),
        "tokens": PlugIn(
            target="iobench.data.formats.tokens:Tokens",
            summary="flat arrays of tokens, read in random windows",
        ),
        "parquet": PlugIn(
            target="iobench.data.formats.parquet:Parquet",
            summary="Parquet: row groups of columns, read by row group",
        ),
        "mds": PlugIn(
            target="iobench.data.formats.mds:Mds",
            summary="MDS shards and their index, as mosaicml-streaming reads them",
        ),
        "hdf5": PlugIn(
            target="iobench.data.formats.hdf5:Hdf5",
            summary="HDF5, one dataset per sample: contiguous or deflated",
            extra="hdf5",
        ),
        "lmdb": PlugIn(
            target="iobench.data.formats.lmdb:Lmdb",
            summary="LMDB, one entry per sample, read in random order",
            extra="lmdb",
        ),
    },
    base="iobench.data.formats.base:Format",
)
