"""What memory on the hosts saves from the second epoch on; the first epoch finds it empty.

The model of a page cache is LRU. With a new order in each epoch it serves a part of the reads
(``sizing.expected_hit_rate``). In the same order it evicts each sample just before it is read
again, and serves nothing unless everything that the host reads in an epoch fits. Linux's lists are
not exactly LRU. Reads with O_DIRECT bypass the page cache. A pinned cache evicts nothing, and each
host always reads its own part.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import sizing


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
        return sizing.expected_hit_rate(cached, hosts=hosts)
    return 1.0 if cached * hosts >= 1 else 0.0


def cache_of(
    cache_bytes: int | None, *, touched: float, hosts: int, shuffle: bool, read_bytes_per_s: float
) -> Cache | None:
    """``touched``: bytes of the dataset that an epoch reads, over all hosts."""
    if cache_bytes is None:
        return None
    share = min(1.0, cache_bytes / touched)
    page = page_cache_hits(share, hosts=hosts, shuffle=shuffle)
    pinned = sizing.pinned_hit_rate(share, hosts=hosts)
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
        return sizing.cache_for_hit_rate(0.5, hosts=hosts) * touched
    return touched / hosts
