"""Reads of a storage curve by several hosts at the same time, put together as those of one reader.

The controller hands out the places, so no two hosts read the same bytes, and every host begins at
the same instant. So the curve is measured by the same steps on one host and on many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ...base.errors import WorkerError
from ...host.depth import Depth
from ...record.curve import MeasuredWith
from ..agent import HostAgent
from ..curve.places import Place, Places
from .agents import HostsAgent
from .control import Control
from .localreads import HaveRead, LocalReads, ReadingHost, ReadNow, rows_of

_HEAD_START_S = 0.05
"""From the order to read to its instant; beside that, twenty round trips (``crew``), and the time
that it takes to send the places."""

_PLACES_PER_S = 200_000
"""Places that are sent to a host in a second, at the least."""


class HostsReader:
    """Reads on some hosts of a job, ``members``, by their numbers; see ``curve.reader``.

    ``name``: of the curve. ``points``: what each of the hosts read, point after point.
    """

    def __init__(
        self,
        control: Callable[[], Control],
        local: LocalReads,
        places: Places,
        *,
        name: str,
        members: Sequence[int],
    ) -> None:
        self._control, self.local, self.name, self.members = control, local, name, members
        self.max_bytes, self.once = places.max_bytes, places.once
        self.agent: HostAgent = HostsAgent(local.storage, control, members)
        self.points: list[tuple[Depth, ...]] = []
        self.by: MeasuredWith = "engine"
        self.program = "threads of this process"
        self.notes: list[str] = []

    @property
    def hosts(self) -> int:
        return len(self.members)

    def read(self, places: Sequence[Place], *, in_flight: int, seconds: float, most: int) -> Depth:
        """Read on all members, each with its share of the places and of the reads in flight.

        Raises StorageError or NoMemoryError of the first host that failed, with its name;
        HostLostError.
        """
        control = self._control()
        control.set_clocks()
        count = self.hosts
        trips_s = 20 * control.round_trip_ns / 1e9
        head_s = _HEAD_START_S + trips_s + len(places) / _PLACES_PER_S
        at_ns = time.monotonic_ns() + round(head_s * 1e9)

        def order(member: int) -> tuple[ReadNow]:
            keys, rows = rows_of(places[self.members.index(member) :: count])
            now = ReadNow(
                curve=self.name,
                keys=keys,
                rows=rows,
                in_flight=in_flight // count,
                seconds=seconds,
                most=-(-most // count),
                at_ns=control.there(member, at_ns),
                max_bytes=self.max_bytes,
                once=self.once,
            )
            return (now,)

        found = control.ask_each(
            ReadingHost.read, {member: order(member) for member in self.members}, self.local.read
        )
        self._say(found)
        depths = tuple(each.depth for each in found)
        self.points.append(depths)
        return summed(depths, in_flight=in_flight, given=len(places))

    def _say(self, found: Sequence[HaveRead]) -> None:
        """With what the hosts read; hosts with and without fio together count as without."""
        first = found[0]
        other = next((each for each in found if each.by != "fio"), first)
        self.by, self.program = other.by, other.program
        if len({each.program for each in found}) > 1:
            self.program = " and ".join(sorted({each.program for each in found}))
        self.notes = []
        for member, each in zip(self.members, found, strict=True):
            name = self._control().meeting.hosts[member].label
            self.notes += [f"{name}: {note}" for note in each.notes]
        if self.hosts > 1:
            self.notes.append(
                f"of all {self.hosts} hosts together; percentiles are those of the host on which "
                "they are largest"
            )


def summed(depths: Sequence[Depth], *, in_flight: int, given: int) -> Depth:
    """What several hosts read at the same time, as one. ``given``: places of all of them.

    Rates are sums, also in each window. Percentiles can't be put together: each is the largest of
    the hosts'. Raises WorkerError without any host.
    """
    if not depths:
        raise WorkerError("no host has read anything")
    reads = sum(each.reads for each in depths)
    means = [each.latency_mean_s for each in depths]
    known = [mean * each.reads for mean, each in zip(means, depths, strict=True) if mean]
    windows = min(len(each.window_reads_per_s) for each in depths)
    return Depth(
        in_flight=in_flight,
        reads=reads,
        bytes=sum(each.bytes for each in depths),
        seconds=max(each.seconds for each in depths),
        reads_per_s=sum(each.reads_per_s for each in depths),
        bytes_per_s=sum(each.bytes_per_s for each in depths),
        window_reads_per_s=[
            sum(each.window_reads_per_s[at] for each in depths) for at in range(windows)
        ],
        window_bytes_per_s=[
            sum(each.window_bytes_per_s[at] for each in depths) for at in range(windows)
        ],
        latency_mean_s=sum(known) / reads if len(known) == len(depths) and reads else None,
        latency_p50_s=_largest([each.latency_p50_s for each in depths]),
        latency_p99_s=_largest([each.latency_p99_s for each in depths]),
        latency_p999_s=_largest([each.latency_p999_s for each in depths]),
        client_cpu_share=_largest([each.client_cpu_share for each in depths]),
        used=min(given, max(each.used for each in depths) * len(depths)),
        throttled=sum(each.throttled for each in depths),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known: then the largest is not known either."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
