"""The story of ``iobench probe``: a curve for each kind of request, and one of large requests.

Of several hosts it is a curve of all together, and what each of them reads alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...base.errors import StorageError, UsageError, in_option
from ...base.units import counted, format_bytes, format_duration, parse_size
from ...host.fio_depth import Depth
from ...judge.figures.curve import conclude_curve, rate_of, spent
from ...record.curve import Operation, ProbeHost, ProbeStatus, StorageCurve, StorageProbe
from ...settings.base import head
from ...storage.base import Entry, Storage
from ...storage.scratch import scratch
from ..budget import Budget
from ..hosts.hosts import Hosts
from ..options import Observer
from .curve import (
    MAX_POINT_S,
    MIN_POINT_S,
    CurveMeasurement,
    Limits,
    curve_of,
    operations,
    overhead_s,
    requests_opened,
)
from .places import Places, blocks, samples
from .target import Target

ALONE_SHARE = 0.25
"""Share of the time of a probe that is kept for the hosts alone."""


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve:
    """A curve of all hosts, and what each of them read at each of its points."""

    curve: StorageCurve
    places: Places
    points: Sequence[Sequence[Depth]]


def each_host(
    joint: MeasuredCurve,
    hosts: Hosts,
    storage: Storage,
    limits: Limits,
    *,
    run_dir: Path,
    observer: Observer,
) -> list[ProbeHost]:
    """What each host read at the knee of the joint curve, or at its highest point, and alone.

    Alone, one after the other, the hosts have as many reads in flight as they had there, as far as
    ``limits`` leave time. ``joint.curve`` is concluded. What they read was not read before, as long
    as such bytes are left.
    """
    points = joint.curve.points
    if not points or not joint.points:  # nothing was read, or by one host alone
        return []
    best = max(range(len(points)), key=lambda at: points[at].reads_per_s.value)
    knee = joint.curve.knee_in_flight
    chosen = next((at for at, each in enumerate(points) if each.in_flight == knee), best)
    in_flight = points[chosen].in_flight // len(joint.points[chosen])
    found = []
    for number, depth in enumerate(joint.points[chosen]):
        host = ProbeHost(
            name=hosts.names[number],
            in_flight=in_flight,
            joint_reads_per_s=rate_of(depth.reads_per_s, depth.window_reads_per_s),
            joint_bytes_per_s=rate_of(depth.bytes_per_s, depth.window_bytes_per_s),
            joint_latency_p50_s=depth.latency_p50_s,
        )
        if not limits.budget.fits(limits.point_s + overhead_s(storage)):
            host.not_measured = f"the time was used up; a longer {limits.time_option} allows it"
        else:
            observer.phase(f"{host.name} alone, {in_flight} in flight")
            alone = CurveMeasurement(
                storage,
                joint.places,
                replace(limits, first=in_flight, max_in_flight=in_flight),
                run_dir=run_dir,
                reader=hosts.reader(
                    storage, joint.places, name="alone", run_dir=run_dir, members=[number]
                ),
            ).run()
            _add_alone(host, alone)
        found.append(host)
    return found


def _add_alone(host: ProbeHost, alone: StorageCurve) -> None:
    host.not_measured = alone.not_measured if not alone.points else ""
    for point in alone.points:
        host.alone_reads_per_s, host.alone_bytes_per_s = point.reads_per_s, point.bytes_per_s
        host.alone_latency_p50_s = point.latency_p50_s


DEFAULT_REQUEST = 128 << 10
MIN_REQUEST, MAX_REQUEST = 512, 64 << 20
MAX_REQUESTS = 8
MAX_IN_FLIGHT = 256
SAMPLE_BLOCK = 4 << 20
"""Bytes of the largest request for a part of a sample, as ``reader.block_size`` has it."""

_LARGER = (4 << 20, 1 << 20, 256 << 10, 64 << 10)
_SMALL_BYTES = 4 << 10
_APART = 4
"""Sizes that the second curve's requests may have. They are so many times as large as the other
ones, or so many times smaller.
"""

_LARGE_PLACES = 16
_LARGE_READS = 16
"""Larger requests need that many places in the data, and that many of them are read in a second."""

_MIN_POINTS, _FEW_POINTS = 3, 5
_ENOUGH_S = 0.5
"""Points have this time rather than that there are more than ``_FEW_POINTS``: a limit of operations
or bytes that gives its share in parts, as the kernel's does each 100 ms, gave up to 1.7 times its
rate in 0.1 s.
"""

_SEED = 42


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """A probe with all decisions made. ``requests``: bytes; None stands for a dataset's samples.

    ``second``: requests of another size tell operations from bytes, see ``second_requests``.
    ``metadata``: what is asked for without reading. ``measuring_s``: what the start of the process
    left of the budget, or the least that the curves take.
    """

    target: Target
    requests: Sequence[int | None]
    second: bool
    max_in_flight: int
    budget_s: float
    measuring_s: float
    point_s: float
    hosts: int = 1  # that read together; ``max_in_flight`` is of each
    metadata: tuple[Operation, ...] = ()

    @property
    def curves(self) -> int:
        return len(self.requests) + self.second + len(self.metadata)

    @property
    def curves_s(self) -> float:
        """The seconds of all curves; what is left is for the hosts alone, where there are some."""
        return self.measuring_s * self.curves_share

    @property
    def curves_share(self) -> float:
        return 1 - ALONE_SHARE if self.hosts > 1 else 1

    @property
    def most_points(self) -> int:
        """Points of one curve, if no two doublings end it earlier."""
        return math.ceil(math.log2(self.max_in_flight)) + 1

    @property
    def usual_s(self) -> float:
        """Seconds of all points, if no two doublings end a curve earlier."""
        whole_s = self.point_s + overhead_s(self.target.storage)
        return self.curves * self.most_points * whole_s

    def announcement(self) -> str:
        """What will be done and how long it takes at most, in one line."""
        usual = self.usual_s
        most = f"at most {format_duration(self.budget_s)}"
        over = f" by {self.hosts} hosts together" if self.hosts > 1 else ""
        takes = (
            f"about {format_duration(usual)}, {most}" if usual < 0.9 * self.measuring_s else most
        )
        return (
            f"probe of {self.target.url}{over}: {counted(self.curves, 'curve')} of at most "
            f"{counted(self.most_points, 'point')}, {format_duration(self.point_s)} each, takes "
            f"{takes}"
        )


def plan_probe(
    target: Target,
    requests: Sequence[int],
    *,
    max_in_flight: int,
    budget: Budget,
    hosts: int = 1,
    metadata: bool = False,
) -> ProbePlan:
    """Decide what is measured, and how long. ``requests``: bytes; none: what suits the data.

    ``metadata``: opens, stats and listings are measured, too. Raises UsageError for a request that
    the data can't serve, for metadata of several hosts, and for too short a time.
    """
    storage = target.storage
    if metadata and hosts > 1:
        raise UsageError(
            "--metadata measures one host, and this is a job of several",
            remedy="leave --metadata out, or use this host alone: --hosts here",
        )
    largest = max(entry.size for entry in target.objects)
    for size in requests:
        if size % storage.alignment:
            raise UsageError(
                f"--request {format_bytes(size)}: reads with O_DIRECT need a multiple of "
                f"{storage.alignment} bytes"
            )
        if size > largest:
            raise UsageError(
                f"--request {format_bytes(size)}: the largest object at {target.url} has "
                f"{format_bytes(largest)}",
                remedy="use a smaller --request, or name a place with larger files",
            )
    chosen: list[int | None] = list(requests)
    if not chosen:
        chosen = [None] if target.manifest else [DEFAULT_REQUEST]
    overhead = overhead_s(storage)
    plan = ProbePlan(
        target=target,
        requests=chosen,
        second=_second(target, chosen) is not None,
        max_in_flight=max_in_flight,
        budget_s=budget.seconds or 0.0,
        measuring_s=budget.left_s,
        point_s=0.0,
        hosts=hosts,
        metadata=operations(storage) if metadata else (),
    )
    least = plan.curves * min(_MIN_POINTS, plan.most_points) * (MIN_POINT_S + overhead)
    least_s = least / plan.curves_share
    if plan.budget_s < least_s:
        raise UsageError(
            f"--budget {format_duration(plan.budget_s)} is too short for "
            f"{counted(plan.curves, 'curve')}",
            remedy=f"give at least {format_duration(math.ceil(least_s))}",
        )
    plan = replace(plan, measuring_s=max(plan.measuring_s, least_s))
    each = plan.curves_s / (plan.curves * plan.most_points) - overhead
    few = plan.curves_s / (plan.curves * min(_FEW_POINTS, plan.most_points)) - overhead
    each = max(each, min(_ENOUGH_S, few))
    return replace(plan, point_s=min(MAX_POINT_S, max(MIN_POINT_S, each)))


def run_probe(
    plan: ProbePlan,
    *,
    command: Sequence[str],
    observer: Observer,
    hosts: Hosts,
) -> StorageProbe:
    """Measure all curves. ``observer`` hears what is measured next.

    If there are several ``hosts``, each has an equal part of the reads in flight, and at the end
    each reads alone. An interrupt ends the probe, which says so, with what was measured until then.
    Raises StorageError if even one read at a time fails for all requests, and KeyboardInterrupt if
    nothing was measured yet.
    """
    with scratch("probe") as folder:
        probe = _Probe(plan, observer, hosts, folder)
        try:
            probe.run()
        except KeyboardInterrupt:
            if not any(each.curve.points for each in probe.measured):
                raise
            probe.status = "interrupted"
        finally:
            plan.target.storage.close()
    return probe.concluded(command)


class _Probe:
    """The curves of a probe, one after the other, which share its time."""

    def __init__(self, plan: ProbePlan, observer: Observer, hosts: Hosts, folder: Path) -> None:
        self.plan, self.target = plan, plan.target
        self.observer, self.hosts, self.folder = observer, hosts, folder
        self.budget = Budget(seconds=plan.measuring_s, end_s=0.0)
        self.of_curves = replace(self.budget, seconds=plan.curves_s)
        self.left = plan.curves  # that are still to come
        self.measured: list[MeasuredCurve] = []
        self.second: StorageCurve | None = None
        self.metadata: list[StorageCurve] = []
        self.alone: list[ProbeHost] = []
        self.notes = list(self.target.notes)
        self.status: ProbeStatus = "ok"

    def run(self) -> None:
        """Measure. Raises StorageError if even one read at a time fails for all requests."""
        plan, target = self.plan, self.target
        for size in plan.requests:
            self._measure(_places(target, size), self.measured.append)
        curves = [each.curve for each in self.measured]
        if not any(curve.points for curve in curves):
            raise StorageError(curves[0].not_measured)
        if plan.second:
            fastest = max(best_bytes_per_s(curve) for curve in curves)
            second = _second(target, plan.requests, bytes_per_s=fastest)
            if second is not None:
                self._measure(second, self._keep_second)
        else:
            self.notes.append(
                "requests of another size were not measured, since the objects are too few or too "
                "small for larger ones; so operations and bytes can't be told apart"
            )
        for operation in plan.metadata:
            self.metadata.append(self._ask(operation))
        self.alone = each_host(
            replace(self.measured[0], curve=conclude_curve(self.measured[0].curve)),
            self.hosts,
            target.storage,
            Limits(max_in_flight=1, point_s=plan.point_s, budget=self.budget),
            run_dir=self.folder / "alone",
            observer=self.observer,
        )

    def _next_limits(self) -> Limits:
        """Those of the next curve: all that are left have the same share of the time."""
        plan, share_s = self.plan, self.of_curves.left_s / self.left
        self.left -= 1
        return Limits(
            max_in_flight=plan.max_in_flight * plan.hosts,
            point_s=plan.point_s,
            budget=Budget(seconds=share_s, end_s=0.0),
            first=plan.hosts,
        )

    def _keep_second(self, found: MeasuredCurve) -> None:
        self.second = found.curve

    def _measure(self, places: Places, keep: Callable[[MeasuredCurve], None]) -> None:
        """Measure a curve, and keep it, also if an interrupt ends it."""
        what = f"{places.order} reads of {format_bytes(places.median_bytes)}"
        limits, storage = self._next_limits(), self.target.storage
        run_dir = self.folder / str(self.left)
        reader = self.hosts.reader(storage, places, name=str(self.left), run_dir=run_dir)
        measurement = CurveMeasurement(
            storage,
            places,
            limits,
            run_dir=run_dir,
            tell=lambda in_flight: self.observer.phase(f"{what}, {in_flight} in flight"),
            reader=reader,
        )
        stopped = "the probe was interrupted"
        try:
            stopped = measurement.points_until()
        finally:
            curve = measurement.so_far(stopped)
            keep(MeasuredCurve(curve=curve, places=places, points=reader.points))

    def _ask(self, operation: Operation) -> StorageCurve:
        what = "listings" if operation == "list" else f"{operation}s"
        return curve_of(
            operation,
            self.target.storage,
            self.target.objects,
            self._next_limits(),
            run_dir=self.folder,
            seed=_SEED,
            tell=lambda in_flight: self.observer.phase(f"{what}, {in_flight} in flight"),
        )

    def concluded(self, command: Sequence[str]) -> StorageProbe:
        """The record of what was measured, with what follows from it."""
        target, second = self.target, conclude_curve(self.second) if self.second else None
        opens = next((each for each in self.metadata if each.operation == "open"), None)
        opening = [
            opens if requests_opened(target.storage, each.places) else None
            for each in self.measured
        ]
        curves = [
            conclude_curve(each.curve, second, of)
            for each, of in zip(self.measured, opening, strict=True)
        ]
        return StorageProbe(
            **head(command),
            status=self.status,
            url=target.storage.url,
            dataset=target.manifest.spec.name if target.manifest else None,
            objects=len(target.objects),
            bytes=sum(entry.size for entry in target.objects),
            budget_s=self.plan.budget_s,
            took_s=self.budget.used_s,
            curves=curves,
            large=second,
            metadata=self.metadata,
            spent=[spent(each, second, of) for each, of in zip(curves, opening, strict=True)],
            hosts=self.alone,
            notes=self.notes,
        )


def second_requests(
    objects: Sequence[Entry], usual: float, *, bytes_per_s: float = math.inf, seed: int
) -> Places | None:
    """Requests of another size than the ``usual`` bytes, to tell operations from bytes.

    They are larger and sequential, and as large as storage of ``bytes_per_s`` serves quickly: with
    a few reads in a second, a rate is not known well enough. Where no larger ones are quick, or the
    objects have too few places for them, they are small and in random order. None if the usual ones
    are small themselves and the objects are, too; this does not depend on ``bytes_per_s``.
    """
    larger = [
        size
        for size in _LARGER
        if size >= _APART * usual and sum(entry.size // size for entry in objects) >= _LARGE_PLACES
    ]
    quick = [size for size in larger if size * _LARGE_READS <= bytes_per_s * MAX_POINT_S]
    if not quick and usual >= _APART * _SMALL_BYTES:
        return blocks(objects, _SMALL_BYTES, order="random", seed=seed)
    found = (quick or larger[-1:])[:1]
    return blocks(objects, found[0], order="sequential", seed=seed) if found else None


def best_bytes_per_s(curve: StorageCurve) -> float:
    """The highest bytes/s of a curve's points; 0 without any."""
    return max((point.bytes_per_s.value for point in curve.points), default=0.0)


def _second(
    target: Target, requests: Sequence[int | None], *, bytes_per_s: float = math.inf
) -> Places | None:
    """The requests of the second curve. ``requests`` are those of ProbePlan."""
    usual = target.manifest.mean_stored_bytes if target.manifest else DEFAULT_REQUEST
    smallest = min(usual if size is None else size for size in requests)
    return second_requests(target.objects, smallest, bytes_per_s=bytes_per_s, seed=_SEED)


def _places(target: Target, size: int | None) -> Places:
    if size is not None or target.manifest is None:
        chosen = DEFAULT_REQUEST if size is None else size
        return blocks(target.objects, chosen, order="random", seed=_SEED)
    return samples(
        target.manifest,
        max_bytes=SAMPLE_BLOCK,
        alignment=target.storage.alignment,
        seed=_SEED,
    )


def parse_requests(text: str) -> list[int]:
    """The sizes in ``4KiB,128KiB``, in bytes. Raises UsageError."""
    sizes = [in_option("--request", parse_size, part) for part in text.split(",")]
    if len(sizes) > MAX_REQUESTS or len(set(sizes)) < len(sizes):
        raise UsageError(f"--request takes up to {MAX_REQUESTS} different sizes, but is '{text}'")
    for size in sizes:
        if not MIN_REQUEST <= size <= MAX_REQUEST:
            raise UsageError(
                f"--request must be {format_bytes(MIN_REQUEST)} to {format_bytes(MAX_REQUEST)}, "
                f"but is {format_bytes(size)}"
            )
    return sizes
