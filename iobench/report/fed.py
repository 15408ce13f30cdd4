"""How many accelerators the storage feeds: the tries of a search, and larger numbers of ranks."""

from __future__ import annotations

from functools import partial

from ..base.units import counted, format_count, format_percent, format_rate, percent_beside
from ..judge.figures.search import STEADY, trials_of, utilization_of
from ..record.run import TrainingRecord
from ..record.training import FindMax
from ..record.verdict import Estimate, Fed
from .figures import (
    BLANK,
    NO_REASON,
    figure,
    figures,
    filled,
    lacking,
    raw,
    side_by_side,
    with_interval,
    word,
    words,
)
from .sections import (
    Bars,
    Cell,
    Chart,
    Column,
    Mark,
    Row,
    Section,
    Table,
)

_BY = {
    "find-max": "by --find-max",
    "plateau": "by the storage's curve",
    "fetch": "by the fetch ceiling",
    "run": "by the rate of the run after it fell",
    "": "",
}


def fed_sections(doc: TrainingRecord, *, of_stored: str = "") -> list[Section]:
    """The search's tries, and what is known of the run's number of ranks and of larger ones.

    ``of_stored``: what the bandwidths count, if not the bytes that were read.
    """
    found: list[Section] = []
    if doc.job.find_max is not None:
        found.append(_search(doc.job.find_max, of_stored))
    fed = doc.job.verdict.fed if doc.job.verdict else None
    if fed is not None and any(each.how == "extrapolated" for each in fed.at):
        found.append(_more_ranks(fed, doc.job.workload.required_accelerator_utilization))
    return found


def number_text(fed: Fed) -> str:
    """``11 [10, 11]``; ``8 or more`` where the storage may feed more than was tried."""
    if fed.accelerators is None:
        return "not known"
    number = format_count(fed.accelerators)
    if fed.low is not None and fed.high is not None:
        return f"{number} [{fed.low}, {fed.high}]"
    if fed.low is not None:
        least = f" (at least {fed.low})" if fed.low != fed.accelerators else ""
        return f"{number} or more{least}"
    return number


def number_with_basis(fed: Fed) -> str:
    """``11 [10, 11] by the storage's curve``."""
    return f"{number_text(fed)} {_BY[fed.basis]}".strip()


def fed_now_and_alone(doc: TrainingRecord) -> str:
    """What the whole pipeline feeds now, and what the storage alone could feed.

    A storage that could feed 20 feeds nobody while another stage starves them.
    """
    verdict, ranks = doc.job.verdict, doc.job.accelerators
    fed = verdict.fed if verdict is not None else None
    if verdict is None or fed is None or fed.accelerators is None:
        return f"not known: {(fed.not_measured if fed else '') or NO_REASON}"
    alone = number_with_basis(fed)
    if fed.potential is not None:
        alone += f" as it is read now, {format_count(fed.potential)} as advised"
    if fed.basis == "find-max" or verdict.starved is None:
        return alone
    if not verdict.starved:
        now = f"{format_count(ranks)}, as many as the run had"
    else:
        now = "0" if ranks == 1 else f"fewer than the {format_count(ranks)} of the run"
    return f"now {now}; by the storage alone {alone}"


def _more_ranks(fed: Fed, required: float) -> Table:
    told = {True: "fed", False: "starved", None: "inconclusive"}
    shares = [_share(each.accelerator_utilization, required) for each in fed.at]
    columns, rows = side_by_side(
        figures("ranks", "accelerators", "", [each.ranks for each in fed.at]),
        filled("accelerator_utilization", "utilization", shares),
        words("fed", "", [told[each.fed] for each in fed.at]),
        words("how", "", [each.how for each in fed.at]),
    )
    notes = []
    if fed.reads_in_flight is not None and fed.potential is None:
        notes.append(f"that takes {counted(round(fed.reads_in_flight), 'read')} in flight")
    if fed.potential is not None:
        notes.append(
            f"that is as the run reads it; with more reads in flight, or as advised, the storage "
            f"could feed {format_count(fed.potential)}"
        )
    elif fed.today is not None and fed.today != fed.accelerators:
        notes.append(f"with the run's own reads in flight: {format_count(fed.today)}")
    number = number_with_basis(fed)
    return Table(
        id="fed",
        title=f"Storage for accelerators at {format_percent(required)} utilization: {number}; "
        "jobs with a barrier at each step",
        columns=columns,
        rows=rows,
        notes=tuple(notes),
    )


def _share(estimate: Estimate | None, required: float) -> Cell:
    if estimate is None:
        return Cell(value=None, text="-")
    show = partial(percent_beside, limit=required)
    return with_interval(estimate.value, estimate.low, estimate.high, show)


def _drawn(found: FindMax) -> tuple[Chart, ...]:
    """The utilization of each try."""
    required, answer = found.required_accelerator_utilization, found.accelerators
    known = [point.accelerators for point in found.points if utilization_of(point) is not None]
    if not known:
        return ()
    return (
        Chart(
            kind="lines",
            x="accelerators",
            y=("accelerator_utilization_sustained",),
            dots=("accelerator_utilization_sustained",),
            marks=(Mark(at=answer, label=f"{format_count(answer)} fed"),) if answer else (),
            limits=(Mark(at=required, label=f"required: {format_percent(required)}"),),
            log="x" if max(known) >= 4 * min(known) > 0 else "",
        ),
    )


def _search(found: FindMax, of_stored: str) -> Table:
    """A row for each try, those of one number side by side."""
    required = format_percent(found.required_accelerator_utilization)
    beside = partial(percent_beside, limit=found.required_accelerator_utilization)
    none = "none of those tried" if found.bound else "not even one"
    answer = none if found.accelerators is None else format_count(found.accelerators)
    if found.low is not None and found.high is not None and found.accelerators is not None:
        answer += f" [{found.low}, {found.high}]"
    rows = []
    for tries in trials_of(found.points).values():
        for point in tries:
            number = raw(point.accelerators)
            trial = raw(point.trial + 1)
            steps = figure(point.steps, format_count, missing="")
            au = utilization_of(point)
            if au is None:
                reasons = point.not_measured
                why = reasons.get(STEADY, reasons.get("accelerator_utilization_sustained"))
                rows.append(Row(cells=(number, lacking(why or ""), BLANK, BLANK, trial, steps)))
                continue
            rate = figure(point.read_bytes_per_s, format_rate, missing="")
            fed = word("fed" if point.passed else "starved")
            rows.append(Row(cells=(number, figure(au, beside), rate, fed, trial, steps)))
    notes = [f"bandwidths are {of_stored}"] if of_stored else []
    notes += [f"the search stopped: {found.bound}"] if found.bound else []
    wanted = found.wanted_steps
    few = [point.steps for point in found.points if point.steps is not None]
    if wanted and few and min(few) < wanted:
        notes.append(
            f"tries had {counted(min(few), 'step')} or more in the steady window, fewer than the "
            f"{wanted} that a try should have: the data or the time of a try was too small"
        )
    return Table(
        id="find-max",
        title=f"Accelerators fed at {required} utilization or more: {answer}",
        columns=(
            Column(name="accelerators", label="accelerators", unit="count", align="right"),
            Column(
                name="accelerator_utilization_sustained",
                label="utilization",
                unit="share",
                align="right",
            ),
            Column(name="read_bytes_per_s", label="bandwidth", unit="bytes/s", align="right"),
            Column(name="fed"),
            Column(name="trial", unit="count", align="right", where="pages"),
            Column(name="steps", unit="count", align="right", where="pages"),
        ),
        rows=tuple(rows),
        bars=Bars(column="accelerator_utilization_sustained", full=1.0),
        charts=_drawn(found),
        notes=tuple(notes),
    )
