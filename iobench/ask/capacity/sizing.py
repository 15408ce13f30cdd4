"""Formulas of ``plan``, ``size`` and ``whatif``: demand, reads, caches, and rates of stages.

The model of a page cache is LRU, which finds nothing in the first epoch. With a new order in each
epoch it serves a part of the reads (``expected_hit_rate``). In the same order it evicts each sample
just before it is read again, and serves nothing unless everything that the host reads in an epoch
fits. Linux's lists are not exactly LRU. Reads with O_DIRECT bypass the page cache. A pinned cache
evicts nothing, and each host always reads its own part.

There is one small model for each stage, in samples/s over all accelerators. Each docstring gives
the source of the model and its validity. What a recorded run cannot tell stays as recorded.

What a job moves are the reads of its samples, checkpoints, restores, and gradients on the network.
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

from ...judge.evidence import AT_LIMIT
from ...judge.figures.in_flight import reads_per_sample, reads_sequentially
from ...judge.rules_cache import MEMORY_MULTIPLE
from ...judge.rules_data import MIN_STEPS
from ...record.job import WorkloadFacts
from ...record.packing import Layout
from ...settings.dataset import DatasetSpec, expected_samples_per_shard, share_of_columns
from ...settings.workload import Workload


def mlperf_minimum_samples(
    *, batch_size: int, accelerators: int, memory_bytes: float, hosts: int, record_bytes: float
) -> int:
    """Smallest valid dataset in samples.

    It has 500 steps for each accelerator, and 5 x the memory of all hosts. ``memory_bytes`` is
    that of one host. Source: MLPerf Storage Submission_guidelines 3.1.2.
    """
    by_steps = MIN_STEPS * batch_size * accelerators
    return max(by_steps, math.ceil(MEMORY_MULTIPLE * memory_bytes * hosts / record_bytes))


def demanded_samples_per_s(*, batch_size: int, step_time_s: float, accelerators: int) -> float:
    """What the accelerators consume if they never wait."""
    return accelerators * batch_size / step_time_s


def demanded_bytes_per_s(
    *, batch_size: int, step_time_s: float, accelerators: int, bytes_per_sample: float
) -> float:
    return (
        demanded_samples_per_s(
            batch_size=batch_size, step_time_s=step_time_s, accelerators=accelerators
        )
        * bytes_per_sample
    )


def memory_multiple(*, dataset_bytes: float, memory_bytes: float, hosts: int = 1) -> float:
    """Dataset size over the memory of all hosts. MLPerf Storage requires 5 or more."""
    return dataset_bytes / (memory_bytes * hosts)


def expected_hit_rate(cached: float, *, hosts: int = 1) -> float:
    """Share of reads that a page cache (LRU) serves from the second epoch on.

    Every epoch is reshuffled. ``cached`` is the size of one host's cache as a share of the whole
    dataset.

    One host: c + (1 - c) ln(1 - c). A sample at the fraction u of one epoch and v of the next has
    the stack distance 1 - u(1 - v) with u, v uniform, so P(hit) = P(u w >= 1 - c). This is derived,
    and within 0.003 of a simulation of 20,000 samples. Linux's lists are not exactly LRU, so
    measure.

    Several hosts that share one shuffle per epoch: in each epoch a host reads another 1/H of the
    samples. It last read a given sample j epochs ago with the probability (1/H)(1 - 1/H)^(j-1),
    and has since read all but (1 - (1-u)/H)(1 - v/H)(1 - 1/H)^(j-1) of the data. For many hosts
    the hit rate approaches ``cached``. This is derived in the same way.
    """
    if cached >= 1:
        return 1.0
    if cached <= 0:
        return 0.0
    if hosts == 1:
        return cached + (1 - cached) * math.log1p(-cached)
    others = 1 - 1 / hosts
    hits, ago = 0.0, 1.0  # ago: (1 - 1/H)^(j-1)
    while (1 - cached) / ago < 1:
        hits += ago / hosts * _product_reaches((1 - cached) / ago, hosts)
        ago *= others
    return hits


def _product_reaches(least: float, hosts: int) -> float:
    """P(x y >= least) for x and y uniform in [1 - 1/hosts, 1]."""
    low = 1 - 1 / hosts
    if least <= low * low:
        return 1.0
    if least >= low:
        return hosts**2 * (1 - least + least * math.log(least))
    return 1 - hosts**2 * (least * math.log(least / low**2) - least + low**2)


def cache_for_hit_rate(hits: float, *, hosts: int = 1) -> float:
    """The smallest ``cached`` for which ``expected_hit_rate`` is ``hits`` (0 to 1), within 1e-6."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if expected_hit_rate(middle, hosts=hosts) >= hits else (middle, high)
        )
    return high


def pinned_hit_rate(cached: float, *, hosts: int = 1) -> float:
    """Share of reads that caches without eviction serve, if each host always reads its own part.

    Examples are CoorDL's MinIO and a local copy. ``cached`` is the size of one host's cache as a
    share of the whole dataset. Source: DS-Analyzer's what-if (Mohan et al., VLDB 2021).
    """
    return min(1.0, max(0.0, cached * hosts))


def reads_in_flight(*, reads_per_s: float, latency_s: float) -> int:
    """Reads in flight, over all workers, that sustain a rate at a latency (Little's law).

    The result is at least 1.
    """
    return max(1, math.ceil(reads_per_s * latency_s - 1e-9))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """Effect of the memory that was asked about."""

    bytes_per_host: float
    share: float  # of one host's cache, relative to what an epoch reads of the dataset
    page_cache_hit_rate: float
    page_cache_read_bytes_per_s: float  # left for storage
    pinned_hit_rate: float
    pinned_read_bytes_per_s: float


def page_cache_hits(cached: float, *, hosts: int = 1, shuffle: bool) -> float:
    """Share of reads that the page caches of ``hosts`` hosts serve from the second epoch on.

    ``cached``: one host's cache as a share of the dataset. ``shuffle``: a new order in each epoch,
    over all hosts; otherwise each host reads its own part in the same order each time.
    """
    if shuffle:
        return expected_hit_rate(cached, hosts=hosts)
    return 1.0 if cached * hosts >= 1 else 0.0


def cache_of(
    cache_bytes: int | None, *, touched: float, hosts: int, shuffle: bool, read_bytes_per_s: float
) -> Cache | None:
    """``touched``: bytes of the dataset that an epoch reads, over all hosts."""
    if cache_bytes is None:
        return None
    share = min(1.0, cache_bytes / touched)
    page = page_cache_hits(share, hosts=hosts, shuffle=shuffle)
    pinned = pinned_hit_rate(share, hosts=hosts)
    return Cache(
        bytes_per_host=cache_bytes,
        share=share,
        page_cache_hit_rate=page,
        page_cache_read_bytes_per_s=(1 - page) * read_bytes_per_s,
        pinned_hit_rate=pinned,
        pinned_read_bytes_per_s=(1 - pinned) * read_bytes_per_s,
    )


def cache_that_halves(touched: float, *, hosts: int, shuffle: bool) -> float:
    """Bytes of page cache in each host that halve the reads from the second epoch on."""
    if shuffle:
        return cache_for_hit_rate(0.5, hosts=hosts) * touched
    return touched / hosts


DEVICE, READS, CLIENT = "the device", "reads in flight", "this host's CPU"
SEEN = "what the storage was seen to give to so many reads"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """Figures that limit the reader on cold storage, as recorded."""

    rate: float  # the fetch ceiling
    raw: float | None
    raw_at_limit: (
        bool  # False: more reads in flight gave in proportion more, so its limit is unknown
    )
    reads_per_sample: float
    in_flight: float  # the most over all workers
    latency_s: float | None  # of one read
    unloaded: bool  # the latency is without queueing, so it stays when bandwidth rises
    cores: float | None
    cpu_s_per_sample: float | None

    @property
    def at_limit(self) -> bool:
        return self.raw is None or self.rate >= AT_LIMIT * self.raw

    @property
    def client(self) -> float:
        """Samples/s at which reading alone uses every core."""
        return (
            self.cores / self.cpu_s_per_sample if self.cores and self.cpu_s_per_sample else math.inf
        )


def device(fetch: Fetch, factor: float, *, stated: bool, gain: float) -> float:
    """Limit of the device in samples/s, for ``factor`` times its bandwidth.

    The reader gets the same share of it as before, times the ``gain`` of other reads in flight.
    ``stated`` means that the new bandwidth is an absolute value. It is then the limit even if the
    recorded run did not reach the limit of the device; otherwise the limit is infinite in that
    case.

    Source: roofline model; DS-Analyzer's what-if (Mohan et al., VLDB 2021) also scales fetch with
    the disk bandwidth. Validity: the same access pattern, and a factor that holds for the rest of
    the path (network, bus). If the reader did not reach the limit of the device, its raw rate is
    scaled.
    """
    if fetch.at_limit or fetch.raw is None:
        return factor * fetch.rate * gain
    return factor * fetch.raw if fetch.raw_at_limit or stated or factor < 1 else math.inf


def in_flight(fetch: Fetch, *, reads: float, latency_s: float | None) -> float:
    """Limit of ``reads`` reads in flight in samples/s, with ``latency_s`` for each read.

    ``latency_s`` replaces the recorded latency; None keeps that.

    Source: Little's law. If the device was not the limit, one read took ``in_flight / rate``, and
    only the latency in that changes. If it was, most of that time was queueing, so only a latency
    without queueing (stated by the storage, of a read alone, or given) sets a limit; without one
    the limit is infinite. Validity: readers that keep their reads in flight, and a latency that
    does not grow with them.
    """
    took = fetch.in_flight / (fetch.rate * fetch.reads_per_sample)
    recorded = took if fetch.latency_s is None else min(fetch.latency_s, took)
    if not fetch.at_limit:
        each = took - recorded + (recorded if latency_s is None else latency_s)
    elif latency_s is not None:
        each = latency_s
    elif fetch.unloaded and fetch.latency_s is not None:
        each = recorded
    else:
        return math.inf
    return reads / (each * fetch.reads_per_sample) if each > 0 else math.inf


def fetch_parts(
    fetch: Fetch,
    *,
    bandwidth: float,
    stated: bool,
    reads: float,
    gain: float,
    latency_s: float | None,
) -> dict[str, float]:
    """Limits of the device, the reads in flight and the client; the lowest is the fetch ceiling.

    ``gain``: the factor on the recorded rate that so many reads in flight bring.

    Source: ``X = min(BW, k b / (L + b / beta))``, with the CPU time of the client per byte as a
    third limit. Validity: one limit is well below the others. If two are close, the true rate is
    up to about 20 % below the lower one (queueing theory). The limit of the client is at least the
    rate that was measured.
    """
    return {
        DEVICE: device(fetch, bandwidth, stated=stated, gain=gain),
        READS: in_flight(fetch, reads=reads, latency_s=latency_s),
        CLIENT: max(fetch.rate, fetch.client),
    }


def with_cache(rate: float, *, memory: float, hits: float) -> float:
    """The fetch ceiling with caches that serve the share ``hits`` of the reads.

    Source: DS-Analyzer's F(x) = 1 / (h / memory + (1 - h) / rate). Validity: from the second epoch
    on, nothing else in the caches.
    """
    return 1 / (hits / memory + (1 - hits) / rate)


def prepared(
    rate: float,
    *,
    busy_before: int,
    busy: int,
    cores: float | None,
    computing: float = 1.0,
) -> float:
    """The prep ceiling with ``busy`` processes instead of ``busy_before``.

    It grows in proportion, up to one process that computes for each core; ``computing`` is the
    share of its time for which a process does. Source: resource-accounted rates (Plumber, MLSys
    2022). Validity: preparation without locks. It is optimistic beyond the physical cores, because
    of hyper-threads and memory bandwidth, and pessimistic for codecs that use threads of their own.
    """
    usable = math.inf if cores is None or not computing else max(1.0, cores) / computing
    return rate * min(busy, usable) / min(busy_before, usable)


def handed_over(
    rate: float, *, ranks_before: int, ranks: int, busy_before: int, busy: int, cores: float | None
) -> float:
    """The loader ceiling: in proportion to ranks, and to workers per rank if these become fewer.

    More workers alone do not raise it. Source: each rank has a loader of its own, whose training
    process may be the limit. Validity: as for ``prepared``; pessimistic if workers were the limit.
    """
    by_ranks = prepared(rate, busy_before=ranks_before, busy=ranks, cores=cores)
    fewer = min(1.0, (busy / ranks) / (busy_before / ranks_before))
    return by_ranks * fewer


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
    workload: Workload | WorkloadFacts,
    spec: DatasetSpec,
    layout: Layout,
    *,
    stored_bytes: float,
    alignment: int = ALIGNMENT,
) -> Reads:
    """The reads of ``workload`` on a dataset whose samples have ``stored_bytes`` on average.

    ``alignment``: the storage reads whole blocks of so many bytes; 1: exactly what is asked for.
    """
    reader, batch = workload.reader, workload.batch_size or 1
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
