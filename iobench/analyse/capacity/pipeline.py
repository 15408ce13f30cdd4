"""A simulation of a job's loaders on storage of a given rate: its utilization over an epoch.

Each rank's workers make batches in turn, as torch's DataLoader does: batch j is made by worker j
modulo the number of workers, at most ``workers x prefetch_factor`` batches are under way or ready,
and the rank takes them in order. All batches that are being read share the storage's rate evenly.
Before that, each waits for the latencies of its reads, which nobody shares. With a barrier, no rank
begins a step before all have ended the last one.

This is what ``throttled+`` storage does to a run, except that a batch here first waits and then
reads, while a real one does both by turns. So the result is slightly pessimistic.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_STEP, _WAITED = 0, 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pipeline:
    """A job as the simulation sees it. Times in seconds.

    ``sizes``: bytes of a batch relative to the mean, drawn from by each batch; ``waits_s``: how
    long the latencies of a batch's reads take, drawn from likewise. ``makers``: batches that a
    rank reads at the same time; ``queue``: those that are under way or ready; 0: the rank reads
    each batch itself when it needs it.
    """

    ranks: int
    makers: int
    queue: int
    steps: int
    step_s: float
    barrier: bool
    sizes: Floats
    waits_s: Floats

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
    issued, taken, made = [0] * job.ranks, [0] * job.ranks, [0] * job.ranks
    ready: list[set[int]] = [set() for _ in range(job.ranks)]
    finished = [[-1] * makers for _ in range(job.ranks)]  # the last batch of each worker
    idle_at = [0.0] * job.ranks  # when the rank's accelerator may begin its next step
    allowed = [0] * job.ranks  # the step that the barrier lets the rank begin
    events: list[tuple[float, int, int, int]] = []
    sharing: list[tuple[float, int, int]] = []  # (virtual end, rank, batch)
    ends = np.zeros(steps)
    arrived = 0
    now = served = 0.0  # ``served``: seconds of storage that each sharing batch has had

    def begin(rank: int, batch: int) -> None:
        heapq.heappush(events, (now + waits[rank][batch], _WAITED, rank, batch))

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
        made[rank] += 1
        finished[rank][batch % makers] = batch
        ready[rank].add(batch)
        following = batch + makers
        if following < issued[rank]:
            begin(rank, following)
        take(rank)
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
    return min(1.0, job.steps * job.step_s / wall)
