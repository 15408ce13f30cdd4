"""What can be asked about datasets: ``generate``, ``scan``, ``verify``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .flags import (
    BREAK_LOCK,
    COUNT,
    DIR,
    NAME,
    NUMBER,
    ORIGIN,
    OVERRIDES,
    SIZE,
    WORKERS,
    HostsRequest,
    ValueKind,
    VerbRequest,
    flag,
    must,
    shared,
    switch,
    verb,
    word,
)


@verb(
    "generate",
    "generate a dataset",
    examples=(
        "demo --to /tmp/iobench-demo",
        "resnet50 --to /mnt/fast/resnet50 --size 20GiB",
        "unet3d --to /mnt/fast/unet3d --memory-multiple 5",
        "resnet50 --to /mnt/fast/resnet50-tar --samples 10000 --set format=tar "
        "--set shard_size=64MiB --set codec=zstd:1",
        "resnet50 --to s3://bucket/resnet50 --samples 10000 --set format=tar",
        "./mine.yaml --to /mnt/fast/mine --seed 7 --workers 4",
    ),
    keeps=True,
)
@dataclass(frozen=True, kw_only=True)
class GenerateRequest(HostsRequest):
    """Generate a dataset from its spec. Bytes are unique and incompressible unless the spec says
    otherwise. The same spec gives the same bytes with any number of workers. To continue an
    interrupted generation, give the same command again.
    """

    dataset: str = word("DATASET", "name of a dataset (iobench list datasets) or YAML file")
    to: str = must(
        DIR, "directory or URL for the dataset; must be new, empty, or hold this same dataset"
    )
    size: int | None = flag(
        SIZE, "total bytes of the samples, e.g. 20GiB", excludes=("--samples", "--memory-multiple")
    )
    samples: int | None = flag(COUNT, "number of samples", excludes=("--memory-multiple",))
    memory_multiple: float | None = flag(
        NUMBER,
        "total bytes as a multiple of the memory of this host (or of its cgroup), e.g. 5",
        above=0,
        most=1000000.0,
    )
    seed: int | None = flag(COUNT, "seed for sizes and contents")
    overrides: tuple[str, ...] = shared(OVERRIDES)
    workers: int | None = shared(WORKERS)
    break_lock: bool = shared(BREAK_LOCK)


@verb(
    "scan",
    "describe existing data, to measure it where it is",
    examples=(
        "/mnt/fast/imagenet/train --save imagenet.yaml",
        "s3://bucket/shards --save shards.yaml",
        "/mnt/fast/imagenet/train --save checked.yaml --name imagenet --checksums",
    ),
)
@dataclass(frozen=True, kw_only=True)
class ScanRequest(VerbRequest):
    """Read the headers of files, WebDataset tars, TFRecords, Parquet or HDF5 below a directory or
    URL, and write nothing there. Parquet does not record the sizes of samples, so the column that
    holds them is read. Two things are saved elsewhere: NAME.yaml, a dataset spec with the sizes
    that were found, from which generate makes a dataset of the same shape; and NAME.manifest, by
    which run reads the data itself. Symbolic links are not followed.
    """

    url: str = word("URL", "directory or URL that holds the data")
    save: Path = must(
        ValueKind("NAME.yaml", Path),
        "file for the spec; the manifest is written next to it, as NAME.manifest",
    )
    name: str | None = flag(NAME, "name of the dataset (default: the last part of the URL)")
    checksums: bool = switch(
        "read every sample once and record its checksum, for verify and reader.check=content"
    )


@verb(
    "verify",
    "check every byte of a dataset",
    examples=(
        "/mnt/fast/resnet50",
        "/mnt/fast/resnet50 --json",
        "s3://bucket/resnet50",
        "imagenet.manifest --origin /mnt/fast/imagenet/train",
    ),
)
@dataclass(frozen=True, kw_only=True)
class VerifyRequest(HostsRequest):
    """Read a whole dataset and compare every sample, and everything around the samples, with the
    manifest. Damage is listed with its shard and sample. What could not be read (permissions, a
    failing device, a server that does not answer) is listed separately, because it may be
    undamaged. Exit status: 0 no damage, 1 something is damaged, 5 something could not be read, and
    there is no damage in the rest.
    """

    dir: str = word("DIR", "directory or URL of the dataset")
    origin: str | None = shared(ORIGIN)
    workers: int | None = shared(WORKERS)
    break_lock: bool = shared(BREAK_LOCK)
