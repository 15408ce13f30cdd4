"""One step of H hosts: what the accelerators take, what they wait for, and the bottleneck.

A step of all ranks together takes the busy time of an accelerator, the loader's own time for each
step, the lateness of the slowest rank and the barrier. Beside it the storage, the network and the
hosts make the batches of the next steps. Both overlap as in ``scaling.cycle_s``. The loader's own
time is what the recorded run needs besides all of this, so the model gives the recorded rate back
at the largest recorded run.

Every figure has a value for each of 200 draws: of blocks of recorded steps, of repetitions, of the
storage's rate within its interval, of the barrier's growth where that is not known, and of how much
the storage's times vary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ...judge.statistics import NOISE
from .jobs import BUSY, RecordedJob
from .scaling import (
    MIN_COUNTS,
    Band,
    Barrier,
    Floats,
    ScalingLaw,
    Steps,
    cycle_s,
    either,
    fit_barrier,
    fit_scaling,
)
from .sizing import page_cache_hits


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsChange:
    """More hosts, and what the user knows of them and a run can't tell.

    Rates in bytes/s, before any cache; those of writes are of durable ones. None: as the runs tell.
    """

    hosts: int = 1
    per_host: int | None = None  # accelerators; None: as in the run with most hosts
    storage_bytes_per_s: float | None = None  # to all hosts together
    host_network_bytes_per_s: float | None = None  # of one host
    cache_bytes: float | None = None  # memory for cached data in each host
    barrier: Barrier | None = None
    checkpoint_bytes: float | None = None  # of the whole job; None: saves are not asked about
    host_write_bytes_per_s: float | None = None  # of one host
    storage_write_bytes_per_s: float | None = None  # of all hosts together
    mtbf_s: float | None = None
    anyway: bool = False  # also past what can be predicted


@dataclass(frozen=True, slots=True)
class StorageRates:
    """Samples/s over all hosts, for each draw. ``likely`` is None where nothing tells it."""

    worst: Floats
    likely: Floats | None
    best: Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsSupply:
    """How fast storage, network and hosts deliver to H hosts, in each of many draws.

    With three or more numbers of hosts the storage's rate follows the scaling law. With fewer, two
    extremes bound it: the storage gives no more than it gave to the hosts that were measured, or
    it gives each further host as much as one of those. A limit that the user states replaces the
    first one. ``jobs``: the measured ones; ``normal``: [jobs, draws] standard normal deviates.
    """

    jobs: Sequence[RecordedJob]
    stated: HostsChange
    normal: Floats
    _fits: list[ScalingLaw] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of hosts at which the storage was measured."""
        return tuple(sorted({job.hosts for job in self.jobs if job.storage is not None}))

    @property
    def told(self) -> bool:
        """Whether a run, or the user, tells what the storage delivers."""
        return bool(self.counts) or self._in_samples(self.stated.storage_bytes_per_s) is not None

    def storage(self, hosts: int) -> StorageRates:
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
            # Fewer hosts may get as much as all of those that were measured.
            worst, best = rates * min(1.0, hosts / number), rates * max(1.0, hosts / number)
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
        missed = self.missed(hosts)
        return StorageRates(
            worst / missed, None if likely is None else likely / missed, best / missed
        )

    def network(self, hosts: int) -> float:
        """What the networks of so many hosts let through; infinite if that is not known."""
        limit = self._in_samples(self.stated.host_network_bytes_per_s)
        return math.inf if limit is None else hosts * limit / self.missed(hosts)

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

    def missed(self, hosts: int) -> float:
        """Share of the reads that the storage serves, above 0: rates are over it."""
        return max(1e-9, 1 - self.hits(hosts))

    def _measured(self) -> list[tuple[int, Floats]]:
        return [
            (job.hosts, job.storage.drawn(self.normal[number]))
            for number, job in enumerate(self.jobs)
            if job.storage is not None
        ]

    def _scalings(self, measured: Sequence[tuple[int, Floats]]) -> list[ScalingLaw]:
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


DRAWS = 200
_SEED = 42
_HALVINGS = 50
_NOTHING = 1e-6

MIN_PART = 1e-4
"""Parts of a step that are less than this share of it in every draw are left out."""

SLOWEST_BARRIER = Barrier(0.0, 8.3e-3 / math.log(411))
"""The slowest barrier that was published: 8.3 ms of 411 ranks on 137 hosts (docs/scale.md)."""

STORAGE, NETWORK, HOST = "storage", "network", "host"
ACCELERATOR, LOADER, STRAGGLERS, BARRIER = "accelerator", "loader", "stragglers", "barrier"
PARTS = (ACCELERATOR, LOADER, STRAGGLERS, BARRIER, STORAGE, NETWORK, HOST)
"""What a step's time is spent on, or waits for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsPoint:
    """The job on ``hosts`` hosts. ``parts_s``: the time of a step by PARTS; they add up to it.

    ``fed``: at the required utilization; None: not known. ``bottleneck`` has more than one name
    where the recorded runs don't tell which of them.
    """

    hosts: int
    accelerators: int
    samples_per_s: Band
    accelerator_utilization: Band
    parts_s: dict[str, Band]
    bottleneck: tuple[str, ...]
    fed: bool | None


@dataclass(frozen=True, slots=True)
class _Case:
    """One assumption about the storage: a value for each draw."""

    cycle_s: Floats
    parts_s: Mapping[str, Floats]
    supply_s: Mapping[str, Floats]  # of storage, network and hosts
    step_s: Mapping[str, Floats]  # of the accelerators, without any wait for these


class HostsModel:
    """The jobs' model, with what the user states."""

    def __init__(self, jobs: Sequence[RecordedJob], stated: HostsChange | None = None) -> None:
        """``jobs`` are those of ``jobs_of``: at least one, and the one with most hosts last."""
        self.jobs = tuple(jobs)
        self.base = self.jobs[-1]
        self.stated = stated or HostsChange()
        self.supply = HostsSupply(
            jobs=self.jobs, stated=self.stated, normal=self._normal(len(self.jobs))
        )
        chance = np.random.default_rng(_SEED)
        self._drawn_variation = chance.uniform(0, 1, DRAWS + 1)
        self._growth = chance.uniform(0, 1, DRAWS + 1)
        chosen = chance.choice(np.array(self.base.cycles_s), DRAWS + 1)
        chosen[0] = np.median(self.base.cycles_s)
        self._cycle_s = chosen
        self._unhidden = chance.uniform(0, 1, DRAWS + 1)

    @property
    def steps(self) -> Steps | None:
        return self.base.steps

    def point(self, hosts: int, per_host: float) -> HostsPoint:
        """The job on ``hosts`` hosts with ``per_host`` accelerators each."""
        cases = self._cases(hosts, per_host)
        ranks = max(1, round(hosts * per_host))
        samples = ranks * self.base.batch_size
        rate = self._either([samples / case.cycle_s for case in cases])
        used = self._either([np.minimum(1.0, self.base.busy_s / case.cycle_s) for case in cases])
        parts = {
            name: self._either([case.parts_s[name] for case in cases])
            for name in PARTS
            if any((case.parts_s[name] > MIN_PART * case.cycle_s).any() for case in cases)
        }
        required = self.base.required
        told = True if used.low >= required else False if used.high < required else None
        if told and self.stragglers_unknown(ranks):
            told = None
        names = {self._bottlenecks(case) for case in cases}
        if told is None:
            names.add(ACCELERATOR)  # it may be as busy as required
        return HostsPoint(
            hosts=hosts,
            accelerators=ranks,
            samples_per_s=rate,
            accelerator_utilization=used,
            parts_s=parts,
            bottleneck=tuple(name for name in PARTS if name in names),
            fed=told,
        )

    def storage_takes_over(self, per_host: float, *, most: int) -> tuple[int | None, int | None]:
        """(fewest, most) hosts from which on the steps wait for the storage above all.

        None: not up to ``most`` hosts. The two differ where it is not known what the storage
        gives.
        """
        return self._first(per_host, 0, most), self._first(per_host, -1, most)

    def barrier_s(self, ranks: float, hosts: int) -> Floats:
        """The barrier's own cost, for each draw.

        As the user states it, or as fitted to runs with different numbers of ranks. If one number
        was measured, it is between the same cost and one that grows with ln n. If one host was
        measured, that of several is between nothing more and ``SLOWEST_BARRIER``. 0 without
        barriers.
        """
        if not self.base.in_step:
            return np.zeros(DRAWS + 1)
        if self.fitted_barrier is not None:
            return np.full(DRAWS + 1, self.fitted_barrier.cost_s(ranks))
        known, before = self.base.last_s or 0.0, self.base.ranks
        if self.barrier_unknown(hosts):
            more = known + SLOWEST_BARRIER.cost_s(ranks)
        elif before < 2:
            more = known
        else:
            more = known * math.log(max(2.0, ranks)) / math.log(before)
        found: Floats = known + self._growth * (more - known)
        return found

    def barrier_unknown(self, hosts: int) -> bool:
        """Whether ``hosts`` hosts need a barrier over a network, and none was measured."""
        known = self.fitted_barrier is not None or self.base.last_s is not None
        measured = known and (self.base.hosts > 1 or self.fitted_barrier is not None)
        return self.base.in_step and hosts > 1 and not measured

    @cached_property
    def fitted_barrier(self) -> Barrier | None:
        """The stated barrier, or that of runs on several hosts with different numbers of ranks."""
        if self.stated.barrier is not None:
            return self.stated.barrier
        known = [
            (job.ranks, job.last_s)
            for job in self.jobs
            if job.last_s is not None and job.hosts > 1 and job.in_step
        ]
        if len({ranks for ranks, _ in known}) < 2:
            return None
        return fit_barrier([ranks for ranks, _ in known], [cost for _, cost in known])

    def _late_s(self, ranks: float) -> Floats:
        """How much longer the slowest of the ranks takes than they do on average.

        Where the recorded job waits for its supply, a long step is one whose batch came late, and
        the next batches are made while the other hosts wait for it. So the ranks are late by
        between what is left over all batches under way, and each step for itself.
        """
        if self.steps is None or not self.base.in_step:
            return np.zeros(DRAWS + 1)
        late = np.maximum(0.0, self.steps.slowest_s(ranks) - self.steps.mean_s)
        made = self.base.tokens - BUSY
        levelled = self.steps.slowest_s(ranks, over=made) - self.steps.mean_s
        hidden = np.where(self._supply_limited, late - levelled, 0.0)
        found: Floats = late - (1 - self._unhidden) * np.clip(hidden, 0.0, late)
        return found

    @property
    def levelled(self) -> bool:
        """Whether prefetching may level out how late ranks are, by an amount that is not known."""
        return self.steps is not None and self.base.in_step and bool(self._supply_limited.any())

    @property
    def _supply_limited(self) -> npt.NDArray[np.bool_]:
        """Whether the batches of the last job came more slowly than its accelerators took them."""
        return self._recorded_supply_s > self.base.busy_s

    def stragglers_unknown(self, ranks: float) -> bool:
        """Whether so many ranks wait for the slowest of them, and too few steps tell for how long.

        The utilization is then an upper bound.
        """
        return self.base.in_step and self.steps is None and ranks > self.base.ranks

    @cached_property
    def _recorded_supply_s(self) -> Floats:
        """Seconds in which storage and hosts deliver what a step of the last job takes."""
        base = self.base
        samples = base.ranks * base.batch_size
        storage = (
            np.zeros(DRAWS + 1)
            if base.storage is None
            else samples / base.storage.drawn(self.supply.normal[-1])
        )
        found: Floats = np.maximum(storage, samples / self.supply.host(base.hosts, base.per_host))
        return found

    @cached_property
    def _recorded(self) -> tuple[Floats, Floats]:
        """(seconds of supply, seconds of the step) of the last job, without its loader's time."""
        base = self.base
        step = base.busy_s + self._late_s(base.ranks) + self._base_barrier_s
        return self._recorded_supply_s, step

    @cached_property
    def _loader_s(self) -> Floats:
        """The loader's own time of a step, which explains the recorded time of the last job."""
        supply, step = self._recorded
        return self._solved(
            lambda more: cycle_s(
                supply, step + more, tokens=self.base.tokens, variation=self._variation
            ),
            self._cycle_s,
        )

    @cached_property
    def _variation(self) -> Floats:
        """Of the storage's times, as drawn; less where the last job was too fast for that."""
        supply, step = self._recorded
        least = self._solved(
            lambda spread: cycle_s(supply, step, tokens=self.base.tokens, variation=spread),
            np.ones(DRAWS + 1),
        )
        found: Floats = np.minimum(self._drawn_variation, least)
        return found

    def _solved(self, cycle: Callable[[Floats], Floats], most: Floats) -> Floats:
        """The largest value up to ``most`` for which the recorded step is not exceeded."""
        low, high = np.zeros_like(most), most.copy()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            short = cycle(middle) < self._cycle_s
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return np.where(low > _NOTHING * most, low, 0.0)

    @property
    def _base_barrier_s(self) -> Floats:
        """The barrier's cost in the recorded run, where that is known to be in its steps."""
        base = self.base
        known = base.last_s if base.last_s is not None and base.in_step else 0.0
        return np.full(DRAWS + 1, known)

    def _overlapped(
        self, supply_s: Mapping[str, Floats], step_s: Mapping[str, Floats], without: str = ""
    ) -> Floats:
        """The time from step to step, also if one of its parts took no time.

        A storage that was not measured, of which only a bound is known, adds no queue.
        """
        nothing = np.zeros(DRAWS + 1)
        supply = np.maximum.reduce(
            [nothing if name == without else each for name, each in supply_s.items()]
        )
        step = np.asarray(sum(each for name, each in step_s.items() if name != without))
        variation = self._variation if self.supply.told else 0.0
        return cycle_s(supply, step, tokens=self.base.tokens, variation=variation)

    def _cases(self, hosts: int, per_host: float) -> list[_Case]:
        """The worst, the likely (if there is one) and the best storage."""
        ranks = hosts * per_host
        samples = ranks * self.base.batch_size
        parts = {
            ACCELERATOR: np.full(DRAWS + 1, self.base.busy_s),
            LOADER: self._loader_s,
            STRAGGLERS: self._late_s(ranks),
            BARRIER: self.barrier_s(ranks, hosts),
        }
        step = np.asarray(sum(parts.values()))
        beside = {
            NETWORK: np.full(DRAWS + 1, samples / self.supply.network(hosts)),
            HOST: np.full(DRAWS + 1, samples / self.supply.host(hosts, per_host)),
        }
        storage = self.supply.storage(hosts)
        found = []
        for rates in (storage.worst, storage.likely, storage.best):
            if rates is None:
                continue
            times = {STORAGE: samples / rates, **beside}
            slowest = max(times, key=lambda name: float(np.median(times[name])))
            cycle = self._overlapped(times, parts)
            waits = {name: np.zeros(DRAWS + 1) for name in times}
            wait = np.where(cycle > step * (1 + 1e-9), cycle - step, 0.0)
            whole = {**parts, **waits, slowest: wait}
            found.append(_Case(cycle, whole, times, parts))
        return found

    def _either(self, cases: Sequence[Floats]) -> Band:
        """The band over the cases; see ``_cases``."""
        likely = cases[1][1:] if len(cases) > 2 else None
        return either(cases[0][1:], likely, cases[-1][1:], same=NOISE)

    def _bottlenecks(self, case: _Case) -> str:
        """The part whose absence gains most, or the accelerator if it is as busy as required."""
        whole = float(np.median(case.cycle_s))
        if self.base.busy_s >= self.base.required * whole:
            return ACCELERATOR

        def gain(name: str) -> tuple[float, float]:
            rest = self._overlapped(case.supply_s, case.step_s, without=name)
            return whole - float(np.median(rest)), float(np.median(case.parts_s[name]))

        return max((name for name in case.parts_s if name != ACCELERATOR), key=gain)

    def _first(self, per_host: float, case: int, most: int) -> int | None:
        """The fewest hosts that wait for the storage, by doubling and then halving."""
        low, high = 0, 1
        while not self._waits(high, per_host, case):
            if high >= most:
                return None
            low, high = high, min(2 * high, most)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._waits(middle, per_host, case) else (middle, high)
        return high

    def _waits(self, hosts: int, per_host: float, case: int) -> bool:
        """Whether the storage takes longer for a step than everything else."""
        found = self._cases(hosts, per_host)[case]
        supply = {name: float(np.median(each)) for name, each in found.supply_s.items()}
        step = float(np.median(np.asarray(sum(found.step_s.values()))))
        return supply[STORAGE] >= max(supply.values()) * (1 - 1e-9) and supply[STORAGE] > step

    @staticmethod
    def _normal(jobs: int) -> Floats:
        """Standard normal deviates, [jobs, draws]; the first draw is the middle."""
        found: Floats = np.random.default_rng(_SEED).standard_normal((jobs, DRAWS + 1))
        found[:, 0] = 0.0
        return found
