"""How much more than the mean rate a storage must deliver, so that a job reaches its utilization.

A storage that delivers exactly the required utilization times the full demand is not enough: no
step runs while the pipeline fills; batches take different times, since their sizes and the
latencies of their reads differ; and with a barrier each step waits for the slowest rank. Batches
that are prefetched hide a part of this. The margin is the smallest factor on that rate with which
the simulated job (``pipeline``) reaches the required utilization in 95 % of its runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from ...settings.dataset import SampleSize

Floats = npt.NDArray[np.float64]

_STEP, _WAITED, _SLOW_LANE, _SERVED = 0, 1, 2, 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A job as the simulation sees it. Times in seconds.

    ``sizes``: bytes of a batch relative to the mean, drawn from by each batch; ``waits_s``: how
    long the latencies of a batch's reads take, drawn from likewise. ``makers``: batches that a
    rank reads at the same time; ``queue``: those that are under way or ready; 0: the rank reads
    each batch itself when it needs it. ``reads``: of a batch, ``lanes`` of which are in flight; the
    slowest lane waits as ``waits_s`` says, and the others ``usual_s``.
    """

    ranks: int
    makers: int
    queue: int
    steps: int
    step_s: float
    barrier: bool
    sizes: Floats
    waits_s: Floats
    reads: int = 1
    lanes: int = 1
    usual_s: float = 0.0

    @property
    def even(self) -> Pipeline:
        """The same job if all of its batches took the mean time."""
        return replace(self, sizes=np.ones(1), waits_s=self.waits_s.mean(keepdims=True))


def step_ends(job: Pipeline, speed: float, *, steps: int, seed: int) -> Floats:
    """When the slowest rank ends each of ``steps`` steps, in seconds from the start.

    ``speed``: the storage's rate relative to the full demand of all ranks. The result is the same
    for the same input.
    """
    return _Simulation(job, speed, steps=steps, seed=seed).run()


class _Simulation:
    """A discrete simulation of a job: workers read batches, and ranks take them in order.

    A batch of a single read waits for its latency, and then shares the storage with all others
    that are being read. The reads of a batch of several wait in lanes, and the storage serves one
    after the other.
    """

    def __init__(self, job: Pipeline, speed: float, *, steps: int, seed: int) -> None:
        self.job, self.steps = job, steps
        self.makers, self.queue = max(1, job.makers), max(1, job.queue)
        draw = np.random.default_rng(seed)
        shape = (job.ranks, steps)
        # Seconds that each batch needs of the whole storage.
        self.needs = (draw.choice(job.sizes, shape) * job.step_s / (job.ranks * speed)).tolist()
        self.waits = draw.choice(job.waits_s, shape).tolist()
        self.now = 0.0
        self.events: list[tuple[float, int, int, int]] = []  # (moment, kind, rank, batch)
        self.issued, self.taken = [0] * job.ranks, [0] * job.ranks
        self.ready: list[set[int]] = [set() for _ in range(job.ranks)]
        self.finished = [[-1] * self.makers for _ in range(job.ranks)]  # last batch of each worker
        self.idle_at = [0.0] * job.ranks  # when the rank's accelerator may begin its next step
        self.allowed = [0] * job.ranks  # the step that the barrier lets the rank begin
        self.arrived = 0  # ranks at the barrier
        self.ends = np.zeros(steps)
        # Batches of a single read.
        self.sharing: list[tuple[float, int, int]] = []  # (virtual end, rank, batch)
        self.served = 0.0  # seconds of storage that each sharing batch has had
        # Batches of several reads.
        self.unread: dict[tuple[int, int], int] = {}  # reads of a batch that have not begun
        self.unserved: dict[tuple[int, int], int] = {}
        self.free_at = 0.0  # when the storage has served the reads that have come

    def run(self) -> Floats:
        for rank in range(self.job.ranks):
            self._issue(rank)
        while self.events or self.sharing:
            sharing = self.sharing
            end = math.inf
            if sharing:
                end = self.now + (sharing[0][0] - self.served) * len(sharing)
            if self.events and self.events[0][0] <= end:
                moment, kind, rank, batch = heapq.heappop(self.events)
                if sharing:
                    self.served += (moment - self.now) / len(sharing)
                self.now = moment
                self._happen(kind, rank, batch)
            else:
                self.now, (self.served, rank, batch) = end, heapq.heappop(sharing)
                self._made(rank, batch)
        return self.ends

    def _happen(self, kind: int, rank: int, batch: int) -> None:
        if kind == _STEP:
            self._stepped(rank, batch)
        elif kind >= _SERVED:
            self.unserved[rank, batch] -= 1
            self._read(rank, batch, kind - _SERVED)
            if not self.unserved[rank, batch]:
                self._made(rank, batch)
        elif self.job.reads > 1:
            self.free_at = max(self.now, self.free_at) + self.needs[rank][batch] / self.job.reads
            heapq.heappush(self.events, (self.free_at, _SERVED + kind, rank, batch))
        else:
            heapq.heappush(self.sharing, (self.served + self.needs[rank][batch], rank, batch))

    def _issue(self, rank: int) -> None:
        """Give the rank's workers the batches that the queue has room for."""
        if self.job.queue == 0 and self.now < self.idle_at[rank]:
            return  # the rank reads by itself, and is busy
        while self.issued[rank] < min(self.steps, self.taken[rank] + self.queue):
            batch = self.issued[rank]
            self.issued[rank] += 1
            if (
                batch < self.makers
                or self.finished[rank][batch % self.makers] == batch - self.makers
            ):
                self._begin(rank, batch)

    def _begin(self, rank: int, batch: int) -> None:
        if self.job.reads == 1:
            moment = self.now + self.waits[rank][batch]
            heapq.heappush(self.events, (moment, _WAITED, rank, batch))
            return
        self.unread[rank, batch] = self.unserved[rank, batch] = self.job.reads
        for lane in range(self.job.lanes):
            self._read(rank, batch, _WAITED if lane else _SLOW_LANE)

    def _read(self, rank: int, batch: int, lane: int) -> None:
        """Begin the next read of a batch in this lane, if there is one."""
        if self.unread[rank, batch]:
            self.unread[rank, batch] -= 1
            wait_s = self.waits[rank][batch] if lane == _SLOW_LANE else self.job.usual_s
            rounds = -(-self.job.reads // self.job.lanes)
            heapq.heappush(self.events, (self.now + wait_s / rounds, lane, rank, batch))

    def _made(self, rank: int, batch: int) -> None:
        """A worker has read a batch: it begins its next one."""
        self.finished[rank][batch % self.makers] = batch
        self.ready[rank].add(batch)
        following = batch + self.makers
        if following < self.issued[rank]:
            self._begin(rank, following)
        self._take(rank)

    def _take(self, rank: int) -> None:
        """Begin the rank's next step, if its batch is ready and the accelerator is free."""
        step = self.taken[rank]
        may = step < self.steps and step <= self.allowed[rank] and self.now >= self.idle_at[rank]
        if not may or step not in self.ready[rank]:
            return
        self.ready[rank].remove(step)
        self.taken[rank] += 1
        self.idle_at[rank] = self.now + self.job.step_s
        heapq.heappush(self.events, (self.idle_at[rank], _STEP, rank, step))
        self._issue(rank)

    def _stepped(self, rank: int, step: int) -> None:
        """The rank has ended a step, and begins the next one, if the barrier lets it."""
        self.ends[step] = max(self.ends[step], self.now)
        released: Iterable[int] = [rank]
        if self.job.barrier:
            self.arrived += 1
            if self.arrived < self.job.ranks:
                if self.job.queue == 0:  # it reads its next batch while it waits
                    self._issue(rank)
                return
            self.arrived = 0
            released = range(self.job.ranks)
        for each in released:
            self.allowed[each] = step + 1
            self._issue(each)
            self._take(each)


def utilization(job: Pipeline, speed: float, *, simulated: int, seed: int) -> float:
    """The share of an epoch of ``job.steps`` steps in which the accelerators are busy.

    About ``simulated`` steps are simulated, and the rest is as fast as the last rounds of them. In
    a round each worker delivers one batch; rounds are kept whole, as batches may arrive in bursts.
    """
    if job.steps <= simulated:
        wall = float(step_ends(job, speed, steps=job.steps, seed=seed)[-1])
    else:
        makers = max(1, job.makers)
        # At the end of a job the storage has less to do, so these steps are left out.
        ends = step_ends(job, speed, steps=simulated + makers + max(1, job.queue), seed=seed)
        rounds = max(makers, simulated // 2 // makers * makers)
        first = simulated - rounds - 1
        pace = float(ends[simulated - 1] - ends[first]) / rounds
        wall = float(ends[simulated - 1]) + (job.steps - simulated) * pace
    if job.reads > 1:  # of the first batches, one ends early by up to a read of each of the others
        wall += max(1, job.makers) / job.reads * job.step_s / speed
    return min(1.0, job.steps * job.step_s / wall)


MAX_RANKS = 128
"""Ranks that are simulated at most. More are slower by little: the slowest of N batches grows with
the logarithm of N."""

MAX_QUEUE = 128
"""Batches of a rank that are simulated under way at most: more hide no more."""

_BATCHES = 4000  # that are simulated for one utilization, about
_REPLICAS = (2, 12)
_Z95 = NormalDist().inv_cdf(0.95)
_PRECISION = 0.004
_UNLIMITED = 1e6  # a speed that costs no time
_SEED = 42
_POOL = 2048  # batches whose sizes and waits are drawn from
_MAX_REQUESTS = 256  # of a batch that are drawn one by one


@dataclass(frozen=True, kw_only=True, slots=True)
class Margin:
    """Factors on the mean rate; each is at least 1. None: no rate is enough.

    ``filling`` is that of a job whose batches all take the mean time, ``factor`` the whole. Where
    they are None, ``highest`` is the utilization with a storage that needs no time for bytes.
    """

    factor: float | None
    filling: float | None
    highest: float
    spread: float  # of a batch's time, standard deviation over mean, at the rate with the margin
    steps: int  # of an epoch
    ranks: int
    queue: int  # batches under way or ready, of each rank
    barrier: bool

    @property
    def unequal(self) -> float | None:
        """The part of the factor that is due to batches of different times."""
        if self.factor is None or self.filling is None:
            return None
        return self.factor / self.filling


def margin(job: Pipeline, required: float) -> Margin:
    """The margin with which ``job`` reaches ``required``, a utilization (0 to 1)."""
    asked = job
    job = replace(
        job,
        ranks=min(job.ranks, MAX_RANKS),
        makers=min(job.makers, MAX_QUEUE),
        queue=min(job.queue, MAX_QUEUE),
    )
    even = replace(job.even, ranks=1)
    highest = _low(job, _UNLIMITED)
    filling = _smallest(lambda speed: _once(even, speed) >= required, required)
    factor = None
    if filling is not None and highest >= required:
        factor = _smallest(lambda speed: _low(job, speed) >= required, filling * required)
        factor = None if factor is None else factor * filling
    shared_s = job.step_s * max(1, job.makers) / (required * (factor or 1.0))
    sd = math.hypot(float(job.sizes.std()) * shared_s, float(job.waits_s.std()))
    return Margin(
        factor=factor,
        filling=filling if factor is not None else None,
        highest=highest,
        spread=sd / (shared_s + float(job.waits_s.mean())),
        steps=asked.steps,
        ranks=asked.ranks,
        queue=asked.queue,
        barrier=job.barrier and job.ranks > 1,
    )


def _smallest(enough: Callable[[float], bool], least: float) -> float | None:
    """The smallest factor on the speed ``least`` that is enough, rounded up; None: none is."""
    low, high = 1.0, 1.0
    while not enough(high * least):
        if high * least >= _UNLIMITED:
            return None
        low, high = high, high * (1.25 if high < 4 else 8)
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle * least) else (middle, high)
    return high


def _simulated(job: Pipeline) -> int:
    """How many steps to simulate: a few fillings of the queue at least."""
    few = 40 + 2 * max(job.makers, job.queue)
    return max(few, min(400, _BATCHES // job.ranks))


def _once(job: Pipeline, speed: float) -> float:
    return utilization(job, speed, simulated=_simulated(job), seed=_SEED)


def _low(job: Pipeline, speed: float) -> float:
    """The utilization that 95 % of runs reach.

    It is that of a normal distribution with the mean and the standard deviation of a few replicas.
    The longer a run is than its simulated part, the less it deviates.
    """
    count = _simulated(job)
    few, many = _REPLICAS
    replicas = min(many, max(few, _BATCHES // (count * job.ranks)))
    found = [utilization(job, speed, simulated=count, seed=_SEED + n) for n in range(replicas)]
    shorter = min(1.0, count / job.steps)
    return fmean(found) - _Z95 * stdev(found) * math.sqrt(shorter)


def batch_sizes(size: SampleSize, batch_size: int) -> Floats:
    """Bytes of batches relative to their mean, drawn from the distribution of samples.

    Clipping to [min, max] is as in the generator, but for bounds that a content sets.
    """
    if size.distribution == "constant":
        return np.ones(1)
    draw = np.random.default_rng(_SEED)
    few = min(batch_size, 64)
    shape, mean = (_POOL, few), size.mean_bytes
    if size.quantiles is not None:
        points, values = zip(*size.quantiles, strict=True)
        samples = np.interp(draw.random(shape), points, values)
    elif size.distribution == "normal":
        samples = draw.normal(mean, size.stdev or 0.0, shape)
    else:
        sigma = size.sigma or 0.0
        samples = draw.lognormal(math.log(mean) - sigma**2 / 2, sigma, shape)
    top = size.quantiles[-1][1] if size.quantiles else 4 * mean
    samples = np.clip(samples, size.min or 1, size.max if size.max is not None else top)
    sums = samples.mean(axis=1)
    # The mean of many samples deviates less than that of the few that were drawn.
    relative = 1 + (sums / sums.mean() - 1) * math.sqrt(few / batch_size)
    return np.asarray(np.maximum(relative, 1e-3))


def batch_waits(
    *, requests: float, concurrency: int, latency_s: float, latency_p99_s: float | None
) -> Floats:
    """How long the latencies of a batch's reads take, in seconds, with ``concurrency`` at once.

    The latency of a read is lognormal with the median ``latency_s`` and that 99th percentile, or
    constant. Each read begins when one before it has ended.
    """
    if not latency_s > 0:
        return np.zeros(1)
    whole = max(1, round(requests))
    count = min(whole, _MAX_REQUESTS)
    sigma = lognormal_sigma(latency_s, latency_p99_s)
    if not sigma:
        return np.full(1, latency_s * math.ceil(whole / concurrency))
    draw = np.random.default_rng(_SEED)
    lanes = np.zeros((_POOL, min(concurrency, count)))
    row = np.arange(_POOL)
    for _ in range(count):
        lanes[row, lanes.argmin(axis=1)] += draw.lognormal(math.log(latency_s), sigma, _POOL)
    return np.asarray(lanes.max(axis=1) * (whole / count))


_MAX_READS, _MAX_LANES = 12, 4
"""Of a batch that are simulated one by one, where it has more: each stands for several."""


class Latencies(TypedDict):
    """Of the reads of a batch: the median and the 99th percentile, ``concurrency`` at once."""

    requests: float
    concurrency: int
    latency_s: float
    latency_p99_s: float | None


class Lanes(TypedDict):
    reads: int
    lanes: int
    usual_s: float


def batch_lanes(
    *, requests: float, concurrency: int, latency_s: float, latency_p99_s: float | None
) -> Lanes:
    """The reads of a batch as a ``Pipeline`` has them; a single one where reads take no time."""
    whole = max(1, round(requests))
    if not latency_s > 0 or whole == 1:
        return Lanes(reads=1, lanes=1, usual_s=0.0)
    mean_s = latency_s * math.exp(lognormal_sigma(latency_s, latency_p99_s) ** 2 / 2)
    lanes, usual_s = min(concurrency, whole), mean_s * math.ceil(whole / concurrency)
    if whole > _MAX_READS:
        lanes = min(lanes, _MAX_LANES)
    return Lanes(reads=min(whole, _MAX_READS), lanes=lanes, usual_s=usual_s)


def lognormal_sigma(median: float, p99: float | None) -> float:
    """The parameter of a lognormal distribution with this median and 99th percentile."""
    if p99 is None or p99 <= median or median <= 0:
        return 0.0
    return math.log(p99 / median) / NormalDist().inv_cdf(0.99)
