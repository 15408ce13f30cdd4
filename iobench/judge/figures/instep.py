"""The utilization of more ranks than were measured, with a barrier at each step.

In data-parallel training a step takes as long as that of its slowest rank (``barrier``). With N
ranks that is the largest of N step times. Its mean follows from the distribution of the recorded
ones: for n sorted values it is the sum of x_i ((i/n)^N - ((i-1)/n)^N), which is the limit of a
bootstrap that draws N of them for each step. Workers deliver in rounds, so only steps of the same
place in a round are drawn from. The interval is that of a block bootstrap (Kuensch, "The Jackknife
and the Bootstrap for General Stationary Observations", Annals of Statistics 1989): blocks of whole
rounds keep the autocorrelation.

Ranks are taken as waiting independently of one another, which errs towards too much waiting: a
storage that they share may let all of them wait in the same step. Where the recorded ranks did so,
the interval reaches up to what they had together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...record.verdict import Estimate, FedAt

RANKS = (8, 64, 512)
"""The numbers of ranks for which a run's utilization is extrapolated."""

MIN_BLOCKS = 8
"""Fewer blocks of steps of all ranks together give no interval, and so no statement."""

_BLOCK = 16
"""Least number of steps of a block."""

_MAX_VALUES = 1 << 14
"""Most step times that are used, the last ones of each rank."""

_RESAMPLES = 200
_SEED = 42

Times = npt.NDArray[np.float64]


class OwnStepTimes(NamedTuple):
    """Own step times of the ranks, [ranks, steps], in seconds, and the mean of the busy times.

    An own step is the wait for the rank's own batch, its copy and the step of the accelerator. The
    first column is the first step of a round. ``sync_s``: how long each rank then waited for the
    others, of the same shape.
    """

    own_s: Times
    busy_s: float
    sync_s: Times | None = None


def step_times(events: Mapping[str, npt.NDArray[Any]], *, round_steps: int) -> list[OwnStepTimes]:
    """The steady steps of each epoch of a repetition; empty if rows were merged.

    The pipeline fills during the first round of ``round_steps``, which is left out.
    """
    steps = np.asarray(events["steps"])
    if not len(steps) or (steps != 1).any():
        return []
    own_ns = sum(
        np.asarray(events[name], dtype=np.float64) for name in ("wait_ns", "copy_ns", "busy_ns")
    )
    nothing = np.zeros(len(steps))
    found = []
    for epoch in np.unique(events["epoch"]).tolist():
        ranks, busy, waits = [], [], []
        for rank in np.unique(events["rank"]).tolist():
            mine = np.flatnonzero((events["epoch"] == epoch) & (events["rank"] == rank))
            mine = mine[np.argsort(events["step"][mine], kind="stable")][round_steps:]
            ranks.append(np.asarray(own_ns)[mine] / 1e9)
            busy.append(np.asarray(events["busy_ns"], dtype=np.float64)[mine] / 1e9)
            waits.append(np.asarray(events.get("sync_ns", nothing), dtype=np.float64)[mine] / 1e9)
        length = min(map(len, ranks))
        if length:
            cut, synced = (np.stack([rank[:length] for rank in each]) for each in (ranks, waits))
            mean_busy = float(np.mean([each[:length].mean() for each in busy]))
            found.append(OwnStepTimes(cut, mean_busy, synced))
    return found


def at_more_ranks(
    series: Sequence[OwnStepTimes], *, round_steps: int = 1, ranks: Sequence[int] = RANKS
) -> list[FedAt]:
    """The utilization of ``ranks`` ranks whose steps are like the recorded ones.

    ``series``: for example one entry for each epoch. A number of ranks is left out if there are
    fewer recorded values of a place in a round than ranks: then the slowest of them was not seen.
    The result is the same for the same input.
    """
    length = block_length(round_steps)
    blocks = _blocks(series, length)
    steps = sum(each.own_s.size for each in series)
    if len(blocks) < MIN_BLOCKS or not steps:
        return []
    busy_s = sum(each.busy_s * each.own_s.size for each in series) / steps
    if not busy_s > 0:
        return []
    counts = resampled(len(blocks))
    known = len(blocks) * (length // round_steps)

    def of(number: int) -> Estimate:
        slowest_s = np.mean(
            [
                mean_largest(blocks[:, place::round_steps], counts, number)
                for place in range(round_steps)
            ],
            axis=0,
        )
        utilization = np.minimum(1.0, busy_s / np.maximum(slowest_s, busy_s))
        value = float(utilization[0])
        low, high = (float(each) for each in np.quantile(utilization[1:], (0.025, 0.975)))
        return Estimate(value=value, low=min(value, low), high=max(value, high), n=len(blocks))

    together = _together(series, busy_s)
    recorded = max(len(each.own_s) for each in series)
    if recorded < 2 or recorded > known or together <= (of(recorded).high or 1.0):
        together = 0.0
    found = []
    for number in ranks:
        if number > known:
            continue
        estimate = of(number)
        estimate = estimate.model_copy(update={"high": max(estimate.high or 0.0, together)})
        found.append(
            FedAt(ranks=number, accelerator_utilization=estimate, fed=None, how="extrapolated")
        )
    return found


def _together(series: Sequence[OwnStepTimes], busy_s: float) -> float:
    """The utilization of the recorded ranks, whose steps last as long as that of the slowest."""
    slowest_s = float(np.concatenate([each.own_s.max(axis=0) for each in series]).mean())
    return busy_s / max(slowest_s, busy_s)


def block_length(round_steps: int) -> int:
    """Steps of a block: whole rounds, and enough of them to keep the autocorrelation."""
    return -(-_BLOCK // round_steps) * round_steps


def resampled(blocks: int) -> npt.NDArray[np.int64]:
    """How often each way counts each block, [ways, blocks]: first once each, then bootstraps."""
    chance = np.random.default_rng(_SEED)
    counts = chance.multinomial(blocks, np.full(blocks, 1 / blocks), _RESAMPLES)
    return np.concatenate([np.ones((1, blocks), dtype=counts.dtype), counts])


def _blocks(series: Sequence[OwnStepTimes], length: int) -> Times:
    """Blocks of ``length`` steps of one rank each, [blocks, length]; at most ``_MAX_VALUES``."""
    found = [np.empty((0, length))]
    ranks = sum(len(each.own_s) for each in series)
    most = max(1, _MAX_VALUES // max(1, ranks) // length)
    for each in series:
        count = min(most, each.own_s.shape[1] // length)
        if count:
            found.append(each.own_s[:, : count * length].reshape(-1, length))
    return np.concatenate(found)


def mean_largest(values: Times, counts: npt.NDArray[np.int64], number: float) -> Times:
    """The mean of the largest of ``number`` values, for each way to count the blocks (rows).

    ``values``: [blocks, values]; ``counts``: [ways, blocks]. ``number`` need not be whole.
    """
    flat = values.ravel()
    order = np.argsort(flat, kind="stable")
    block = np.repeat(np.arange(len(values)), values.shape[1])[order]
    share = np.cumsum(counts[:, block], axis=1) / (counts.sum(axis=1)[:, None] * values.shape[1])
    reached = share**number
    weights = np.diff(reached, axis=1, prepend=0.0)
    found: Times = weights @ flat[order]
    return found
