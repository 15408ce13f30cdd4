"""How a recorded run's ceilings move when something changes: one small model for each stage, in samples/s over all accelerators.

Each docstring says where its model comes from and where it holds. What a recorded run cannot know is left as recorded, not guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .sizing import expected_hit_rate, pinned_hit_rate

SPENT = 0.8
"""A reader that gets this share of raw storage has spent the device; below, its latency or concurrency is the limit (as the verdict)."""


DEVICE, READS, CLIENT = "the device", "reads in flight", "this host's CPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetch:
    """What bounds the reader over cold storage, as recorded."""

    rate: float  # the fetch ceiling
    raw: float | None
    raw_spent: bool  # False: with more reads in flight the storage gave as many times more, so its end was not seen
    reads_per_sample: float
    in_flight: float  # at most, over all workers
    latency_s: float | None  # of one read
    unloaded: bool  # the latency holds no queueing, so it stays when bandwidth rises
    cores: float | None
    cpu_s_per_sample: float | None

    @property
    def spent(self) -> bool:
        return self.raw is None or self.rate >= SPENT * self.raw

    @property
    def client(self) -> float:
        """Samples/s at which reading alone takes every core."""
        return (
            self.cores / self.cpu_s_per_sample if self.cores and self.cpu_s_per_sample else math.inf
        )


def device(fetch: Fetch, factor: float, *, stated: bool = False) -> float:
    """The device's part: ``factor`` times the bandwidth, of which the reader gets the share that it got before.

    ``stated``: the new bandwidth was given as such, and so is known even where the end of the recorded one was not seen (then: infinite).
    Source: roofline; DS-Analyzer's what-if (Mohan et al., VLDB 2021) scales fetch with disk bandwidth likewise. Validity: the same access
    pattern, and a factor that the rest of the path (network, bus) follows; a device that the reader had not spent moves by its raw rate.
    """
    if fetch.spent or fetch.raw is None:
        return factor * fetch.rate
    return factor * fetch.raw if fetch.raw_spent or stated or factor < 1 else math.inf


def in_flight(fetch: Fetch, *, reads: float, latency_s: float | None) -> float:
    """The reader's part: ``reads`` in flight, each taking ``latency_s`` instead of the recorded latency (None: the recorded one).

    Source: Little's law. Where the device was not spent, one read took ``in_flight / rate``; of that only the latency changes. Where it
    was, that time was mostly queueing, so only a latency without queueing (stated by the storage, or given) bounds anything; without one
    the part is unbounded. Validity: readers that keep their reads in flight, and latency that does not grow with them.
    """
    if not fetch.spent:
        took = fetch.in_flight / (fetch.rate * fetch.reads_per_sample)
        recorded = took if fetch.latency_s is None else min(fetch.latency_s, took)
        each = took - recorded + (recorded if latency_s is None else latency_s)
    elif latency_s is not None:
        each = latency_s
    elif fetch.unloaded and fetch.latency_s is not None:
        each = fetch.latency_s
    else:
        return math.inf
    return reads / (each * fetch.reads_per_sample) if each > 0 else math.inf


def fetch_parts(
    fetch: Fetch, *, bandwidth: float, stated: bool, reads: float, latency_s: float | None
) -> dict[str, float]:
    """What the device, the reader and the client each allow; the lowest is the fetch ceiling.

    Source: ``X = min(BW, k b / (L + b / beta))`` with the client's CPU time per byte as a third bound. Validity: one bound well below the
    others; where two meet, queueing theory puts the truth up to some 20 % below the lower one. The client's part never lowers a rate that
    was measured.
    """
    return {
        DEVICE: device(fetch, bandwidth, stated=stated),
        READS: in_flight(fetch, reads=reads, latency_s=latency_s),
        CLIENT: max(fetch.rate, fetch.client),
    }


def with_cache(rate: float, *, memory: float, cached: float, pinned: bool) -> tuple[float, float]:
    """(fetch ceiling, hit rate) with a cache of ``cached`` datasets: 1 / (h / memory + (1 - h) / rate).

    Source: DS-Analyzer's F(x), with h = c + (1 - c) ln(1 - c) for a page cache under reshuffling, and h = c where nothing is evicted.
    Validity: from the second epoch on, every epoch reshuffled, one host, nothing else in the cache; Linux evicts not quite by LRU.
    """
    hits = pinned_hit_rate(cached) if pinned else expected_hit_rate(cached)
    return 1 / (hits / memory + (1 - hits) / rate), hits


def prepared(rate: float, *, busy_before: int, busy: int, cores: float | None) -> float:
    """The prep ceiling with ``busy`` processes instead of ``busy_before``: in proportion, up to one for each core.

    Source: resource-accounted rates (Plumber, MLSys 2022). Validity: CPU-bound preparation without locks; hyper-threads and memory
    bandwidth make it optimistic beyond the physical cores, and codecs with threads of their own pessimistic.
    """
    most = math.inf if cores is None else max(1.0, cores)
    return rate * min(busy, most) / min(busy_before, most)


def handed_over(
    rate: float, *, ranks_before: int, ranks: int, busy_before: int, busy: int, cores: float | None
) -> float:
    """The harness ceiling: in proportion to ranks, and to fewer workers; more workers alone are not taken to raise it.

    Source: each rank has its own loader, whose training process may be the limit. Validity: as ``prepared``; pessimistic where workers
    were the limit.
    """
    by_ranks = prepared(rate, busy_before=ranks_before, busy=ranks, cores=cores)
    fewer = min(1.0, (busy / ranks) / (busy_before / ranks_before))
    return by_ranks * fewer
