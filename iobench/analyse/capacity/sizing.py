"""Formulas of ``plan``, ``size`` and ``whatif``: sizes, demand, caches, requests, concurrency."""

from __future__ import annotations

import math

from ..verdict.rules_cache import MEMORY_MULTIPLE
from ..verdict.rules_data import MIN_STEPS


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
