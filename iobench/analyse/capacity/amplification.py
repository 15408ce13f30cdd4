"""What a reader asks of the storage for one sample: bytes and requests, more than the sample has.

- A format that is read by blocks (Parquet's row groups) reads a whole block for each sample that
  is wanted from it, or the columns of it that are wanted. In order, each block is read once and
  serves all of its samples. In random order the samples of a batch rarely share one.
- A sample in a shard begins anywhere. File systems and O_DIRECT read whole blocks of 4 KiB, so that
  a range of n bytes costs n + 4,095 on average, and a file of its own is rounded up. Object stores
  send exactly the bytes that are asked for.
- The framing between samples (a tar's headers) is read with them where a shard is read in order.

A shard with one codec around everything (``.tar.gz``) can't be read at random at all; iobench's
codecs compress each sample, or each column of a block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...schema.dataset import DatasetSpec, expected_samples_per_shard, share_of_columns
from ...schema.packing import Layout
from ...schema.workload import Workload
from ..figures.in_flight import reads_per_sample, reads_sequentially

ALIGNMENT = 4096
"""Bytes of a block of a file system, and of what O_DIRECT reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reads:
    """What is read for one sample, on average."""

    sample_bytes: float  # stored, of the columns that are wanted
    read_bytes: float
    requests: float
    sequential: bool
    block_samples: float | None  # samples of a block; None: not read by blocks
    per_batch: float  # requests of a batch

    @property
    def amplification(self) -> float:
        """Bytes read over bytes wanted; below 1 where the samples of a batch share blocks."""
        return self.read_bytes / self.sample_bytes


def expected_reads(
    workload: Workload,
    spec: DatasetSpec,
    layout: Layout,
    *,
    stored_bytes: float,
    alignment: int = ALIGNMENT,
) -> Reads:
    """The reads of ``workload`` on a dataset whose samples have ``stored_bytes`` on average.

    ``alignment``: the storage reads whole blocks of so many bytes; 1: exactly what is asked for.
    """
    reader, batch = workload.reader, workload.batch_size
    per_shard = expected_samples_per_shard(spec)
    access = "random" if reader.access == "auto" and layout.prefers_random else reader.access
    sequential = reads_sequentially(access, per_shard)
    size = stored_bytes * share_of_columns(spec, reader.columns)
    together: float | None = None
    if layout.blocks:
        block = layout.block_bytes or 0
        together = max(1.0, min(per_shard, float(block // max(1.0, spec.sample_size.mean_bytes))))
        extent = together * size + alignment - 1
        wanted = 1 / together
        if not sequential:
            wanted = _distinct(spec.samples / together, batch) / batch
        read, requests = (
            wanted * extent,
            wanted * max(1, math.ceil(extent / reader.block_size - 1e-9)),
        )
    else:
        requests = reads_per_sample(
            sample_bytes=size,
            block_size=reader.block_size,
            batch_size=batch,
            samples_per_shard=per_shard,
            sequential=sequential,
        )
        if per_shard <= 1:
            even = spec.sample_size.distribution == "constant" and spec.codec == "none"
            read = math.ceil(size / alignment) * alignment if even else size + (alignment - 1) / 2
        elif sequential:
            read = size + layout.framing_bytes + (alignment - 1) / min(batch, per_shard)
        else:
            read = size + alignment - 1
    return Reads(
        sample_bytes=size,
        read_bytes=read,
        requests=requests,
        sequential=sequential,
        block_samples=together,
        per_batch=max(1.0, requests * batch),
    )


def _distinct(blocks: float, draws: int) -> float:
    """How many of ``blocks`` blocks are met by as many independent draws, on average."""
    if blocks <= 1:
        return 1.0
    return -blocks * math.expm1(draws * math.log1p(-1 / blocks))
