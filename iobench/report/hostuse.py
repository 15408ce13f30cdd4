"""What the host did while a repetition ran: panes below the timeline of its steps, and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..analyse.figures.timeline import Use
from ..schema.metrics import Unit
from ..units import format_bytes, format_count, format_duration, format_percent, format_rate
from .figures import figure
from .sections import Cell, ChartTrack, Column, Pane, Row, Table

MIN_LOOPBACK = 1 << 20
"""Bytes/s over loopback below which no storage is read in this way: it is not shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    title: str
    unit: Unit
    show: Callable[[float], str]
    labels: Mapping[str, str]  # by the names of ``host_use``


def _per_second(count: float) -> str:
    return f"{format_count(count)}/s"


PANES = (
    _Shown(
        title="Bytes per second of the data's device and of the network",
        unit="bytes/s",
        show=format_rate,
        labels={
            "device_read": "device, read",
            "device_write": "device, written",
            "received": "network, received",
            "sent": "network, sent",
            "loopback": "loopback",
        },
    ),
    _Shown(
        title="Share of the time: busy, or a task that waits (pressure)",
        unit="share",
        show=format_percent,
        labels={
            "cpu": "all cores busy",
            "device_busy": "device busy",
            "gpu_busy": "GPUs busy",
            "io_pressure": "waiting for IO",
            "cpu_pressure": "waiting for a core",
            "memory_pressure": "waiting for memory",
        },
    ),
    _Shown(
        title="Memory of the host",
        unit="bytes",
        show=format_bytes,
        labels={
            "memory": "memory in use",
            "page_cache": "page cache",
            "gpu_memory": "GPU memory",
        },
    ),
    _Shown(
        title="NFS operations per second",
        unit="count",
        show=_per_second,
        labels={"nfs_reads": "NFS READ", "nfs_others": "NFS, all others"},
    ),
    _Shown(
        title="Mean round trip of the NFS READ operations",
        unit="s",
        show=format_duration,
        labels={"nfs_read_rtt": "round trip of READ"},
    ),
)


def shown(uses: Mapping[str, Use]) -> dict[str, Use]:
    """Those of ``host_use`` that a report shows."""
    return {
        name: use for name, use in uses.items() if name != "loopback" or use.largest >= MIN_LOOPBACK
    }


def panes(uses: Mapping[str, Use]) -> tuple[Pane, ...]:
    """A pane for each group of figures of which some were measured."""
    found = []
    for pane in PANES:
        tracks = tuple(
            ChartTrack(label=label, at=use.at_s, low=use.values, high=use.values)
            for name, label in pane.labels.items()
            if (use := uses.get(name)) is not None
        )
        if tracks:
            found.append(Pane(title=pane.title, unit=pane.unit, tracks=tracks))
    return tuple(found)


def use_table(uses: Mapping[str, Use], of: str) -> Table:
    """Mean and largest value of each figure. ``of`` names the repetition in the title."""
    rows = [
        Row(
            cells=(
                Cell(value=name, text=label),
                figure(use.mean, pane.show),
                figure(use.largest, pane.show),
            )
        )
        for pane in PANES
        for name, label in pane.labels.items()
        if (use := uses.get(name)) is not None
    ]
    return Table(
        id="host-use",
        title=f"What the whole host did meanwhile{of}, other processes included",
        columns=(
            Column(name="figure", label="figure"),
            Column(name="mean", label="mean", align="right"),
            Column(name="largest", label="largest sample", align="right"),
        ),
        rows=tuple(rows),
        where="pages",
    )
