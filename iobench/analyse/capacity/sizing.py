"""Formulas of ``plan``, ``size`` and ``whatif``: sizes, demand, what a cache is worth, requests, reads in flight."""

from __future__ import annotations

import math

LEAST_STEPS = 500
MEMORY_MULTIPLE = 5


def mlperf_minimum_samples(
    *, batch_size: int, accelerators: int, memory_bytes: float, hosts: int, record_bytes: float
) -> int:
    """Smallest valid dataset in samples: 500 steps for each accelerator, and 5 x the memory of all hosts.

    ``memory_bytes`` is one host's. Source: MLPerf Storage Submission_guidelines 3.1.2.
    """
    by_steps = LEAST_STEPS * batch_size * accelerators
    return max(by_steps, math.ceil(MEMORY_MULTIPLE * memory_bytes * hosts / record_bytes))


def demanded_samples_per_s(*, batch_size: int, step_time_s: float, accelerators: int) -> float:
    """What the accelerators consume when they never wait."""
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
    """The dataset over the memory of all hosts; 5 or more is MLPerf's stand-in for cold reads."""
    return dataset_bytes / (memory_bytes * hosts)


def expected_hit_rate(cached: float, *, hosts: int = 1) -> float:
    """Share of reads that an LRU page cache of ``cached`` datasets serves from the second epoch on, when every epoch is reshuffled.

    One host: c + (1 - c) ln(1 - c). A sample at fraction u of one epoch and v of the next has stack distance 1 - u(1 - v) with u, v
    uniform, so P(hit) = P(u w >= 1 - c). Derived, and within 0.003 of a simulation of 20,000 samples; Linux's lists deviate, so measure.

    Several hosts that share each epoch's one shuffle: a host reads another 1/H of the samples each time, so it read this one last j epochs
    ago with probability (1/H)(1 - 1/H)^(j-1), and saw all but (1 - (1-u)/H)(1 - v/H)(1 - 1/H)^(j-1) of the data since. ``cached`` is
    the share of the whole dataset that one host's cache holds; for many hosts the hit rate approaches it. Derived likewise.
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
    """P(x y >= least) with x and y uniform in [1 - 1/hosts, 1]."""
    low = 1 - 1 / hosts
    if least <= low * low:
        return 1.0
    if least >= low:
        return hosts**2 * (1 - least + least * math.log(least))
    return 1 - hosts**2 * (least * math.log(least / low**2) - least + low**2)


def cache_for_hit_rate(hits: float, *, hosts: int = 1) -> float:
    """The smallest ``cached`` whose ``expected_hit_rate`` is ``hits`` (0 to 1), within a millionth."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if expected_hit_rate(middle, hosts=hosts) >= hits else (middle, high)
        )
    return high


def pinned_hit_rate(cached: float, *, hosts: int = 1) -> float:
    """Share of reads that caches serve which evict nothing (CoorDL's MinIO, a local copy), each host always reading its own part.

    ``cached``: the share of the whole dataset that one host's cache holds. Source: DS-Analyzer's what-if (Mohan et al., VLDB 2021).
    """
    return min(1.0, max(0.0, cached * hosts))


def reads_per_sample(
    *,
    sample_bytes: float,
    block_size: int,
    batch_size: int,
    samples_per_shard: float,
    sequential: bool,
) -> float:
    """Read requests that one sample costs: in blocks of ``block_size``, neighbours of a batch together where access is sequential.

    A batch in a row is one stretch of its shard, cut into blocks, and one more piece at each shard's end. Alone, each sample is a
    stretch. Samples of one size are assumed, and framing and O_DIRECT's alignment (up to 8 KiB a stretch) are left aside.
    """
    if not sequential or samples_per_shard <= 1:
        return float(max(1, math.ceil(sample_bytes / block_size - 1e-9)))
    stretch = min(batch_size, samples_per_shard)
    pieces = max(1, math.ceil(stretch * sample_bytes / block_size - 1e-9))
    border = 1 / samples_per_shard if samples_per_shard > batch_size else 0.0
    return pieces / stretch + border


def reads_in_flight(*, reads_per_s: float, latency_s: float) -> int:
    """Concurrency that sustains a rate at a latency (Little's law), over all workers; at least 1."""
    return max(1, math.ceil(reads_per_s * latency_s - 1e-9))


def workers_needed(*, samples_per_s: float, cpu_s_per_sample: float) -> int:
    """Workers that sustain a rate when each sample costs this much CPU time."""
    return max(1, math.ceil(samples_per_s * cpu_s_per_sample - 1e-9))
