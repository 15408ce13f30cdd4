"""``iobench probe``: the storage curve of each kind of request, its knee and its plateau."""

from __future__ import annotations

import math
from dataclasses import replace

from ..base.units import counted, format_bytes, format_count, format_rate
from ..judge.figures.curve import FLATTENED, highest, is_known, is_near, spent
from ..record.curve import CurvePoint, Rate, Spent, StorageCurve, StorageProbe
from ..record.run import TrainingRecord
from .figures import (
    MAX_BARS,
    Format,
    ends,
    evenly,
    figures,
    filled,
    items_of,
    picture,
    raw,
    side_by_side,
    spread,
    word,
    words,
)
from .sections import (
    Bars,
    Cell,
    Chart,
    Column,
    FirstScreen,
    Headline,
    Items,
    KeyFigure,
    Mark,
    Row,
    Section,
    Table,
)
from .stages import BURST, is_burst

_TOO_FEW = "-"
"""For a percentile that would be the slowest read of all: fewer than 100 or 1,000 reads."""


PACKED = "for example samples packed into shards"


def sections(probe: StorageProbe) -> list[Section]:
    """What was found, a table for each curve, and a table of all points for data."""
    what = f"dataset {probe.dataset}" if probe.dataset else counted(probe.objects, "object")
    told = [_sentence(curve, which) for curve, which in zip(probe.curves, probe.spent, strict=True)]
    if probe.large is not None:
        told.append(_sentence(probe.large, "unknown"))
    found: list[Section] = [
        _first(probe, told),
        Headline(
            id="storage-curve",
            title=f"Storage curve of {probe.url} ({what}, {format_bytes(probe.bytes)})",
            sentences=tuple(told),
        ),
    ]
    for number, curve in enumerate(probe.curves, start=1):
        found += [_table(curve, f"curve-{number}")] if curve.points else []
    if probe.large is not None and probe.large.points:
        found.append(_table(probe.large, "curve-large"))
    if probe.hosts:
        found.append(_hosts(probe))
    everything = [*probe.curves, *([probe.large] if probe.large else [])]
    found.append(_data(everything))
    notes = list(probe.notes)
    for curve in everything:
        about = _requests(curve)
        told_above = curve.plateau_reads_per_s is None or curve.stopped == FLATTENED
        ends = [] if told_above else [f"ended, since {curve.stopped}"]
        notes += [f"{about}: {note}" for note in [*ends, *curve.notes]]
    if any(point.latency_p999_s is None for curve in everything for point in curve.points):
        notes.append("p99 needs 100 reads, and p99.9 needs 1,000")
    found.append(Items(id="notes", title="Notes", items=items_of(notes)))
    return found


def _first(probe: StorageProbe, told: list[str]) -> FirstScreen:
    """The first screen of a page: reads/s over the reads in flight, and the plateau."""
    curve = probe.curves[0]
    few = evenly(curve.points, MAX_BARS)
    bars = [
        (
            f"{point.in_flight:,} in flight",
            point.reads_per_s.value,
            f"{format_count(point.reads_per_s.value)} reads/s",
            "knee" if point.in_flight == curve.knee_in_flight else "",
        )
        for point in curve.points
        if point in few or point.in_flight == curve.knee_in_flight
    ]
    reads, there = curve.plateau_reads_per_s, curve.plateau_bytes_per_s
    gauges = []
    if reads is not None and there is not None:
        gauges.append(
            KeyFigure(label="at most", value=format_rate(there.value), note=_requests(curve))
        )
        knee = f"with {format_count(curve.knee_in_flight or 0)} or more in flight"
        gauges.append(KeyFigure(label="reads/s", value=format_count(reads.value), note=knee))
    return FirstScreen(
        job=f"Storage curve of {probe.url}",
        state="a plateau was reached" if reads else "no plateau was reached",
        sentences=tuple(told),
        gauges=tuple(gauges),
        picture=picture(f"Throughput: {_requests(curve)}", bars),
        instead="storage-curve",
    )


def _hosts(probe: StorageProbe) -> Table:
    """What each host got together with the others and alone, the slowest first."""
    hosts = sorted(probe.hosts, key=lambda each: each.joint_reads_per_s.value)
    joint = [(each.joint_reads_per_s, each.joint_bytes_per_s) for each in hosts]
    alone = [(each.alone_reads_per_s, each.alone_bytes_per_s) for each in hosts]
    columns, rows = side_by_side(
        words("host", "host", [each.name for each in hosts]),
        figures("in_flight", "in flight", "count", [each.in_flight for each in hosts]),
        figures("joint_reads_per_s", "reads/s, all", "count", [each.value for each, _ in joint]),
        figures("joint_bytes_per_s", "bytes/s, all", "bytes/s", [each.value for _, each in joint]),
        figures(
            "joint_latency_p50_s", "p50, all", "s", [each.joint_latency_p50_s for each in hosts]
        ),
        figures(
            "alone_reads_per_s",
            "reads/s, alone",
            "count",
            [each.value if each else None for each, _ in alone],
        ),
        figures(
            "alone_bytes_per_s",
            "bytes/s, alone",
            "bytes/s",
            [each.value if each else None for _, each in alone],
        ),
        figures(
            "alone_latency_p50_s", "p50, alone", "s", [each.alone_latency_p50_s for each in hosts]
        ),
    )
    missing = {host.not_measured for host in probe.hosts if host.not_measured}
    return Table(
        id="hosts",
        title=f"Each of {len(probe.hosts)} hosts while all read, and alone; the slowest first",
        columns=columns,
        rows=rows,
        notes=tuple(f"not measured alone: {why}" for why in sorted(missing)),
    )


def curve_sections(doc: TrainingRecord) -> list[Section]:
    """The curve of a run's own requests, with the mark where the run works on it."""
    found = doc.job.curve
    if found is None or not found.curve.points:
        return []
    told = [_sentence(found.curve, spent(found.curve, found.large), larger_reads(doc))]
    told += [found.not_measured] if found.not_measured else []
    told += [f"its rates were {BURST}"] if is_burst(doc) else []
    table = _table(found.curve, "curve", found.in_flight)
    return [replace(table, notes=(*told, *found.curve.notes))]


def larger_reads(doc: TrainingRecord) -> str:
    """How the run's own dataset can be read in larger requests."""
    data, loader = doc.job.dataset, doc.job.loader
    if not data.samples or not data.shards or data.samples <= data.shards:
        return PACKED
    if (loader.access or doc.job.workload.reader.access) == "random":
        return "for example whole shards in order (reader.access=sequential)"
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
    latency = replace(
        rate,
        y=("latency_p50_s", "latency_p99_s", "latency_p999_s"),
        title=f"Latency of a read: {requests}",
        y_label="time of one read",
        log="xy",
    )
    return (rate, latency)


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
    requests = _requests(curve)
    requests = requests[0].upper() + requests[1:]
    reads, there, knee = (
        curve.plateau_reads_per_s,
        curve.plateau_bytes_per_s,
        curve.knee_in_flight,
    )
    if reads is None or there is None or knee is None:
        best = highest(curve.points)
        if best is None:
            return f"{requests}: no plateau was reached, since {curve.not_measured}."
        return (
            f"{requests}: at least {_ends(best.reads_per_s, format_count)} reads/s and "
            f"{_ends(best.bytes_per_s, format_rate)} with {best.in_flight} in flight; no plateau "
            f"was reached, since {curve.not_measured}."
        )
    text = (
        f"{requests}: {_ends(reads, format_count)} reads/s and {_ends(there, format_rate)} "
        f"with {knee} or more in flight."
    )
    if any(point.client for point in curve.points if point.in_flight >= knee):
        return f"{text} The CPU of this host is spent there, so the storage may be faster."
    if which == "operations":
        return (
            f"{text} Its operations/s are spent and its bandwidth is not: larger requests get more "
            f"bytes/s, {larger}."
        )
    return f"{text} Its bandwidth is spent there." if which == "bandwidth" else text


def _ends(rate: Rate, show: Format) -> str:
    if rate.low is None or rate.high is None or not is_known(rate):
        return show(rate.value)
    return spread(rate.value, rate.low, rate.high, show)


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


def _interval(rate: Rate) -> Cell:
    if rate.low is None or rate.high is None or not is_known(rate):
        return Cell(value=None, text=_TOO_FEW)
    return word(ends(rate.low, rate.high, format_count))


def _rate(rate: Rate) -> Cell:
    return Cell(value=rate.value, text=format_count(rate.value), low=rate.low, high=rate.high)


def _table(curve: StorageCurve, name: str, in_flight: float | None = None) -> Table:
    points = curve.points
    rates = [_rate(each.reads_per_s) for each in points]
    intervals = [_interval(each.reads_per_s) for each in points]
    columns, rows = side_by_side(
        figures("in_flight", "in flight", "count", [each.in_flight for each in points]),
        filled("reads_per_s", "reads/s", rates, unit="count", align="right"),
        filled("interval", "95 % interval", intervals, align="right"),
        figures("bytes_per_s", "bytes/s", "bytes/s", [each.bytes_per_s.value for each in points]),
        figures("latency_p50_s", "p50", "s", [each.latency_p50_s for each in points]),
        figures("latency_p99_s", "p99", "s", [each.latency_p99_s for each in points]),
        figures("latency_p999_s", "p99.9", "s", [each.latency_p999_s for each in points]),
        words("bound", "bound by", curve.bound, where="pages"),
        marks=[_mark(curve, each, in_flight) for each in points],
    )
    full = max((point.reads_per_s.value for point in curve.points), default=0.0)
    requests = _requests(curve)
    return Table(
        id=name,
        title=f"{requests[0].upper()}{requests[1:]}, by {curve.how}",
        columns=columns,
        rows=rows,
        bars=Bars(column="reads_per_s", full=full),
        charts=_charts(curve, in_flight),
    )


def _data(curves: list[StorageCurve]) -> Table:
    """Every point of every curve, for CSV."""
    columns = (
        ("request_bytes", "bytes"),
        ("order", ""),
        ("by", ""),
        ("direct", ""),
        ("in_flight", "count"),
        *((f"reads_per_s{part}", "count") for part in ("", "_low", "_high")),
        *((f"bytes_per_s{part}", "bytes/s") for part in ("", "_low", "_high")),
        *((f"latency_{part}_s", "s") for part in ("mean", "p50", "p99", "p999")),
        ("reads", "count"),
        ("seconds", "s"),
        ("disjoint", ""),
        ("client_cpu_share", "share"),
        ("throttled", "count"),
        ("bound", ""),
        ("mark", ""),
    )
    rows = []
    for curve in curves:
        for point, bound in zip(curve.points, curve.bound, strict=True):
            reads, there = point.reads_per_s, point.bytes_per_s
            values = (
                *(curve.request_bytes, curve.order, curve.by, curve.direct, point.in_flight),
                *(reads.value, reads.low, reads.high, there.value, there.low, there.high),
                *(point.latency_mean_s, point.latency_p50_s),
                *(point.latency_p99_s, point.latency_p999_s),
                *(point.reads, point.seconds, point.disjoint, point.client_cpu_share),
                *(point.throttled, bound, _mark(curve, point)),
            )
            rows.append(Row(cells=tuple(raw(value) for value in values)))
    return Table(
        id="points",
        columns=tuple(Column(name=name, unit=unit) for name, unit in columns),
        rows=tuple(rows),
        where="data",
    )
