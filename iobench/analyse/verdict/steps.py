"""The steps of a repetition along its time: what a timeline shows. Pure functions of events.

A repetition may have a million steps, which no page can show one by one. Each rank's time is
divided into bins of equal length, and a bin keeps the least and the largest value of its steps, so
that no outlier is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .metrics import quantiles
from .rankepochs import Array, Events

MAX_BINS = 1000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


@dataclass(frozen=True, slots=True)
class Bins:
    """One figure over time: ``at_s``, ``low`` and ``high`` of equal length, in seconds."""

    at_s: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one rank. ``quantiles``: of the wait for a batch, by the names of QUANTILES."""

    rank: int
    steps: int
    wait: Bins
    busy: Bins
    quantiles: dict[str, float]
    longest_wait_s: float
    retries: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """All ranks of one repetition. Times are in seconds from its start.

    ``merged``: a bin holds more than one step, so that the values between its ends are left out.
    """

    ranks: tuple[RankSteps, ...]
    epochs_s: dict[int, float]  # the start of each epoch, by its number
    saves_s: tuple[float, ...]  # the end of each step after which a checkpoint was saved
    retries_s: tuple[float, ...]  # steps with a request that was sent again, by any rank
    merged: bool


def step_times(events: Events) -> StepTimes | None:
    """The steps of the rows of one repetition (``metrics.select``); None without any."""
    if not len(events["step"]):
        return None
    start, starts = _times(events)
    order = np.argsort(start, kind="stable")
    rows = {name: column[order] for name, column in events.items()}
    at = start[order]
    ranks, merged = [], False
    for rank in np.unique(rows["rank"]):
        mine = rows["rank"] == rank
        steps = np.maximum(rows["steps"][mine].astype(np.float64), 1.0)
        wait = rows["wait_ns"][mine] / 1e9 / steps
        busy = rows["busy_ns"][mine] / 1e9 / steps
        merged = merged or len(wait) > MAX_BINS or bool((steps > 1).any())
        ranks.append(
            RankSteps(
                rank=int(rank),
                steps=int(steps.sum()),
                wait=_bins(at[mine], wait),
                busy=_bins(at[mine], busy),
                quantiles=dict(
                    zip(
                        QUANTILES,
                        quantiles([wait * 1e9], [steps], QUANTILES.values()),
                        strict=True,
                    )
                ),
                longest_wait_s=float(wait.max()),
                retries=int(rows["retries"][mine].sum()) if "retries" in rows else 0,
            )
        )
    return StepTimes(
        ranks=tuple(ranks),
        epochs_s=starts,
        saves_s=_when(rows, at, "checkpoint_ns"),
        retries_s=_when(rows, at, "retries"),
        merged=merged,
    )


def _times(events: Events) -> tuple[Array, dict[int, float]]:
    """Start of each row in seconds from the repetition's start, and the start of each epoch.

    The events count from the start of their epoch. An epoch begins when all ranks have ended the
    one before.
    """
    start = events["start_ns"].astype(np.float64)
    end = start.copy()
    for name in ("wait_ns", "copy_ns", "busy_ns", "checkpoint_ns", "sync_ns", "lost_ns"):
        if name in events:
            end += events[name]
    shift, starts = 0.0, {}
    for epoch in np.unique(events["epoch"]):
        mine = events["epoch"] == epoch
        starts[int(epoch)] = shift / 1e9
        last = float(end[mine].max())
        start[mine] += shift
        shift += last
    return start / 1e9, starts


def _bins(at: Array, values: Array) -> Bins:
    """The values as they are, or their least and largest in MAX_BINS bins; ``at`` is sorted."""
    if len(at) <= MAX_BINS:
        same = _rounded(values)
        return Bins(_rounded(at), same, same)
    edges = np.linspace(at[0], at[-1], MAX_BINS + 1)[:-1]
    first = np.unique(np.searchsorted(at, edges, side="left"))
    return Bins(
        _rounded(at[first]),
        _rounded(np.minimum.reduceat(values, first)),
        _rounded(np.maximum.reduceat(values, first)),
    )


def _rounded(values: Array) -> tuple[float, ...]:
    """To a microsecond: a step is not known better, and a page need not hold more digits."""
    return tuple(np.round(values, 6).tolist())


def _when(rows: Events, at: Array, name: str) -> tuple[float, ...]:
    """Times of the rows in which a column is not 0, those of several ranks once."""
    if name not in rows:
        return ()
    found: Sequence[float] = np.unique(np.round(at[rows[name] > 0], 3)).tolist()
    return tuple(found)
