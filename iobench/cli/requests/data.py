"""What can be asked about datasets: ``generate``, ``scan``, ``verify``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from cyclopts import Parameter

from .flags import (
    BreakLock,
    Count,
    Dir,
    HostsRequest,
    Name,
    Number,
    Origin,
    Overrides,
    Size,
    VerbRequest,
    Workers,
    above,
    named,
    without,
)


@dataclass(frozen=True, kw_only=True)
class GenerateRequest(HostsRequest):
    """Generate a dataset from its spec. Bytes are unique and incompressible unless the spec says
    otherwise. The same spec gives the same bytes with any number of workers. To continue an
    interrupted generation, give the same command again.

    For example:

      iobench generate demo --to /tmp/iobench-demo
      iobench generate resnet50 --to /mnt/fast/resnet50 --size 20GiB
      iobench generate unet3d --to /mnt/fast/unet3d --memory-multiple 5
      iobench generate resnet50 --to /mnt/fast/resnet50-tar --samples 10000 \\
          --set format=tar --set shard_size=64MiB --set codec=zstd:1
      iobench generate resnet50 --to s3://bucket/resnet50 --samples 10000 \\
          --set format=tar
      iobench generate ./mine.yaml --to /mnt/fast/mine --seed 7 --workers 4
    """

    keeps: ClassVar[bool] = True
    dataset: Annotated[str, named("dataset")] = field(kw_only=False)
    """name of a dataset (iobench list datasets) or YAML file"""
    to: Dir
    """directory or URL for the dataset; must be new, empty, or hold this same dataset"""
    size: Annotated[Size | None, without("samples", "memory_multiple")] = None
    """total bytes of the samples, e.g. 20GiB"""
    samples: Annotated[Count | None, without("memory_multiple")] = None
    """number of samples"""
    memory_multiple: Annotated[Number | None, above(0, 1000000.0)] = None
    """total bytes as a multiple of the memory of this host (or of its cgroup), e.g. 5"""
    seed: Count | None = None
    """seed for sizes and contents"""
    overrides: Overrides = ()
    workers: Workers = None
    break_lock: BreakLock = False


@dataclass(frozen=True, kw_only=True)
class ScanRequest(VerbRequest):
    """Read the headers of files, WebDataset tars, TFRecords, Parquet or HDF5 below a directory or
    URL, and write nothing there. Parquet does not record the sizes of samples, so the column that
    holds them is read. Two things are saved elsewhere: NAME.yaml, a dataset spec with the sizes
    that were found, from which generate makes a dataset of the same shape; and NAME.manifest, by
    which run reads the data itself. Symbolic links are not followed.

    For example:

      iobench scan /mnt/fast/imagenet/train --save imagenet.yaml
      iobench scan s3://bucket/shards --save shards.yaml
      iobench scan /mnt/fast/imagenet/train --save checked.yaml --name imagenet \\
          --checksums
    """

    url: str = field(kw_only=False)
    """directory or URL that holds the data"""
    save: Annotated[Path, Parameter(metavar="NAME.yaml")]
    """file for the spec; the manifest is written next to it, as NAME.manifest"""
    name: Name | None = None
    """name of the dataset (default: the last part of the URL)"""
    checksums: bool = False
    """read every sample once and record its checksum, for verify and reader.check=content"""


@dataclass(frozen=True, kw_only=True)
class VerifyRequest(HostsRequest):
    """Read a whole dataset and compare every sample, and everything around the samples, with the
    manifest. Damage is listed with its shard and sample. What could not be read (permissions, a
    failing device, a server that does not answer) is listed separately, because it may be
    undamaged. Exit status: 0 no damage, 1 something is damaged, 5 something could not be read, and
    there is no damage in the rest.

    For example:

      iobench verify /mnt/fast/resnet50
      iobench verify /mnt/fast/resnet50 --json
      iobench verify s3://bucket/resnet50
      iobench verify imagenet.manifest --origin /mnt/fast/imagenet/train
    """

    dir: str = field(kw_only=False)
    """directory or URL of the dataset"""
    origin: Origin = None
    workers: Workers = None
    break_lock: BreakLock = False
