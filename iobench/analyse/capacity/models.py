"""Models of how the ceilings of a recorded run move under a change.

There is one small model for each stage, in samples/s over all accelerators. Each docstring gives
the source of the model and its validity. What a recorded run cannot tell stays as recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..verdict.evidence import AT_LIMIT
from .caching import page_cache_hits
from .sizing import pinned_hit_rate

DEVICE, READS, CLIENT = "the device", "reads in flight", "this host's CPU"


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


def device(fetch: Fetch, factor: float, *, stated: bool = False) -> float:
    """Limit of the device in samples/s, for ``factor`` times its bandwidth.

    The reader gets the same share of it as before. ``stated`` means that the new bandwidth is an
    absolute value. It is then the limit even if the recorded run did not reach the limit of the
    device; otherwise the limit is infinite in that case.

    Source: roofline model; DS-Analyzer's what-if (Mohan et al., VLDB 2021) also scales fetch with
    the disk bandwidth. Validity: the same access pattern, and a factor that holds for the rest of
    the path (network, bus). If the reader did not reach the limit of the device, its raw rate is
    scaled.
    """
    if fetch.at_limit or fetch.raw is None:
        return factor * fetch.rate
    return factor * fetch.raw if fetch.raw_at_limit or stated or factor < 1 else math.inf


def in_flight(fetch: Fetch, *, reads: float, latency_s: float | None) -> float:
    """Limit of ``reads`` reads in flight in samples/s, with ``latency_s`` for each read.

    ``latency_s`` replaces the recorded latency; None keeps that.

    Source: Little's law. If the device was not the limit, one read took ``in_flight / rate``, and
    only the latency in that changes. If it was, most of that time was queueing, so only a latency
    without queueing (stated by the storage, or given) sets a limit; without one the limit is
    infinite. Validity: readers that keep their reads in flight, and a latency that does not grow
    with them.
    """
    if not fetch.at_limit:
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
    """Limits of the device, the reads in flight and the client; the lowest is the fetch ceiling.

    Source: ``X = min(BW, k b / (L + b / beta))``, with the CPU time of the client per byte as a
    third limit. Validity: one limit is well below the others. If two are close, the true rate is
    up to about 20 % below the lower one (queueing theory). The limit of the client is at least the
    rate that was measured.
    """
    return {
        DEVICE: device(fetch, bandwidth, stated=stated),
        READS: in_flight(fetch, reads=reads, latency_s=latency_s),
        CLIENT: max(fetch.rate, fetch.client),
    }


def with_cache(
    rate: float, *, memory: float, cached: float, pinned: bool, shuffle: bool
) -> tuple[float, float]:
    """(fetch ceiling, hit rate) with a cache of ``cached`` times the dataset's size.

    The ceiling is 1 / (h / memory + (1 - h) / rate) for the hit rate h. Source: DS-Analyzer's F(x),
    with h = c + (1 - c) ln(1 - c) for a page cache under reshuffling, and h = c without eviction.
    Without ``shuffle`` every epoch has the same order, and a page cache serves nothing unless all
    of the data fits. Validity: from the second epoch on, one host, nothing else in the cache.
    Linux's eviction is not exactly LRU.
    """
    hits = pinned_hit_rate(cached) if pinned else page_cache_hits(cached, shuffle=shuffle)
    return 1 / (hits / memory + (1 - hits) / rate), hits


def prepared(rate: float, *, busy_before: int, busy: int, cores: float | None) -> float:
    """The prep ceiling with ``busy`` processes instead of ``busy_before``.

    It grows in proportion, up to one process for each core. Source: resource-accounted rates
    (Plumber, MLSys 2022). Validity: CPU-bound preparation without locks. It is optimistic beyond
    the physical cores, because of hyper-threads and memory bandwidth, and pessimistic for codecs
    that use threads of their own.
    """
    usable = math.inf if cores is None else max(1.0, cores)
    return rate * min(busy, usable) / min(busy_before, usable)


def handed_over(
    rate: float, *, ranks_before: int, ranks: int, busy_before: int, busy: int, cores: float | None
) -> float:
    """The harness ceiling: in proportion to ranks, and to workers per rank if these become fewer.

    More workers alone do not raise it. Source: each rank has a loader of its own, whose training
    process may be the limit. Validity: as for ``prepared``; pessimistic if workers were the limit.
    """
    by_ranks = prepared(rate, busy_before=ranks_before, busy=ranks, cores=cores)
    fewer = min(1.0, (busy / ranks) / (busy_before / ranks_before))
    return by_ranks * fewer
