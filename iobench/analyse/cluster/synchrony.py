"""What it costs that ranks wait for each other: the slowest of them, and the barrier itself.

The slowest of N ranks takes as long as the largest of N step times, whose mean follows from the
recorded steps (``verdict.instep``). Ranks of one host share its cores and its path to the storage,
so they are slow together. Therefore one host's ranks are one value: the slowest of them at a step.
Of H such hosts, the largest of H values counts.

The barrier's own cost is ``a + b ln n`` for n ranks: messages go through a tree, or round a ring
whose parts overlap. It fits the published barriers of 1 to 60 ranks (docs/scale.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..figures.instep import MIN_BLOCKS, StepTimes, Times, block_length, mean_largest, resampled

MAX_BLOCKS = 512
"""Most blocks that are used, the last ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Blocks of recorded steps. ``own_s``: [blocks, ranks of a host, steps], in seconds.

    ``counts``: [ways, blocks], how often each way to draw them has each block; in the first way it
    is once. What follows from the steps is an array with a value for each way.
    """

    own_s: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    round_steps: int

    @property
    def together(self) -> int:
        """The ranks of one host, which are one value."""
        return int(self.own_s.shape[1])

    @property
    def seen(self) -> int:
        """The most ranks whose slowest one was seen: one value for each host, of each place."""
        return len(self.own_s) * int(self.own_s.shape[2] // self.round_steps) * self.together

    @property
    def mean_s(self) -> Times:
        """The mean step of one rank."""
        found: Times = self.counts @ self.own_s.mean(axis=(1, 2)) / self.counts.sum(axis=1)
        return found

    def slowest_s(self, ranks: float) -> Times:
        """The mean step of the slowest of ``ranks``, whose hosts are like the recorded ones."""
        values, number = self.own_s.max(axis=1), ranks / self.together
        found: Times = np.mean(
            [
                mean_largest(values[:, place :: self.round_steps], self.counts, number)
                for place in range(self.round_steps)
            ],
            axis=0,
        )
        return found


def steps_of(series: Sequence[StepTimes], *, hosts: int, round_steps: int) -> Steps | None:
    """The steps of ``hosts`` hosts; None if they are too few for an interval.

    ``series``: for example one entry for each epoch, with the ranks of one host beside each other.
    Where the ranks can't be divided evenly among the hosts, each rank is a value of its own, which
    errs towards too much time.
    """
    length = block_length(round_steps)
    found: list[npt.NDArray[np.float64]] = []
    for each in series:
        ranks, steps = each.own_s.shape
        together = ranks // hosts if ranks % hosts == 0 else 1
        count = steps // length
        cut = each.own_s[:, : count * length].reshape(ranks // together, together, count, length)
        found.extend(cut.transpose(2, 0, 1, 3).reshape(-1, together, length))
    if len(found) < MIN_BLOCKS or len({each.shape for each in found}) > 1:
        return None
    blocks = np.stack(found[-MAX_BLOCKS:])
    return Steps(own_s=blocks, counts=resampled(len(blocks)), round_steps=round_steps)


class Barrier(NamedTuple):
    """The cost of one barrier of n ranks: ``base_s + log_s ln(n)`` seconds, at least 0."""

    base_s: float
    log_s: float

    def cost_s(self, ranks: float) -> float:
        return max(0.0, self.base_s + self.log_s * math.log(max(1.0, ranks)))


def fit_barrier(ranks: Sequence[int], costs_s: Sequence[float]) -> Barrier:
    """The barrier that is nearest to the measured costs, by least squares; none gets cheaper.

    Raises ValueError unless at least two different numbers of ranks were measured.
    """
    if len(set(ranks)) < 2 or len(ranks) != len(costs_s) or min(ranks) < 1:
        raise ValueError("the costs of at least two different numbers of ranks are needed")
    log_s, base_s = np.polyfit(np.log(np.asarray(ranks, dtype=np.float64)), costs_s, 1)
    if log_s < 0:
        return Barrier(float(np.mean(costs_s)), 0.0)
    return Barrier(float(base_s), float(log_s))
