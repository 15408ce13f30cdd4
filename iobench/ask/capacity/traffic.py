"""What a job moves: the reads of its samples, checkpoints, restores, and gradients on the network.

A reader asks the storage for more than the sample has:

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

from ...judge.figures.in_flight import reads_per_sample, reads_sequentially
from ...record.packing import Layout
from ...settings.dataset import DatasetSpec, expected_samples_per_shard, share_of_columns
from ...settings.workload import Workload

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


PRECISIONS = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of one gradient."""


def ring_bytes(gradient_bytes: float, hosts: int) -> float:
    """Bytes that each host sends, and receives, in one ring all-reduce of gradients.

    Each host sends 2 (N - 1) / N times the gradients: reduce-scatter, then all-gather (Patarasu
    and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009).
    ViT-B/16 in fp32 has 346 MB of gradients; each of 4 hosts sends 519 MB in each step.
    """
    return 2 * (hosts - 1) / hosts * gradient_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """Checkpoints of the whole job. Rates in bytes/s over all hosts; None: not asked for."""

    checkpoint_bytes: int | None = None
    budget_s: float | None = None  # how long one may take until it is durable
    every_s: float | None = None  # from one to the next
    restore_budget_s: float | None = None  # how long all ranks may read after an interruption
    restore_copies: int = 1  # how often a restore reads the checkpoint: 1 if each rank reads a part

    @property
    def write_bytes_per_s(self) -> float | None:
        """While a checkpoint is being saved: the peak."""
        if self.checkpoint_bytes is None or self.budget_s is None:
            return None
        return self.checkpoint_bytes / self.budget_s

    @property
    def mean_write_bytes_per_s(self) -> float | None:
        """Over a whole interval between two checkpoints."""
        if self.checkpoint_bytes is None or self.every_s is None:
            return None
        return self.checkpoint_bytes / self.every_s

    @property
    def restore_bytes_per_s(self) -> float | None:
        """All ranks read at the same time."""
        if self.checkpoint_bytes is None or self.restore_budget_s is None:
            return None
        return self.restore_copies * self.checkpoint_bytes / self.restore_budget_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """The traffic of one host in bytes/s of payload, in each direction at the same time.

    ``gradients``: of the ring all-reduce between the hosts, as a mean over the steps; None: not
    given. A restore has the network for itself.
    """

    samples_in: float
    gradients: float | None
    saves_out: float
    restore_in: float
    gradient_bytes: float | None  # of one step, that each host sends, and receives

    @property
    def training_in(self) -> float:
        return self.samples_in + (self.gradients or 0.0)

    @property
    def training_out(self) -> float:
        return self.saves_out + (self.gradients or 0.0)

    @property
    def needed(self) -> float:
        """What the busier direction of a full-duplex network has to sustain."""
        return max(self.training_in, self.training_out, self.restore_in)


def network(
    *,
    hosts: int,
    read_bytes_per_s: float,
    gradient_bytes: float | None,
    steps_per_s: float,
    saves: Saves,
) -> Network:
    """The traffic of one of ``hosts`` hosts that share the reads and saves evenly.

    ``read_bytes_per_s``: of all hosts. ``gradient_bytes``: of the model. Within a host gradients
    take no network.
    """
    each = None if gradient_bytes is None else ring_bytes(gradient_bytes, hosts)
    return Network(
        samples_in=read_bytes_per_s / hosts,
        gradients=None if each is None else each * steps_per_s,
        saves_out=(saves.write_bytes_per_s or 0.0) / hosts,
        restore_in=(saves.restore_bytes_per_s or 0.0) / hosts,
        gradient_bytes=each,
    )
