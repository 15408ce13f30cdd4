"""``iobench whatif --hosts``: a recorded job on more hosts than were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import fmean

from ..analyse.capacity.hosts import PARTS, HostsPoint
from ..analyse.capacity.more_hosts import MARKED, HostsPrediction, LeftOut, MeasuredJob, Storms
from ..analyse.capacity.scaling import Band
from ..units import (
    counted,
    format_count,
    format_duration,
    format_factor,
    format_percent,
    percent_beside,
)
from .figures import BLANK, Format, figure, raw, word
from .sections import (
    Cell,
    Chart,
    Column,
    Headline,
    Item,
    Items,
    Mark,
    Row,
    Section,
    Table,
)

WAITS = {
    "accelerator": "the accelerator computes",
    "loader": "the loader's own time",
    "stragglers": "waiting for the slowest rank",
    "barrier": "the barrier itself",
    "storage": "waiting for storage",
    "network": "waiting for the hosts' networks",
    "host": "waiting for the hosts' own work",
}
"""The parts of a step, as a reader sees them."""

UNDECIDED = "inconclusive"


def sections(found: HostsPrediction) -> list[Section]:
    """The model's error, the answer, the figures over hosts, and where a step's time goes."""
    at = found.what_if
    runs = ", ".join(job.run_id for job in found.measured)
    title = (
        f"{counted(at.hosts, 'host')} with {counted(at.accelerators, 'accelerator')}, from "
        f"{counted(len(found.measured), 'run')}: {runs}"
    )
    parts: list[Section] = [
        Headline(id="cluster", title=title, sentences=(_error(found), _answer(found)))
    ]
    if found.leave_one_out:
        parts.append(_left_out(found.leave_one_out))
    parts += [_hosts(found), _step(at)]
    if found.storms is not None:
        parts.append(_storms(found.storms))
    parts.append(
        Items(
            id="bases",
            title="What the figures rest on",
            items=tuple(Item(text=basis) for basis in found.bases),
        )
    )
    return parts


def spread(found: Band, show: Format) -> str:
    """``1,900 [1,880, 1,910]``; without a value ``inconclusive [950, 1,910]``."""
    value = UNDECIDED if found.value is None else show(found.value)
    ends = show(found.low), show(found.high)
    if ends[0] == ends[1] == value:
        return value
    return f"{value} [{ends[0]}, {ends[1]}]"


def _in_words(found: Band, show: Format) -> str:
    if found.value is None:
        return f"between {show(found.low)} and {show(found.high)}"
    return spread(found, show)


def _cells(found: Band, show: Format) -> tuple[Cell, Cell, Cell]:
    """The figure, and for data its two ends; see ``_columns``."""
    text = spread(found, show)
    value = Cell(value=found.value, text=text, low=found.low, high=found.high)
    return value, raw(found.low), raw(found.high)


def _columns(name: str, label: str, unit: str) -> tuple[Column, Column, Column]:
    return (
        Column(name=name, label=label, unit=unit, align="right"),
        Column(name=f"{name}_low", unit=unit, where="data"),
        Column(name=f"{name}_high", unit=unit, where="data"),
    )


def _error(found: HostsPrediction) -> str:
    """The error on the measured numbers of hosts, each predicted from the others."""
    if not found.leave_one_out:
        return (
            f"The model's error on other numbers of hosts is not known: {found.no_leave_one_out}."
        )
    errors = [each.error for each in found.leave_one_out if each.error is not None]
    if not errors:
        return "The model's error is not known: the runs that are left do not tell one rate."
    largest = max(errors, key=abs)
    return (
        f"The model's error on the measured points, each left out in turn: at most "
        f"{'+' if largest >= 0 else '-'}{format_percent(abs(largest))} ({len(errors)} points)."
    )


def _answer(found: HostsPrediction) -> str:
    at, required = found.what_if, found.required
    fed = {
        True: "enough",
        False: "too little",
        None: "perhaps too little",
    }[at.fed]
    beside = partial(percent_beside, limit=required)
    told = (
        f"The accelerators would be {_in_words(at.accelerator_utilization, beside)} busy, "
        f"which is {fed} ({format_percent(required)} required), at "
        f"{_in_words(at.samples_per_s, format_count)} samples/s. {_binding(at)}. "
        f"{_takes_over(found)}."
    )
    if found.marked:
        told += (
            f" This is {format_factor(found.times_measured)} what was measured: past {MARKED} x a "
            "model is a guess."
        )
    return told


def _binding(at: HostsPoint) -> str:
    if len(at.bottleneck) > 1:
        names = " or ".join(at.bottleneck)
        return f"The bottleneck is undecided: {names}"
    return f"The bottleneck: {at.bottleneck[0]}" + (", so they are fed" if at.fed else "")


def _takes_over(found: HostsPrediction) -> str:
    low, high = found.storage_takes_over_from
    up_to = f"up to {counted(found.searched, 'host')}"
    if low is None and high is None:
        return f"The storage does not take over {up_to}"
    if low == high:
        return f"The storage takes over from {counted(low or 0, 'host')} on"
    first = "" if low is None else f"from {counted(low, 'host')} on at the earliest, "
    last = "" if high is None else f" and from {counted(high, 'host')} on at the latest"
    never = f"and perhaps not {up_to}" if high is None else ""
    return f"The storage takes over {first}{never or last.removeprefix(' ')}"


def _left_out(points: tuple[LeftOut, ...]) -> Table:
    rate = "samples/s"
    return Table(
        id="left-out",
        title="Error: each measured number of hosts, predicted from the others",
        columns=(
            Column(name="hosts", label="hosts", align="right"),
            Column(name="accelerators", label="accelerators", align="right"),
            Column(name="measured_samples_per_s", label="measured", unit=rate, align="right"),
            *_columns("predicted_samples_per_s", "predicted", rate),
            Column(name="error", label="error", unit="ratio", align="right"),
        ),
        rows=tuple(
            Row(
                cells=(
                    figure(one.hosts, format_count),
                    figure(one.accelerators, format_count),
                    figure(one.measured_samples_per_s, format_count),
                    *_cells(one.predicted_samples_per_s, format_count),
                    figure(one.error, lambda ratio: f"{ratio * 100:+.1f} %", missing=UNDECIDED),
                )
            )
            for one in points
        ),
    )


def _measured(found: HostsPrediction, hosts: int) -> list[MeasuredJob]:
    """The runs with so many hosts, and as many accelerators in each as the question has."""
    return [job for job in found.measured if job.hosts == hosts and job.per_host == found.per_host]


def _hosts(found: HostsPrediction) -> Table:
    most = max(job.hosts for job in found.measured)
    ranks = max(job.accelerators for job in found.measured)
    rows = []
    for one in found.over_hosts:
        past = max(one.hosts / most, one.accelerators / ranks)
        jobs = _measured(found, one.hosts)
        rate = fmean(job.samples_per_s for job in jobs) if jobs else None
        busy = fmean(job.accelerator_utilization for job in jobs) if jobs else None
        cells = (
            figure(one.hosts, format_count),
            figure(one.accelerators, format_count),
            *_cells(one.samples_per_s, format_count),
            BLANK if rate is None else figure(rate, format_count),
            *_cells(one.accelerator_utilization, format_percent),
            word(" or ".join(one.bottleneck)),
            word({True: "yes", False: "no", None: UNDECIDED}[one.fed]),
            figure(past, format_factor) if past > 1 else BLANK,
            figure(busy, format_percent, missing=""),
        )
        rows.append(Row(cells=cells, mark=f"past {MARKED} x" if past > MARKED else ""))
    return Table(
        id="hosts",
        title="Over hosts, in the steady state: median [95 % interval]",
        columns=(
            Column(name="hosts", label="hosts", align="right"),
            Column(name="accelerators", label="accelerators", align="right"),
            *_columns("samples_per_s", "samples/s", "samples/s"),
            Column(
                name="measured_samples_per_s", label="measured", unit="samples/s", align="right"
            ),
            *_columns("accelerator_utilization", "utilization", "share"),
            Column(name="bottleneck", label="the bottleneck"),
            Column(name="fed", label="fed"),
            Column(name="past", label="past the runs", unit="ratio", align="right"),
            Column(
                name="measured_utilization",
                label="measured",
                unit="share",
                align="right",
                where="page",
            ),
        ),
        rows=tuple(rows),
        charts=tuple(_charts(found)),
    )


def _step(at: HostsPoint) -> Table:
    """Where the time of one step goes at the hosts that were asked for."""
    return Table(
        id="step",
        title=f"A step on {counted(at.hosts, 'host')}",
        columns=(
            Column(name="part", label="part of a step"),
            *_columns("seconds", "time", "s"),
        ),
        rows=tuple(
            Row(cells=(word(WAITS[name], name), *_cells(at.parts_s[name], format_duration)))
            for name in PARTS
            if name in at.parts_s
        ),
    )


def _storms(found: Storms) -> Table:
    rows: list[tuple[str, str, Band | None, Format]] = [
        ("save_s", "a save by all hosts at once", found.save_s, format_duration),
        ("restart_s", "a restart: all hosts read at once", found.restart_s, format_duration),
        ("interval_s", "best interval between saves", found.interval_s, format_duration),
        ("lost", "lost to saves, lost work and restarts", found.lost, format_percent),
        ("samples_per_s", "samples/s that are left", found.samples_per_s, format_count),
    ]
    stated = "as stated" if found.mtbf_stated else "by Llama 3's rate"
    first = Row(
        cells=(
            word(f"mean time between interruptions, {stated}", "mtbf_s"),
            figure(found.mtbf_s, format_duration),
            BLANK,
            BLANK,
        )
    )
    return Table(
        id="storms",
        title="Saves and restarts",
        columns=(
            Column(name="figure", label="figure"),
            *_columns("value", "value", ""),
        ),
        rows=(
            first,
            *(
                Row(cells=(word(label, name), *_known(band, show, found.not_measured)))
                for name, label, band, show in rows
            ),
        ),
    )


def _known(found: Band | None, show: Format, why: str) -> tuple[Cell, Cell, Cell]:
    return (figure(None, show, why=why), BLANK, BLANK) if found is None else _cells(found, show)


def _charts(found: HostsPrediction) -> Iterator[Chart]:
    """Samples/s and utilization over hosts: predicted with its band, and what was measured."""
    low, high = found.storage_takes_over_from
    marks = (Mark(at=low, label="storage takes over"),) if low is not None and low == high else ()
    if low is not None and low > found.what_if.hosts:
        marks = ()
    measured = "measured_samples_per_s"
    rates = Chart(
        kind="lines",
        x="hosts",
        y=("samples_per_s", measured),
        dots=(measured,),
        title="Samples/s over hosts: predicted, and as measured",
        y_label="samples/s",
        marks=marks,
        log="x",
    )
    yield rates
    measured = "measured_utilization"
    yield replace(
        rates,
        y=("accelerator_utilization", measured),
        dots=(measured,),
        title="Accelerator utilization over hosts: predicted, and as measured",
        y_label="utilization",
        limits=(Mark(at=found.required, label="required"),),
    )
