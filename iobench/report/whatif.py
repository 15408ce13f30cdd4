"""``iobench whatif``: a recorded run with other storage or settings, or a job on more hosts.

Of changed ceilings: these before and after, and the verdict. Of more hosts: the rates over hosts,
and where the time of a step goes. Both show the error of the model on what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import mean

from ..ask.capacity.hosts import PARTS, HostsPoint
from ..ask.capacity.more_hosts import MARKED, HostsPrediction, LeftOut, Storms
from ..ask.capacity.scaling import Band
from ..ask.capacity.whatif import Prediction
from ..base.units import (
    counted,
    format_count,
    format_duration,
    format_factor,
    format_percent,
    percent_beside,
)
from ..judge.evidence import Evidence
from ..judge.judged import judge
from ..judge.promise import in_headline
from .figures import BLANK, Format, figure, listed, raw, word
from .glance import bottleneck_text
from .sections import (
    Cell,
    Chart,
    Column,
    Headline,
    Mark,
    Prose,
    Row,
    Section,
    Table,
)
from .stages import LABELS

TRUSTED = 0.2
"""A larger error on the recorded run is a violation of the rule ``verdict.gap``.

Stages compete, or a ceiling was measured under other conditions than those of the run.
"""

_CEILINGS = tuple(
    zip(LABELS, ("raw", "fetch", "prep", "loader", "cpu", "accelerator"), strict=True)
)
"""Names of the ceilings, and of their attributes in the evidence."""


def sections(found: Prediction | HostsPrediction) -> list[Section]:
    return _of_hosts(found) if isinstance(found, HostsPrediction) else _of_ceilings(found)


def _of_ceilings(found: Prediction) -> list[Section]:
    """The predicted verdict, the ceilings on both sides, and how far the model can be trusted."""
    before, after = judge(found.before).evidence, judge(found.what_if).evidence
    verdict = found.what_if.job.verdict
    title = f"Run {found.run_id} with {'; '.join(found.changes)}"
    sentences = (
        ()
        if verdict is None
        else (f"Predicted verdict: {bottleneck_text(verdict)}", verdict.sentence)
    )
    parts: list[Section] = [
        Headline(id="what-if", title=title, sentences=sentences),
        _ceilings(before, after),
        Prose(id="error", paragraphs=(_ceilings_error(found, before),)),
    ]
    parts += listed("bases", "", found.bases)
    if verdict is not None and verdict.advice and verdict.bottleneck != "accelerator":
        first = verdict.advice[0]
        promise = in_headline(first)
        gain = f" ({promise})" if promise else ""
        parts.append(Prose(id="next", paragraphs=(f"Then the next change: {first.change}{gain}",)))
    return parts


def _ceilings(before: Evidence, after: Evidence) -> Table:
    rates = [
        (name, LABELS[name], getattr(before, key), getattr(after, key)) for name, key in _CEILINGS
    ]
    rates.append(("predicted", "predicted", before.predicted, after.predicted))
    rates.append(("measured", "measured", before.measured, None))
    rows = []
    for name, label, old, new in rates:
        moved = old is not None and new is not None and abs(new / old - 1) >= 1e-9
        ratio = figure(new / old, lambda ratio: f"{ratio:.2f} x") if moved else BLANK
        cells = (word(label, name), figure(old, format_count), figure(new, format_count), ratio)
        rows.append(Row(cells=cells))
    rate = "samples/s"
    return Table(
        id="ceilings",
        title="Ceilings, samples/s",
        columns=(
            Column(name="ceiling"),
            Column(name="recorded_samples_per_s", label="recorded", unit=rate, align="right"),
            Column(name="what_if_samples_per_s", label="what if", unit=rate, align="right"),
            Column(name="ratio", unit="ratio", align="right"),
        ),
        rows=tuple(rows),
    )


def _ceilings_error(found: Prediction, before: Evidence) -> str:
    """The error of the model on the recorded run, whose rate is known."""
    if found.model_error is None or before.predicted is None or before.measured is None:
        return "The model's error is not known: the run has no complete repetition."
    sign = "+" if found.model_error >= 0 else "-"
    told = (
        f"The model's error on the recorded run: {format_count(before.predicted)} predicted, "
        f"{format_count(before.measured)} measured "
        f"({sign}{format_percent(abs(found.model_error))})."
    )
    if found.corrected_samples_per_s is not None:
        told += (
            " If it errs as much here, the rate will be "
            f"{format_count(found.corrected_samples_per_s)} samples/s."
        )
    else:
        told += " Another stage is the limit after the change, so this error says nothing about it."
    if abs(found.model_error) > TRUSTED:
        told += " That is too much to be trusted: see the run's findings (verdict.gap)."
    return told


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


def _of_hosts(found: HostsPrediction) -> list[Section]:
    """The model's error, the answer, the figures over hosts, and where a step's time goes."""
    at = found.what_if
    runs = ", ".join(job.run_id for job in found.measured)
    title = (
        f"{counted(at.hosts, 'host')} with {counted(at.accelerators, 'accelerator')}, from "
        f"{counted(len(found.measured), 'run')}: {runs}"
    )
    parts: list[Section] = [
        Headline(id="cluster", title=title, sentences=(_hosts_error(found), _answer(found)))
    ]
    if found.leave_one_out:
        parts.append(_left_out(found.leave_one_out))
    parts += [_hosts(found), _step(at)]
    if found.storms is not None:
        parts.append(_storms(found.storms))
    return parts + listed("bases", "What the figures rest on", found.bases)


def _spread(found: Band, show: Format) -> str:
    """``1,900 [1,880, 1,910]``; without a value ``inconclusive [950, 1,910]``."""
    value = UNDECIDED if found.value is None else show(found.value)
    ends = show(found.low), show(found.high)
    if ends[0] == ends[1] == value:
        return value
    return f"{value} [{ends[0]}, {ends[1]}]"


def _in_words(found: Band, show: Format) -> str:
    if found.value is None:
        return f"between {show(found.low)} and {show(found.high)}"
    return _spread(found, show)


def _cells(found: Band, show: Format) -> tuple[Cell, Cell, Cell]:
    """The figure, and for data its two ends; see ``_columns``."""
    text = _spread(found, show)
    value = Cell(value=found.value, text=text, low=found.low, high=found.high)
    return value, raw(found.low), raw(found.high)


def _columns(name: str, label: str, unit: str) -> tuple[Column, Column, Column]:
    return (
        Column(name=name, label=label, unit=unit, align="right"),
        Column(name=f"{name}_low", unit=unit, where="data"),
        Column(name=f"{name}_high", unit=unit, where="data"),
    )


def _hosts_error(found: HostsPrediction) -> str:
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


def _hosts(found: HostsPrediction) -> Table:
    most = max(job.hosts for job in found.measured)
    ranks = max(job.accelerators for job in found.measured)
    rows = []
    for one in found.over_hosts:
        past = max(one.hosts / most, one.accelerators / ranks)
        jobs = [
            job
            for job in found.measured
            if job.hosts == one.hosts and job.per_host == found.per_host
        ]
        rate = mean(job.samples_per_s for job in jobs) if jobs else None
        busy = mean(job.accelerator_utilization for job in jobs) if jobs else None
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
