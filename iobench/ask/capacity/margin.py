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
from collections.abc import Callable
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
    makers, queue = max(1, job.makers), max(1, job.queue)
    draw = np.random.default_rng(seed)
    shape = (job.ranks, steps)
    # Seconds that each batch needs of the whole storage.
    needs = (draw.choice(job.sizes, shape) * job.step_s / (job.ranks * speed)).tolist()
    waits = draw.choice(job.waits_s, shape).tolist()
    issued, taken = [0] * job.ranks, [0] * job.ranks
    ready: list[set[int]] = [set() for _ in range(job.ranks)]
    finished = [[-1] * makers for _ in range(job.ranks)]  # the last batch of each worker
    idle_at = [0.0] * job.ranks  # when the rank's accelerator may begin its next step
    allowed = [0] * job.ranks  # the step that the barrier lets the rank begin
    events: list[tuple[float, int, int, int]] = []
    sharing: list[tuple[float, int, int]] = []  # (virtual end, rank, batch)
    ends = np.zeros(steps)
    rounds = -(-job.reads // job.lanes)
    unread: dict[tuple[int, int], int] = {}  # reads of a batch that have not begun
    unserved: dict[tuple[int, int], int] = {}
    arrived = 0
    now = served = 0.0  # ``served``: seconds of storage that each sharing batch has had
    free_at = 0.0  # when the storage has served the reads that have come

    def begin(rank: int, batch: int) -> None:
        if job.reads == 1:
            heapq.heappush(events, (now + waits[rank][batch], _WAITED, rank, batch))
            return
        unread[rank, batch] = unserved[rank, batch] = job.reads
        for lane in range(job.lanes):
            read(rank, batch, _WAITED if lane else _SLOW_LANE)

    def read(rank: int, batch: int, lane: int) -> None:
        if unread[rank, batch]:
            unread[rank, batch] -= 1
            wait_s = waits[rank][batch] if lane == _SLOW_LANE else job.usual_s
            heapq.heappush(events, (now + wait_s / rounds, lane, rank, batch))

    def serve(rank: int, batch: int, lane: int) -> None:
        nonlocal free_at
        free_at = max(now, free_at) + needs[rank][batch] / job.reads
        heapq.heappush(events, (free_at, _SERVED + lane, rank, batch))

    def made(rank: int, batch: int) -> None:
        finished[rank][batch % makers] = batch
        ready[rank].add(batch)
        following = batch + makers
        if following < issued[rank]:
            begin(rank, following)
        take(rank)

    def issue(rank: int) -> None:
        """Give the rank's workers the batches that the queue has room for."""
        own_time = job.queue > 0 or now >= idle_at[rank]
        while own_time and issued[rank] < min(steps, taken[rank] + queue):
            batch = issued[rank]
            issued[rank] += 1
            if batch < makers or finished[rank][batch % makers] == batch - makers:
                begin(rank, batch)

    def take(rank: int) -> None:
        """Begin the rank's next step, if its batch is ready and the accelerator is free."""
        step = taken[rank]
        if step >= steps or step > allowed[rank] or now < idle_at[rank] or step not in ready[rank]:
            return
        ready[rank].remove(step)
        taken[rank] += 1
        idle_at[rank] = now + job.step_s
        heapq.heappush(events, (idle_at[rank], _STEP, rank, step))
        issue(rank)

    for rank in range(job.ranks):
        issue(rank)
    while events or sharing:
        end = now + (sharing[0][0] - served) * len(sharing) if sharing else math.inf
        if events and events[0][0] <= end:
            moment, kind, rank, batch = heapq.heappop(events)
            if sharing:
                served += (moment - now) / len(sharing)
            now = moment
            if kind >= _SERVED:
                unserved[rank, batch] -= 1
                read(rank, batch, kind - _SERVED)
                if not unserved[rank, batch]:
                    made(rank, batch)
                continue
            if kind != _STEP and job.reads > 1:
                serve(rank, batch, kind)
                continue
            if kind == _WAITED:
                heapq.heappush(sharing, (served + needs[rank][batch], rank, batch))
                continue
            ends[batch] = max(ends[batch], now)
            if not job.barrier:
                allowed[rank] = batch + 1
                issue(rank)
                take(rank)
                continue
            arrived += 1
            if arrived == job.ranks:
                arrived = 0
                for each in range(job.ranks):
                    allowed[each] = batch + 1
                    issue(each)
                    take(each)
            elif job.queue == 0:
                issue(rank)
            continue
        now, (served, rank, batch) = end, heapq.heappop(sharing)
        made(rank, batch)
    return ends


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
    if p99 is None or p99 <= median:
        return 0.0
    return math.log(p99 / median) / NormalDist().inv_cdf(0.99)
