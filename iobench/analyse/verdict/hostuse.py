"""What the host did along the time of a repetition, from its samples. Pure functions.

A sample counts from the start of its epoch, as step events do, so both have one time axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .rankepochs import Array, Events

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

    ``samples`` are those of the repetition (``metrics.select``), ``starts_s`` the start of each
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
