"""Formats: how samples are arranged in a shard. The table of those that iobench has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Format

FORMATS: Registry[Format] = Registry(
    "format",
    "iobench.data.formats",
    __name__,
    {
        "files": PlugIn(".files:OneFileEach", "one file per sample"),
        "tar": PlugIn(".tar:Tar", "POSIX tar shards, as the webdataset library reads them"),
        "tfrecord": PlugIn(
            ".tfrecord:TFRecord", "TFRecord shards of tf.train.Example, masked CRC32C"
        ),
        "tokens": PlugIn(".tokens:Tokens", "flat arrays of tokens, read in random windows"),
        "parquet": PlugIn(".parquet:Parquet", "Parquet: row groups of columns, read by row group"),
        "mds": PlugIn(".mds:Mds", "MDS shards and their index, as mosaicml-streaming reads them"),
        "hdf5": PlugIn(
            ".hdf5:Hdf5", "HDF5, one dataset per sample: contiguous or deflated", "hdf5"
        ),
        "lmdb": PlugIn(".lmdb:Lmdb", "LMDB, one entry per sample, read in random order", "lmdb"),
    },
    base=".base:Format",
)
