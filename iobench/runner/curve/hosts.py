"""What each of several hosts gets of a storage: together with the others, and alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...analyse.figures.curve import rate_of
from ...measure.depth import Depth
from ...schema.curve import ProbeHost, StorageCurve
from ...storage.base import Storage
from .curve import CurveMeasurement, Limits
from .places import Places
from .reader import Together

ALONE_SHARE = 0.25
"""Share of the time of a probe that is kept for the hosts alone."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A curve of all hosts, and what each of them read at each of its points."""

    curve: StorageCurve
    places: Places
    points: Sequence[Sequence[Depth]]


def each_host(
    joint: Measured,
    hosts: Together,
    storage: Storage,
    limits: Limits,
    *,
    run_dir: Path,
    tell: Callable[[str], None],
) -> list[ProbeHost]:
    """What each host read at the knee of the joint curve, or at its highest point, and alone.

    Alone, one after the other, the hosts have as many reads in flight as they had there, as far as
    ``limits`` leave time. ``joint.curve`` is concluded. What they read was not read before, as long
    as such bytes are left.
    """
    points = joint.curve.points
    if not points:
        return []
    best = max(range(len(points)), key=lambda at: points[at].reads_per_s.value)
    knee = joint.curve.knee_in_flight
    chosen = next((at for at, each in enumerate(points) if each.in_flight == knee), best)
    in_flight = points[chosen].in_flight // len(hosts.names)
    found = []
    for number, depth in enumerate(joint.points[chosen]):
        host = ProbeHost(
            name=hosts.names[number],
            in_flight=in_flight,
            joint_reads_per_s=rate_of(depth.reads_per_s, depth.window_reads_per_s),
            joint_bytes_per_s=rate_of(depth.bytes_per_s, depth.window_bytes_per_s),
            joint_latency_p50_s=depth.latency_p50_s,
        )
        if time.monotonic() + limits.per_point_s > limits.deadline_s:
            host.not_measured = f"the time was used up; a longer {limits.time_option} allows it"
        else:
            tell(f"{host.name} alone, {in_flight} in flight")
            alone = CurveMeasurement(
                storage,
                joint.places,
                replace(limits, first=in_flight, max_in_flight=in_flight),
                run_dir=run_dir,
                reader=hosts.reader(joint.places, "alone", [number]),
            ).run()
            _add_alone(host, alone)
        found.append(host)
    return found


def _add_alone(host: ProbeHost, alone: StorageCurve) -> None:
    host.not_measured = alone.not_measured if not alone.points else ""
    for point in alone.points:
        host.alone_reads_per_s, host.alone_bytes_per_s = point.reads_per_s, point.bytes_per_s
        host.alone_latency_p50_s = point.latency_p50_s
