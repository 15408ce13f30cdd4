"""``iobench probe``: the storage curve of each kind of request, its knee and its plateau."""

from __future__ import annotations

import math
from dataclasses import replace

from ..base.text import capital
from ..base.units import counted, format_bytes, format_count, format_rate
from ..judge.figures.curve import FLATTENED, highest, is_known, is_near, spent
from ..record.curve import CurvePoint, Operation, ProbeHost, Rate, Spent, StorageCurve, StorageProbe
from ..record.run import TrainingRecord
from .figures import (
    ENDS,
    MAX_BARS,
    TableOf,
    evenly,
    lacking,
    listed,
    picture,
    told,
    with_interval,
    word,
)
from .glance import ended
from .sections import Bars, Cell, Chart, FirstScreen, KeyFigure, Mark, Section, Table, joined
from .stages import BURST, is_burst

PACKED = "for example samples packed into shards"
IN_ORDER = "for example whole shards in order (reader.access=sequential)"
PACKED_REQUESTS = 2
"""Files that have more than so many requests each are taken for packed ones."""

UNCONFIRMED = "Faster points were short, and those with more reads in flight did not confirm them."


def sections(probe: StorageProbe) -> list[Section]:
    """What was found, a table for each curve, and each host."""
    packed = probe.bytes > PACKED_REQUESTS * probe.objects * probe.curves[0].request_bytes
    larger = IN_ORDER if packed else PACKED
    told = [
        _sentence(curve, which, larger)
        for curve, which in zip(probe.curves, probe.spent, strict=True)
    ]
    large = [probe.large] if probe.large is not None else []
    told += [_sentence(each, "unknown") for each in large]
    named = [(f"curve-{at}", each) for at, each in enumerate(probe.curves, 1)]
    named += [("curve-large", each) for each in large]
    told += _metadata_sentences(probe)
    points = [point for curve in (*probe.curves, *large) for point in curve.points]
    if again := sum(not point.disjoint for point in points):
        told.append(
            f"The data is small: {again} of {counted(len(points), 'point')} read bytes again, so a "
            "cache of the storage may have served them."
        )
    reads = sum(point.reads for point in points)
    if lost := sum(max(0, point.retries - point.throttled) for point in points):
        told.append(
            f"Beside {counted(reads, 'read')}, {counted(lost, 'request')} had to be sent again, "
            "after an error of the server or a lost connection. These pauses are in all figures."
        )
    notes = [*probe.notes, *dict.fromkeys(note for each in probe.metadata for note in each.notes)]
    for curve in (*probe.curves, *large):
        told_above = curve.plateau_reads_per_s is None or curve.stopped == FLATTENED
        stopped = [] if told_above else [f"ended, since {curve.stopped}"]
        notes += [f"{_requests(curve)}: {note}" for note in [*stopped, *curve.notes]]
    if any(point.latency_p999_s is None for point in points):
        notes.append("p99 needs 100 reads, and p99.9 needs 1,000")
    return joined(
        ended("This probe", probe.status),
        _first(probe, told),
        [_table(each, name) for name, each in named if each.points],
        _metadata(probe) if probe.metadata else None,
        _hosts(probe) if probe.hosts else None,
        listed("notes", "Notes", notes),
    )


def _first(probe: StorageProbe, told: list[str]) -> FirstScreen:
    """Reads/s over the reads in flight, and the plateau."""
    curve = probe.curves[0]
    few = evenly(curve.points, MAX_BARS)
    knees = {curve.knee_in_flight: "knee"}
    bars = [
        (f"{each.in_flight:,} in flight", each.reads_per_s.value, knees.get(each.in_flight, ""))
        for each in curve.points
        if each in few or each.in_flight in knees
    ]
    reads, there = curve.plateau_reads_per_s, curve.plateau_bytes_per_s
    gauges: tuple[KeyFigure, ...] = ()
    if reads is not None and there is not None:
        knee = f"with {format_count(curve.knee_in_flight or 0)} or more in flight"
        gauges = (
            KeyFigure("at most", format_rate(there.value), _requests(curve)),
            KeyFigure("reads/s", format_count(reads.value), knee),
        )
    what = f"dataset {probe.dataset}" if probe.dataset else counted(probe.objects, "object")
    return FirstScreen(
        job=f"Storage curve of {probe.url} ({what}, {format_bytes(probe.bytes)})",
        state="a plateau was reached" if reads else "no plateau was reached",
        sentences=tuple(told),
        gauges=gauges,
        picture=picture(f"Throughput: {_requests(curve)}", bars, _told),
    )


def _told(reads_per_s: float) -> str:
    return f"{format_count(reads_per_s)} reads/s"


ASKED: dict[Operation, str] = {"open": "opens", "stat": "stats", "list": "listings"}


def _metadata_sentences(probe: StorageProbe) -> list[str]:
    """``Metadata: 12,300 opens/s, 15,000 stats/s; listings of 210,000 entries/s.``"""
    rates, client = {}, []
    for curve in probe.metadata:
        if (best := highest(curve.points)) is not None:
            rate = best.bytes_per_s if curve.operation == "list" else best.reads_per_s
            least = "at least " if best.client else ""
            rates[curve.operation] = f"{least}{format_count(rate.value)}"
            client += [ASKED[curve.operation]] if best.client else []
    parts = [f"{rates[each]} {ASKED[each]}/s" for each in ("open", "stat") if each in rates]
    parts += [f"listings of {rates['list']} entries/s"] if "list" in rates else []
    told = [f"Metadata, without reading: {', '.join(parts)}."] if parts else []
    if client:
        told.append(f"This program limits the {' and '.join(client)}, and not the storage.")
    return told


def _metadata(probe: StorageProbe) -> Table:
    """A row for each operation: alone, and at its best."""
    rows = TableOf(probe.metadata)
    rows.add("operation", of=lambda each: word(ASKED[each.operation], each.operation))

    def alone(curve: StorageCurve) -> float | None:
        return curve.points[0].latency_p50_s if curve.points else None

    def most(curve: StorageCurve) -> Cell:
        best = highest(curve.points)
        return lacking(curve.not_measured) if best is None else _reads(best)

    def entries(curve: StorageCurve) -> float | None:
        best = highest(curve.points) if curve.operation == "list" else None
        return None if best is None else best.bytes_per_s.value

    rows.add("latency_p50_s", "p50 alone", of=alone)
    rows.add("most_per_s", "most/s, 95 % interval", "count", most)
    rows.add("in_flight", "in flight", "count", _best_in_flight)
    rows.add("entries_per_s", "entries/s", "count", entries, missing="")
    title = "Opens, stats and listings without reads, by threads of this process"
    return rows.made("metadata", title)


def _best_in_flight(curve: StorageCurve) -> int | None:
    """The fewest in flight that reach the most."""
    best = highest(curve.points)
    return curve.knee_in_flight or (best.in_flight if best is not None else None)


def _hosts(probe: StorageProbe) -> Table:
    """What each host got together with the others and alone, the slowest first."""
    rows = TableOf(sorted(probe.hosts, key=lambda each: each.joint_reads_per_s.value))
    rows.add("host", "host", of=lambda each: each.name)
    rows.add("in_flight", "in flight", "count")
    for how, label in (("joint", "all"), ("alone", "alone")):
        rows.add_each({f"{how}_reads_per_s": f"reads/s, {label}"}, "count", _value)
        rows.add_each({f"{how}_bytes_per_s": f"bytes/s, {label}"}, of=_value)
        rows.add(f"{how}_latency_p50_s", f"p50, {label}")
    missing = sorted({host.not_measured for host in probe.hosts if host.not_measured})
    return rows.made(
        "hosts",
        f"Each of {len(probe.hosts)} hosts while all read, and alone; the slowest first",
        notes=[f"not measured alone: {why}" for why in missing],
    )


def _value(host: ProbeHost, name: str) -> float | None:
    rate: Rate | None = getattr(host, name)
    return None if rate is None else rate.value


def curve_section(doc: TrainingRecord) -> Table | None:
    """The curve of a run's own requests, with the mark where the run works on it."""
    found = doc.job.curve
    if found is None or not found.curve.points:
        return None
    notes = told(
        _sentence(found.curve, spent(found.curve, found.large, found.opens), larger_reads(doc)),
        found.not_measured,
        is_burst(doc) and f"its rates were {BURST}",
    )
    table = _table(found.curve, "curve", found.in_flight)
    return replace(table, notes=(*notes, *found.curve.notes))


def larger_reads(doc: TrainingRecord) -> str:
    """How the run's own dataset can be read in larger requests."""
    data, loader = doc.job.dataset, doc.job.loader
    if not data.samples or not data.shards or data.samples <= data.shards:
        return PACKED
    if (loader.access or doc.job.workload.reader.access) == "random":
        return IN_ORDER
    return "for example larger blocks (reader.block_size)"


def _charts(curve: StorageCurve, in_flight: float | None) -> tuple[Chart, ...]:
    """Throughput and latency over the reads in flight."""
    requests, knee = _requests(curve), curve.knee_in_flight
    marks = [Mark(at=knee, label="knee")] if knee else []
    marks += [Mark(at=in_flight, label="your job works here")] if in_flight else []
    rate = Chart(
        kind="lines",
        x="in_flight",
        y=("reads_per_s",),
        title=f"Throughput: {requests}",
        x_label="reads in flight",
        marks=tuple(marks),
        log="x",
    )
    times = ("latency_p50_s", "latency_p99_s", "latency_p999_s")
    title = f"Latency of a read: {requests}"
    return rate, replace(rate, y=times, title=title, y_label="time of one read", log="xy")


def _requests(curve: StorageCurve) -> str:
    """What is read: ``random reads of 128 KiB``."""
    size = format_bytes(curve.request_bytes)
    if curve.request_bytes_min < curve.request_bytes_max:
        low, high = format_bytes(curve.request_bytes_min), format_bytes(curve.request_bytes_max)
        size = f"{low} to {high} (median {size})"
    return f"{curve.order} reads of {size}"


def _sentence(curve: StorageCurve, which: Spent, larger: str = PACKED) -> str:
    """The plateau, the knee, and what is spent there; or why there is no plateau.

    ``larger``: how larger requests are made.
    """
    requests = capital(_requests(curve))
    reads, there, knee = curve.plateau_reads_per_s, curve.plateau_bytes_per_s, curve.knee_in_flight
    if reads is None or there is None or knee is None:
        none, best = f"no plateau was reached, since {curve.not_measured}.", highest(curve.points)
        if best is None:
            return f"{requests}: {none}"
        told = _both(best.reads_per_s, best.bytes_per_s)
        text = f"{requests}: at least {told} with {best.in_flight} in flight. N{none[1:]}"
        faster = any(best.bytes_per_s.value < each.bytes_per_s.value for each in curve.points)
        return text + f" {UNCONFIRMED}" * faster
    text = f"{requests}: {_both(reads, there)} with {knee} or more in flight."
    if any(point.client for point in curve.points if point.in_flight >= knee):
        return f"{text} The CPU of this host is spent there, so the storage may be faster."
    if which == "operations":
        text += " Its operations/s are spent and its bandwidth is not."
        return f"{text} Larger requests get more bytes/s, {larger}."
    if which == "metadata":
        text += " Opening the files takes as long as all of these reads."
        return f"{text} Fewer files get more bytes/s, {larger}."
    return f"{text} Its bandwidth is spent there." if which == "bandwidth" else text


def _both(reads: Rate, there: Rate) -> str:
    return f"{_told(reads.value)} and {format_rate(there.value)}"


def _mark(curve: StorageCurve, point: CurvePoint, in_flight: float | None = None) -> str:
    """What is special about a point. ``in_flight``: of a job, marked at the nearest point."""
    knee = curve.knee_in_flight
    marks = ["knee"] if point.in_flight == knee else []
    on_plateau = knee is not None and point.in_flight > knee and is_near(point, curve.points)
    marks += ["plateau"] if on_plateau else []
    marks += ["client"] if point.client else []
    if in_flight and point is min(
        curve.points, key=lambda each: abs(math.log(each.in_flight / in_flight))
    ):
        exact = point.in_flight == in_flight
        marks.append("your job works here" + ("" if exact else f" ({format_count(in_flight)})"))
    return ", ".join(marks)


def _reads(point: CurvePoint) -> Cell:
    """The reads/s with their interval, if it tells something."""
    rate = point.reads_per_s
    cell = with_interval(rate.value, rate.low, rate.high, format_count)
    return cell if is_known(rate) else replace(cell, text=format_count(rate.value))


def _bytes(point: CurvePoint) -> Cell:
    """The bytes/s, whose interval charts and data show."""
    rate = point.bytes_per_s
    return Cell(value=rate.value, text=format_rate(rate.value), low=rate.low, high=rate.high)


def _table(curve: StorageCurve, name: str, in_flight: float | None = None) -> Table:
    rows, bound = TableOf(curve.points), dict(zip(map(id, curve.points), curve.bound, strict=True))
    rows.data("request_bytes", "order", "by", "direct", each=lambda _, name: getattr(curve, name))
    rows.add("in_flight", "in flight", "count")
    rows.add("reads_per_s", "reads/s, 95 % interval", "count", _reads, ends=ENDS)
    rows.add("bytes_per_s", "bytes/s", of=_bytes, ends=ENDS)
    rows.data("latency_mean_s")
    rows.add_each({"latency_p50_s": "p50", "latency_p99_s": "p99", "latency_p999_s": "p99.9"})
    rows.data("reads", "seconds", "disjoint", "client_cpu_share", "retries", "throttled")
    rows.add("bound", "bound by", of=lambda each: bound[id(each)], where="pages")
    rows.data("mark", of=lambda each: _mark(curve, each))
    return rows.made(
        name,
        f"{capital(_requests(curve))}, by {curve.how}",
        mark=lambda each: _mark(curve, each, in_flight),
        bars=Bars(column="reads_per_s", full=max(each.reads_per_s.value for each in curve.points)),
        charts=_charts(curve, in_flight),
    )
