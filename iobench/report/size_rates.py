"""The rates that ``iobench size`` computes: as a chart for one job, as a table for several."""

from __future__ import annotations

from collections.abc import Sequence

from ..ask.capacity.requirement import JointDemand, Requirement
from ..base.units import counted, format_bytes, format_count, format_rate
from .figures import MAX_BARS, figure, picture, with_interval, word
from .record import numbered
from .sections import (
    Bars,
    Cell,
    Chart,
    Column,
    Headline,
    Mark,
    Row,
    Section,
    Table,
)

UNKNOWN = "no rate is enough"


def together_sections(
    whole: JointDemand, jobs: Sequence[tuple[Requirement, Sequence[Section]]]
) -> list[Section]:
    """The sum, a row for each job, and the sections of each with its number."""
    found: list[Section] = [_headline(whole, [job for job, _ in jobs]), _table(whole, jobs)]
    for number, (_, shown) in enumerate(jobs, start=1):
        found += [numbered(section, number, "job") for section in shown]
    return found


def _headline(whole: JointDemand, jobs: Sequence[Requirement]) -> Headline:
    named = " and ".join(
        f"{job.workload} on {counted(job.accelerators, 'accelerator')}" for job in jobs
    )
    if whole.buy_bytes_per_s is None or whole.buy_reads_per_s is None:
        title, why = "No rate is enough", "; ".join(whole.not_measured.values())
        return Headline(
            id="together", title=f"{counted(len(jobs), 'job')}: {title}", sentences=(why,)
        )
    rate = format_rate(whole.buy_bytes_per_s)
    told = (
        f"To run {named} at the same time on one storage, buy storage that sustains {rate} of "
        f"uncached reads, in {format_count(whole.buy_reads_per_s)} reads/s.",
        "This is the sum of what each needs alone, margins included, as if all of them needed "
        "theirs at the same moment. How much their reads slow one another down on a storage is "
        "not in it.",
    )
    title = f"{counted(len(jobs), 'job')} on one storage: {rate} to buy"
    return Headline(id="together", title=title, sentences=told)


def _table(whole: JointDemand, jobs: Sequence[tuple[Requirement, Sequence[Section]]]) -> Table:
    rows = [
        Row(
            cells=(
                figure(number, str),
                word(job.workload),
                figure(job.accelerators, format_count),
                figure(job.hosts, format_count),
                figure(job.dataset_bytes, format_bytes),
                figure(job.read_bytes_per_s, format_rate),
                figure(job.buy_bytes_per_s, format_rate, why=UNKNOWN),
                figure(job.buy_reads_per_s, format_count, why=UNKNOWN),
                figure(job.peak_read_bytes_per_s, format_rate),
            )
        )
        for number, (job, _) in enumerate(jobs, start=1)
    ]
    rows.append(
        Row(
            cells=(
                Cell(value=None, text=""),
                word("together"),
                figure(whole.accelerators, format_count),
                Cell(value=None, text=""),
                figure(whole.dataset_bytes, format_bytes),
                figure(whole.read_bytes_per_s, format_rate),
                figure(whole.buy_bytes_per_s, format_rate, why=UNKNOWN),
                figure(whole.buy_reads_per_s, format_count, why=UNKNOWN),
                figure(whole.peak_read_bytes_per_s, format_rate),
            )
        )
    )
    full = max([whole.buy_bytes_per_s or 0.0, *(job.buy_bytes_per_s or 0.0 for job, _ in jobs)])
    return Table(
        id="jobs",
        title="What each job needs, and all of them together",
        columns=(
            Column(name="number", label="job", align="right"),
            Column(name="workload", label="workload"),
            Column(name="accelerators", label="accelerators", align="right"),
            Column(name="hosts", label="hosts", align="right"),
            Column(name="dataset_bytes", label="dataset", unit="bytes", align="right"),
            Column(name="read_bytes_per_s", label="mean", unit="bytes/s", align="right"),
            Column(name="buy_bytes_per_s", label="to buy", unit="bytes/s", align="right"),
            Column(name="buy_reads_per_s", label="reads/s", align="right"),
            Column(name="peak_read_bytes_per_s", label="peak", unit="bytes/s", align="right"),
        ),
        rows=tuple(rows),
        bars=Bars(column="buy_bytes_per_s", full=full) if full > 0 else None,
        notes=("A dataset that several jobs read counts once.",)
        if len({job.dataset for job, _ in jobs}) < len(jobs)
        else (),
    )


NamedRate = tuple[str, float, str, str]
"""The name of a rate, the rate, how a bar shows it, and what sets it apart."""


def rates_of(need: Requirement) -> list[NamedRate]:
    """Every rate that is known: those that the job demands, and what the storage delivers."""
    rates = {
        "reads, mean": need.read_bytes_per_s,
        "reads, to buy": need.buy_bytes_per_s,
        "reads, at the most": need.peak_read_bytes_per_s,
        "writes of a save": need.write_bytes_per_s,
        "reads of a restore": need.restore_bytes_per_s,
        "measured": need.measured.read_bytes_per_s if need.measured else None,
    }
    return [
        (label, rate, format_rate(rate), "delivered" if label == "measured" else "")
        for label, rate in rates.items()
        if rate is not None
    ]


def rate_picture(need: Requirement) -> Table | None:
    """Bars of the rates, with a line at what the storage must sustain."""
    return picture(_title(need), rates_of(need)[:MAX_BARS], line=_needed(need))


def rate_table(need: Requirement) -> Table:
    """The rates as a table and a chart."""
    needed, found = _needed(need), need.measured
    low, high = (found.low_bytes_per_s, found.high_bytes_per_s) if found else (None, None)
    return Table(
        id="rates",
        title=_title(need),
        columns=(
            Column(name="rate", label="rate"),
            Column(name="bytes_per_s", label="bytes/s", unit="bytes/s", align="right"),
        ),
        rows=tuple(
            Row(
                cells=(
                    word(label),
                    with_interval(rate, low, high, format_rate)
                    if mark
                    else figure(rate, format_rate),
                )
            )
            for label, rate, _, mark in rates_of(need)
        ),
        charts=(
            Chart(
                kind="bars",
                y=("bytes_per_s",),
                label=("rate",),
                marks=() if needed is None else (Mark(at=needed, label="needed"),),
            ),
        ),
        where="pages",
    )


def _title(need: Requirement) -> str:
    return "What the job demands" + (", and what the storage delivers" if need.measured else "")


def _needed(need: Requirement) -> float | None:
    return need.measured.needed_bytes_per_s if need.measured else need.buy_bytes_per_s
