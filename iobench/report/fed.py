"""How many accelerators the storage feeds: the tries of a search, and larger numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ..base.units import counted, format_count, format_percent, percent_beside
from ..judge.figures.search import STEADY, trials_of, utilization_of
from ..record.run import TrainingRecord
from ..record.training import FindMax, FindMaxPoint
from ..record.verdict import Fed
from .figures import Format, TableOf, cell, ends, lacking
from .glance import UTILIZATION
from .sections import Bars, Cell, Chart, Mark, Table

_BY = {
    "find-max": "by --find-max",
    "plateau": "by the storage's curve",
    "fetch": "by the fetch ceiling",
    "run": "by the rate of the run after it fell",
    "": "",
}


UNKNOWN = "not known"


def fed_sections(doc: TrainingRecord, *, of_stored: str = "") -> Iterator[Table]:
    """The search's tries, and what is known of the run's number of ranks and of larger ones.

    ``of_stored``: what the bandwidths count, if not the bytes that were read.
    """
    if doc.job.find_max is not None:
        yield _search(doc.job.find_max, of_stored)
    fed = doc.job.verdict.fed if doc.job.verdict else None
    if fed is not None and any(each.how == "extrapolated" for each in fed.at):
        yield _more_ranks(fed, doc.job.workload.required_accelerator_utilization)


def number_text(fed: Fed | FindMax) -> str:
    """``11 [10, 11]``; ``8 or more`` where the storage may feed more than was tried."""
    if fed.accelerators is None or (not fed.accelerators and fed.low == 0 and fed.high is None):
        return UNKNOWN  # any number is 0 or more
    number = format_count(fed.accelerators)
    if fed.low is not None and fed.high is not None:
        return f"{number} {ends(fed.low, fed.high, str)}"
    if fed.low is not None:
        least = f" (at least {fed.low})" if fed.low != fed.accelerators else ""
        return f"{number} or more{least}"
    return number


def _more_ranks(fed: Fed, required: float) -> Table:
    told = {True: "fed", False: "starved", None: "inconclusive"}
    rows = TableOf(fed.at)
    beside = partial(percent_beside, limit=required)
    rows.add("ranks", "accelerators")
    rows.add("accelerator_utilization", "utilization", show=beside)
    rows.add("fed", of=lambda each: told[each.fed])
    rows.add("how")
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
    number = f"{number_text(fed)} {_BY[fed.basis]}".strip()
    title = f"Storage for accelerators at {format_percent(required)} utilization: {number}; "
    return rows.made("fed", f"{title}jobs with a barrier at each step", notes=notes)


def _drawn(found: FindMax) -> Chart:
    """The utilization of each try."""
    required, answer = found.required_accelerator_utilization, found.accelerators
    tried = [point.accelerators for point in found.points if utilization_of(point) is not None]
    return Chart(
        kind="lines",
        x="accelerators",
        y=(UTILIZATION,),
        dots=(UTILIZATION,),
        marks=(Mark(at=answer, label=f"{format_count(answer)} fed"),) if answer else (),
        limits=(Mark(at=required, label=f"required: {format_percent(required)}"),),
        log="x" if tried and max(tried) >= 4 * min(tried) > 0 else "",
    )


def _search(found: FindMax, of_stored: str) -> Table:
    """A row for each try, those of one number side by side."""
    required = format_percent(found.required_accelerator_utilization)
    beside = partial(percent_beside, limit=found.required_accelerator_utilization)
    none = "none of those tried" if found.bound else "not even one"
    answer = none if found.accelerators is None else number_text(found)
    rows = TableOf(point for tries in trials_of(found.points).values() for point in tries)
    rows.add("accelerators", "accelerators", "count")
    rows.add(UTILIZATION, "utilization", "share", lambda each: _utilization(each, beside))
    rows.add("read_bytes_per_s", "bandwidth", of=_bandwidth, missing="")
    rows.add("fed", of=partial(_passed, found.required_accelerator_utilization), missing="")
    rows.add("trial", "", "count", lambda each: each.trial + 1, where="pages")
    rows.add("steps", "", "count", missing="", where="pages")
    notes = [f"bandwidths are {of_stored}"] if of_stored else []
    notes += [f"the search stopped: {found.bound}"] if found.bound else []
    wanted = found.wanted_steps
    few = [point.steps for point in found.points if point.steps is not None]
    if wanted and few and min(few) < wanted:
        notes.append(
            f"tries had {counted(min(few), 'step')} or more in the steady window, fewer than the "
            f"{wanted} that a try should have: the data or the time of a try was too small. "
            "'inconclusive': what was read before the window may have fed the accelerators in it"
        )
    return rows.made(
        "find-max",
        f"Accelerators fed at {required} utilization or more: {answer}",
        bars=Bars(column=UTILIZATION, full=1.0),
        charts=[_drawn(found)],
        notes=notes,
    )


def _utilization(point: FindMaxPoint, show: Format) -> Cell:
    au, reasons = utilization_of(point), point.not_measured
    if au is None:
        return lacking(reasons.get(STEADY, reasons.get(UTILIZATION)) or "")
    return cell(au, show)


def _bandwidth(point: FindMaxPoint) -> float | None:
    return None if utilization_of(point) is None else point.read_bytes_per_s


def _passed(required: float, point: FindMaxPoint) -> str | None:
    most = utilization_of(point)
    if most is None:
        return None
    return "fed" if point.passed else "inconclusive" if most >= required else "starved"
