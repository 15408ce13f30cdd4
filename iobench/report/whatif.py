"""``iobench whatif``: a recorded run with other storage or settings, or a job on more hosts.

Of changed ceilings: these before and after, and the verdict. Of more hosts: the rates over hosts,
and where the time of a step goes. Both show the error of the model on what was recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean

from ..ask.capacity.hosts import PARTS, HostsPoint
from ..ask.capacity.more_hosts import MARKED, HostsPrediction, LeftOut, Storms
from ..ask.capacity.scaling import Band
from ..ask.capacity.whatif import Prediction, TriedRate
from ..base.units import (
    RESTART_S,
    counted,
    format_count,
    format_duration,
    format_factor,
    format_percent,
    percent_beside,
)
from ..judge.evidence import Evidence
from ..judge.judged import judge
from .figures import (
    BY_UNIT,
    ENDS,
    INCONCLUSIVE,
    Format,
    TableOf,
    listed,
    ranged,
    sentence,
    tone_of,
    unit_of,
    word,
)
from .glance import UTILIZATION, bottleneck_text
from .sections import Cell, Chart, FirstScreen, KeyFigure, Mark, Section, Table, joined
from .stages import LABELS

TRUSTED = 0.2
"""A larger error on the recorded run is a violation of the rule ``verdict.gap``.

Stages compete, or a ceiling was measured under other conditions than those of the run.
"""

_CEILINGS = {
    **dict(zip(LABELS, ("raw", "fetch", "prep", "loader", "cpu", "accelerator"), strict=True)),
    "predicted": "predicted",
    "measured": "measured",
}
"""Names of the ceilings, and of their attributes in the evidence."""


def sections(found: Prediction | HostsPrediction) -> list[Section]:
    return _of_hosts(found) if isinstance(found, HostsPrediction) else _of_ceilings(found)


def _of_ceilings(found: Prediction) -> list[Section]:
    """The predicted verdict, the ceilings on both sides, and how far the model can be trusted."""
    before, after = judge(found.before).evidence, judge(found.what_if).evidence
    verdict, told = found.what_if.job.verdict, list[str]()
    if verdict is not None:
        told.append(verdict.sentence)
    told += _ceilings_error(found, before)
    how = "predicted" if found.tried is None else "tried"
    state = "no verdict" if verdict is None else f"{how}, {bottleneck_text(verdict)}"
    first = FirstScreen(
        id="what-if",
        job=f"Run {found.run_id} with {'; '.join(found.changes)}",
        state=state,
        tone=tone_of(None if verdict is None or verdict.starved is None else not verdict.starved),
        sentences=tuple(told),
        gauges=tuple(_predicted(found, before)),
    )
    bases = listed("bases", "What it rests on", found.bases)
    return joined(first, _ceilings(found, before, after), bases)


def _of_recorded(found: Prediction, before: Evidence) -> float | None:
    """What the model predicts of the recorded run itself, in samples/s."""
    if found.model_error is None or before.measured is None:
        return before.predicted
    return before.measured * (1 + found.model_error)


def _predicted(found: Prediction, before: Evidence) -> Iterator[KeyFigure]:
    """The predicted rate and utilization, beside those that were measured."""
    show = partial(percent_beside, limit=before.required)
    for label, name, measured, form in (
        ("utilization", UTILIZATION, before.utilization, show),
        ("samples/s", "samples_per_s", before.measured, format_count),
    ):
        if (predicted := found.what_if.metrics.get(name)) is not None:
            then = "" if measured is None else f"; {form(measured)} without the change"
            how = "predicted" if found.tried is None else _found_by(found.tried, name)
            yield KeyFigure(label, form(predicted.median), f"{how}{then}")


def _found_by(tried: TriedRate, name: str) -> str:
    if name == UTILIZATION and tried.utilization is None:
        return "by these samples/s"
    return f"{tried.bound} found by {tried.source}".lstrip()


def _ceilings(found: Prediction, before: Evidence, after: Evidence) -> Table:
    untold = "measured" if found.tried is None else "predicted"

    def of(evidence: Evidence, name: str) -> float | None:
        if evidence is before and name == "predicted":
            return _of_recorded(found, before)
        rate: float | None = getattr(evidence, _CEILINGS[name])
        return None if evidence is after and name == untold else rate

    def ratio(name: str) -> float | None:
        old, new = of(before, name), of(after, name)
        moved = old is not None and new is not None and abs(new / old - 1) >= 1e-9
        return new / old if moved and old and new else None

    labels = dict(LABELS)
    if before.alone is not None:  # a real model, whose steps alone are another rate
        labels["accelerator"] += ", beside the loader"
    rows = TableOf(_CEILINGS)
    rows.add("ceiling", of=lambda name: word(labels.get(name, name), name))
    rows.add("recorded_samples_per_s", "recorded", of=partial(of, before))
    rows.add("what_if_samples_per_s", "what if", of=partial(of, after))
    rows.add("ratio", "", "ratio", ratio, missing="")
    return rows.made("ceilings", "Ceilings, samples/s")


def _ceilings_error(found: Prediction, before: Evidence) -> Iterator[str]:
    """The error of the model on the recorded run, whose rate is known.

    It says nothing about a rate that was tried.
    """
    if found.tried is not None:
        by = found.tried.source
        yield f"The samples/s were measured by {by}, and no model's error is in them."
        return
    modelled = _of_recorded(found, before)
    if found.model_error is None or modelled is None or before.measured is None:
        yield "The model's error is not known: the run has no complete repetition."
        return
    yield (
        f"The model's error on the recorded run: {format_count(modelled)} predicted, "
        f"{format_count(before.measured)} measured ({_signed(found.model_error)})."
    )
    if found.corrected_samples_per_s is not None:
        rate = format_count(found.corrected_samples_per_s)
        yield f"If it errs as much here, the rate will be {rate} samples/s."
    else:
        yield "Another stage is the limit after the change, so this error says nothing about it."
    if abs(found.model_error) > TRUSTED:
        yield "That is too much to be trusted: see the run's findings (verdict.gap)."


def _percent(error: float) -> str:
    return f"{error * 100:+.1f} %"


def _signed(error: float) -> str:
    return f"{'+' if error >= 0 else '-'}{format_percent(abs(error))}"


_USED = "accelerator_utilization"

_STEP = {
    "accelerator": "the accelerators",
    "loader": "the loader",
    "stragglers": "the slowest rank",
    "barrier": "the barrier of each step",
    "storage": "the storage",
    "network": "the hosts' networks",
    "host": "each host's own work",
}
"""What a step consists of, or waits for, and what can be the bottleneck."""


def _of_hosts(found: HostsPrediction) -> list[Section]:
    """The model's error, the answer, the figures over hosts, and where a step's time goes."""
    return joined(
        _first(found),
        _left_out(found.leave_one_out) if found.leave_one_out else None,
        _hosts(found),
        _step(found.what_if),
        None if found.storms is None else _storms(found.storms),
        listed("bases", "What the figures rest on", found.bases),
    )


def _first(found: HostsPrediction) -> FirstScreen:
    at = found.what_if
    runs = ", ".join(job.run_id for job in found.measured)
    job = f"{counted(at.hosts, 'host')} with {counted(at.accelerators, 'accelerator')}, from "
    beside = partial(percent_beside, limit=found.required)
    required = f"({format_percent(found.required)} required)"
    busy, rate = at.accelerator_utilization, at.samples_per_s
    return FirstScreen(
        id="cluster",
        job=f"{job}{counted(len(found.measured), 'run')} ({runs})",
        state={True: "fed", False: "starved", None: "perhaps starved"}[at.fed],
        tone=tone_of(at.fed),
        sentences=tuple(_answer(found)),
        gauges=(
            KeyFigure("utilization", ranged(busy, beside), required),
            KeyFigure("samples/s", ranged(rate, format_count)),
        ),
    )


def _in_words(found: Band, show: Format) -> str:
    if found.value is None:
        return f"between {show(found.low)} and {show(found.high)}"
    return ranged(found, show)


def _answer(found: HostsPrediction) -> Iterator[str]:
    """How busy the accelerators would be, the bottleneck, and the error of the model."""
    at = found.what_if
    beside = partial(percent_beside, limit=found.required)
    fed = {True: "enough", False: "too little", None: "perhaps too little"}[at.fed]
    yield (
        f"The accelerators would be {_in_words(at.accelerator_utilization, beside)} busy, "
        f"which is {fed} ({format_percent(found.required)} required)."
    )
    names = " or ".join(_STEP[part] for part in at.bottleneck)
    fed_so = ", so they are fed" if at.fed and at.bottleneck == ("accelerator",) else ""
    undecided = "undecided: " if len(at.bottleneck) > 1 else ""
    yield f"The bottleneck is {undecided}{names}{fed_so}."
    yield f"The storage {_takes_over(found)}."
    if found.marked:
        times = format_factor(found.times_measured)
        yield f"The job is {times} as large as what was measured: beyond {MARKED} x it is a guess."
    yield _hosts_error(found)


def _hosts_error(found: HostsPrediction) -> str:
    """The error on the measured numbers of hosts, each predicted from the others."""
    unknown = "The model's error on other numbers of hosts is not known"
    if not found.leave_one_out:
        return f"{unknown}. {sentence(found.no_leave_one_out)}"
    errors = [each.error for each in found.leave_one_out if each.error is not None]
    if not errors:
        return f"{unknown}: the runs that are left do not tell one rate."
    return (
        f"The model's error on the measured points, each left out in turn: at most "
        f"{_signed(max(errors, key=abs))} ({len(errors)} points)."
    )


def _takes_over(found: HostsPrediction) -> str:
    low, high = found.storage_takes_over_from
    up_to = f"up to {counted(found.searched, 'host')}"
    if low is None and high is None:
        return f"does not become the bottleneck {up_to}"
    if low == high:
        return f"becomes the bottleneck from {counted(low or 0, 'host')} on"
    first = f"from {counted(low, 'host')} on at the earliest" if low is not None else ""
    last = f"and perhaps not {up_to}"
    if high is not None:
        last = f"{'and ' * bool(first)}from {counted(high, 'host')} on at the latest"
    return f"becomes the bottleneck {', '.join(filter(None, (first, last)))}"


def _left_out(points: Sequence[LeftOut]) -> Table:
    rows = TableOf(points)
    rows.add_each({"hosts": "hosts", "accelerators": "accelerators"})
    rows.add("measured_samples_per_s", "measured")
    rows.add("predicted_samples_per_s", "from the others", ends=ENDS)
    rows.add("error", "error", "ratio", show=_percent, missing=INCONCLUSIVE)
    return rows.made("left-out", "Error: each measured number of hosts, predicted from the others")


def _hosts(found: HostsPrediction) -> Table:
    most = max(job.hosts for job in found.measured)
    ranks = max(job.accelerators for job in found.measured)

    def past(at: HostsPoint) -> float:
        return max(at.hosts / most, at.accelerators / ranks)

    def measured(at: HostsPoint, key: str) -> float | None:
        values: list[float] = [
            getattr(job, key)
            for job in found.measured
            if job.hosts == at.hosts and job.per_host == found.per_host
        ]
        return mean(values) if values else None

    rows = TableOf(found.over_hosts)
    rows.add_each({"hosts": "hosts", "accelerators": "accelerators"})
    rows.add("samples_per_s", "samples/s", ends=ENDS)
    rate, used = (partial(measured, key=key) for key in ("samples_per_s", _USED))
    rows.add("measured_samples_per_s", "measured", of=rate, missing="")
    rows.add(_USED, "utilization", "share", ends=ENDS)
    rows.add("bottleneck", "the bottleneck", of=lambda at: " or ".join(at.bottleneck))
    rows.add("fed", "fed", of=lambda at: {True: "yes", False: "no", None: INCONCLUSIVE}[at.fed])
    rows.add("measured_utilization", "measured", "share", used, missing="", where="page")
    return rows.made(
        "hosts",
        "Over hosts, in the steady state: median [95 % interval]",
        mark=lambda at: f"past {MARKED} x" if past(at) > MARKED else "",
        charts=[*_charts(found)],
    )


def _step(at: HostsPoint) -> Table:
    """Where the time of one step goes at the hosts that were asked for."""
    rows = TableOf(name for name in PARTS if name in at.parts_s)
    rows.add("part", "a step's time for", of=lambda name: word(_STEP[name], name))
    rows.add("seconds", "time", "s", lambda name: at.parts_s[name], ends=ENDS)
    return rows.made("step", f"A step on {counted(at.hosts, 'host')}")


def _storms(found: Storms) -> Table:
    stated = "as stated" if found.mtbf_stated else "by Llama 3's rate"
    mtbf = Band(found.mtbf_s, found.mtbf_s, found.mtbf_s)
    labels = {
        "mtbf_s": f"mean time between interruptions, {stated}",
        "save_s": "a save by all hosts at once",
        "restart_s": "all hosts read it again at once, after an interruption",
        "interval_s": "best interval between saves",
        "lost": "lost to saves, lost work, these reads, and "
        f"{format_duration(RESTART_S)} to start again",
        "samples_per_s": "samples/s that are left",
    }

    def value(name: str) -> Cell:
        band: Band | None = mtbf if name == "mtbf_s" else getattr(found, name)
        if band is None:
            return Cell(value=None, why=found.not_measured)
        text = ranged(band, BY_UNIT[unit_of(name) or "share"])
        return Cell(value=band.value, text=text, low=band.low, high=band.high)

    rows = TableOf(labels)
    rows.add("figure", "figure", of=lambda name: word(labels[name], name))
    rows.add("value", "value", "", value, ends=ENDS)
    return rows.made("storms", "Saves and restarts")


def _charts(found: HostsPrediction) -> Iterator[Chart]:
    """Samples/s and utilization over hosts: predicted with its band, and what was measured."""
    low, high = found.storage_takes_over_from
    marks: tuple[Mark, ...] = ()
    if low is not None and low == high and low <= found.what_if.hosts:
        marks = (Mark(at=low, label="storage is the bottleneck"),)
    measured = "measured_samples_per_s"
    rates = Chart(
        kind="lines",
        x="hosts",
        y=("samples_per_s", measured),
        dots=(measured,),
        title="Samples/s over hosts: predicted, and as measured",
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
        limits=(Mark(at=found.required, label="required"),),
    )
