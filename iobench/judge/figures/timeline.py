"""What happened along the time of a repetition: its steps, their spread, and the host.

A repetition may have a million steps, which no page can show one by one. Each rank's time is
divided into bins of equal length, and a bin keeps the least and the largest value of its steps, so
that no outlier is lost. A quantile is given only as far as the steps tell it: one beyond which less
than one step lies is the longest step of a few, and not a quantile. A sample of the host counts
from the start of its epoch, as step events do, so both have one time axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .events import Array, Events
from .metrics import quantiles

MAX_BINS = 1000


@dataclass(frozen=True, slots=True)
class Bins:
    """One figure over time: ``at_s``, ``low`` and ``high`` of equal length, in seconds."""

    at_s: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of one rank, and the wait for a batch that 99 of 100 do not exceed."""

    rank: int
    wait: Bins
    busy: Bins
    wait_p99_s: float


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
    """The steps of the rows of one repetition (``events.select``); None without any."""
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
                wait=_bins(at[mine], wait),
                busy=_bins(at[mine], busy),
                wait_p99_s=quantiles([wait * 1e9], [steps], [0.99])[0],
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
    found: Sequence[float] = np.unique(np.round(at[rows[name] > 0], 3)).tolist()
    return tuple(found)


LEVELS = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999)
_STEP = ("wait_ns", "copy_ns", "busy_ns", "checkpoint_ns", "sync_ns", "lost_ns")


@dataclass(frozen=True, slots=True)
class TimeSpread:
    """One kind of time. ``quantiles``: seconds by the LEVELS that so many steps tell."""

    steps: int
    quantiles: dict[float, float]
    longest_s: float
    merged: bool  # a row is the mean of several steps, which hides the ends


def spreads(events: Events) -> dict[str, TimeSpread]:
    """Of ``wait`` for a batch, its ``read`` and ``prep``, and of the whole ``step``.

    ``events`` are those of one repetition. A kind that nobody recorded is left out: its times are
    all 0, as those of a loader library.
    """
    if not len(events["step"]):
        return {}
    steps = np.maximum(events["steps"].astype(np.float64), 1.0)
    whole = sum(events[name].astype(np.float64) for name in _STEP)
    times: dict[str, Array] = {
        "wait": events["wait_ns"].astype(np.float64),
        "read": events["read_ns"].astype(np.float64),
        "prep": events["prep_ns"].astype(np.float64),
        "step": np.asarray(whole),
    }
    total = float(steps.sum())
    levels = [level for level in LEVELS if total * (1 - level) >= 1 - 1e-9]
    found = {}
    for kind, ns in times.items():
        each = np.maximum(ns, 0.0) / steps
        if not each.any():
            continue
        found[kind] = TimeSpread(
            steps=int(total),
            quantiles=dict(zip(levels, quantiles([each], [steps], levels), strict=True)),
            longest_s=float(each.max()) / 1e9,
            merged=bool((steps > 1).any()),
        )
    return found


RATES = {
    "device_read": "device_read_bytes",
    "device_write": "device_write_bytes",
    "received": "network_received_bytes",
    "sent": "network_sent_bytes",
    "loopback": "loopback_bytes",
    "device_busy": "device_busy_s",
    "io_pressure": "io_pressure_s",
    "cpu_pressure": "cpu_pressure_s",
    "memory_pressure": "memory_pressure_s",
    "nfs_reads": "nfs_reads",
    "nfs_others": "nfs_others",
}
"""Figures that are the counters of these columns over the time of the sample."""

STATES = {
    "memory": "memory_used_bytes",
    "page_cache": "page_cache_bytes",
    "gpu_busy": "gpu_busy",
    "gpu_memory": "gpu_memory_bytes",
}

MAX_VALUE = 1e18
"""No host moves or holds more bytes."""

SHARES = ("device_busy", "io_pressure", "cpu_pressure", "memory_pressure", "gpu_busy", "cpu")
"""Figures that are at most 1: the two ends of a sample are not read at the same instant."""


@dataclass(frozen=True, slots=True)
class Use:
    """One figure over time. ``mean``: over the measured time, weighted by it."""

    at_s: tuple[float, ...]  # the middle of each sample
    values: tuple[float, ...]
    mean: float
    largest: float


def host_use(samples: Events, starts_s: Mapping[int, float]) -> dict[str, Use]:
    """Each figure that was measured, by its name, over the time of one repetition.

    ``samples`` are those of the repetition (``events.select``), ``starts_s`` the start of each
    epoch on the time axis of the steps. Samples of other epochs, or without a length, are left out.
    """
    usable = np.isin(samples["epoch"], list(starts_s)) & (samples["wall_ns"] > 0)
    rows = {name: column[usable] for name, column in samples.items()}
    if not len(rows["epoch"]):
        return {}
    shift = np.array([starts_s[int(epoch)] for epoch in rows["epoch"]])
    wall = rows["wall_ns"] / 1e9
    at = shift + rows["start_ns"] / 1e9 + wall / 2
    order = np.argsort(at, kind="stable")
    with np.errstate(all="ignore"):  # what becomes of damaged figures is left out
        figures = {name: rows[of] / wall for name, of in RATES.items() if of in rows}
        figures |= {name: rows[of] for name, of in STATES.items() if of in rows}
        if {"cpu_busy_s", "cpu_total_s"} <= rows.keys():
            figures["cpu"] = rows["cpu_busy_s"] / rows["cpu_total_s"]
        if {"nfs_reads", "nfs_read_rtt_s"} <= rows.keys():
            figures["nfs_read_rtt"] = rows["nfs_read_rtt_s"] / rows["nfs_reads"]
    found = {}
    for name, values in figures.items():
        values = np.minimum(values, 1.0) if name in SHARES else values
        use = _use(at[order], values[order], wall[order])
        if use is not None:
            found[name] = use
    return found


def _use(at: Array, values: Array, wall: Array) -> Use | None:
    """The samples with a value; None without any. A damaged file may have any others."""
    known = (values >= 0) & (values <= MAX_VALUE)
    if not known.any():
        return None
    at, values, wall = at[known], values[known], wall[known]
    return Use(
        at_s=tuple(np.round(at, 3).tolist()),
        values=tuple(float(f"{value:.4g}") for value in values.tolist()),
        mean=float(np.average(values, weights=wall)),
        largest=float(values.max()),
    )
