"""How fast storage, network and hosts deliver to H hosts, in each of many draws.

With three or more numbers of hosts the storage's rate follows the scaling law (``capacity``). With
fewer, two extremes bound it: the storage gives no more than it gave to the hosts that were
measured, or it gives each further host as much as one of those. A limit that the user states
replaces the first one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..capacity.caching import page_cache_hits
from .band import Floats
from .capacity import MIN_COUNTS, Scaling, fit_scaling
from .jobs import Job

STORAGE, NETWORK, HOST = "storage", "network", "host"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stated:
    """What the user knows, and a run can't tell. Rates in bytes/s, before any cache.

    ``storage_bytes_per_s``: of all hosts together. ``host_network_bytes_per_s``: of one host.
    ``cache_bytes``: memory for cached data in each host.
    """

    storage_bytes_per_s: float | None = None
    host_network_bytes_per_s: float | None = None
    cache_bytes: float | None = None


@dataclass(frozen=True, slots=True)
class Storage:
    """Samples/s over all hosts, for each draw. ``likely`` is None where nothing tells it."""

    worst: Floats
    likely: Floats | None
    best: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Supply:
    """``jobs``: the measured ones; ``normal``: [jobs, draws] standard normal deviates."""

    jobs: Sequence[Job]
    stated: Stated
    normal: Floats
    _fits: list[Scaling] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of hosts at which the storage was measured."""
        return tuple(sorted({job.hosts for job in self.jobs if job.storage is not None}))

    @property
    def told(self) -> bool:
        """Whether a run, or the user, tells what the storage delivers."""
        return bool(self.counts) or self._in_samples(self.stated.storage_bytes_per_s) is not None

    def storage(self, hosts: int) -> Storage:
        """What the storage delivers to so many hosts, with what their caches spare it."""
        measured, known = self._measured(), len(self.counts)
        most = max(measured, key=lambda each: each[0], default=None)
        likely = None
        if most is None:
            last = self.jobs[-1]
            rate = np.full(self.normal.shape[1], last.samples_per_s)
            worst = rate * min(1.0, hosts / last.hosts)
            best = np.full_like(rate, math.inf)
        else:
            number, rates = most
            worst, best = rates * min(1.0, hosts / number), rates * hosts / number
            if known >= 2:
                likely = np.array([fit.rate(hosts) for fit in self._scalings(measured)])
            if known >= MIN_COUNTS and likely is not None:
                worst = best = likely
        limit = self._in_samples(self.stated.storage_bytes_per_s)
        if limit is not None:
            best = np.minimum(best, limit)
            if known < MIN_COUNTS:
                worst, likely = best, None
            else:
                worst, likely = best, best
        spared = 1 / max(1e-9, 1 - self.hits(hosts))
        return Storage(worst * spared, None if likely is None else likely * spared, best * spared)

    def network(self, hosts: int) -> float:
        """What the networks of so many hosts let through; infinite if that is not known."""
        limit = self._in_samples(self.stated.host_network_bytes_per_s)
        return math.inf if limit is None else hosts * limit / max(1e-9, 1 - self.hits(hosts))

    def host(self, hosts: int, per_host: float) -> float:
        """What prep, hand-over and CPU of so many hosts deliver; infinite if not measured."""
        limits = self.jobs[-1].limits
        rate = None if limits is None else limits.rate(per_host)
        return math.inf if rate is None else hosts * rate

    def hits(self, hosts: int) -> float:
        """Share of the reads that the hosts' caches serve from the second epoch on."""
        size, cache = self.jobs[-1].dataset_bytes, self.stated.cache_bytes
        if cache is None or not size:
            return 0.0
        return page_cache_hits(cache / size, hosts=hosts, shuffle=self.jobs[-1].shuffle)

    def _measured(self) -> list[tuple[int, Floats]]:
        return [
            (job.hosts, job.storage.drawn(self.normal[number]))
            for number, job in enumerate(self.jobs)
            if job.storage is not None
        ]

    def _scalings(self, measured: Sequence[tuple[int, Floats]]) -> list[Scaling]:
        if not self._fits:
            hosts = [number for number, _ in measured]
            drawn = np.stack([rates for _, rates in measured])
            off = self._residual(hosts, drawn[:, 0]) * self.normal[: len(hosts), ::-1]
            off[:, 0] = 0.0
            drawn = drawn * np.maximum(1 + off, 0.1)
            self._fits.extend(fit_scaling(hosts, rates) for rates in drawn.T)
        return self._fits

    @staticmethod
    def _residual(hosts: Sequence[int], rates: Floats) -> float:
        """By how much of itself a measured rate differs from the law; 0 if all are needed for it.

        The standard deviation, with three parameters.
        """
        freedom = len(hosts) - MIN_COUNTS
        if freedom < 1:
            return 0.0
        law = fit_scaling(hosts, rates.tolist())
        squares = [
            (rate / law.rate(number) - 1) ** 2 for number, rate in zip(hosts, rates, strict=True)
        ]
        return math.sqrt(sum(squares) / freedom)

    def _in_samples(self, bytes_per_s: float | None) -> float | None:
        size = self.jobs[-1].bytes_per_sample
        return None if bytes_per_s is None or not size else bytes_per_s / size
