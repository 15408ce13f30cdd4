"""The rates that ``iobench size`` computes: as a chart for one job, as a table for several."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ..ask.capacity.requirement import JointDemand, Requirement
from ..base.units import counted, format_count, format_rate
from .figures import MAX_BARS, TableOf, picture, with_interval
from .record import numbered
from .sections import Bars, Cell, Chart, FirstScreen, Mark, Section, Table


def together_sections(
    whole: JointDemand, jobs: Sequence[tuple[Requirement, Sequence[Section]]]
) -> list[Section]:
    """The sum, a row for each job, and the sections of each with its number."""
    needs = [job for job, _ in jobs]
    shown = [
        numbered(section, number, "job")
        for number, (_, sections) in enumerate(jobs, start=1)
        for section in sections
    ]
    return [_first(whole, needs), _table(whole, needs), *shown]


def _first(whole: JointDemand, jobs: Sequence[Requirement]) -> FirstScreen:
    many = counted(len(jobs), "job")
    named = " and ".join(
        f"{job.workload} on {counted(job.accelerators, 'accelerator')}" for job in jobs
    )
    if whole.buy_bytes_per_s is None or whole.buy_reads_per_s is None:
        why = "; ".join(whole.not_measured.values())
        return FirstScreen(id="together", job=many, state="no rate is enough", sentences=(why,))
    rate = format_rate(whole.buy_bytes_per_s)
    reads = format_count(whole.buy_reads_per_s)
    told = (
        f"To run {named} at the same time, buy {rate} of uncached reads, in {reads} reads/s.",
        "This is the sum of what each needs alone, margins included, as if all needed theirs at "
        "the same moment.",
        "How much their reads slow one another down on a storage is not in it.",
    )
    job = f"{many} on one storage"
    return FirstScreen(id="together", job=job, state=f"{rate} to buy", sentences=told)


def _table(whole: JointDemand, jobs: Sequence[Requirement]) -> Table:
    """A row for each job, and one for all of them."""
    rows = TableOf[Requirement | JointDemand]([*jobs, whole])
    number = {id(job): at for at, job in enumerate(jobs, start=1)}
    rows.add("number", "job", of=lambda job: number.get(id(job)), missing="")
    rows.add("workload", "workload", of=lambda job: getattr(job, "workload", "together"))
    rows.add("accelerators", "accelerators")
    rows.add("hosts", "hosts", of=lambda job: getattr(job, "hosts", None), missing="")
    rows.add_each({"dataset_bytes": "dataset", "read_bytes_per_s": "mean"})
    unknown = Cell(value=None, why="no rate is enough")
    rows.add("buy_bytes_per_s", "to buy", of=lambda job: job.buy_bytes_per_s or unknown)
    rows.add("buy_reads_per_s", "reads/s", of=lambda job: job.buy_reads_per_s or unknown)
    rows.add("peak_read_bytes_per_s", "peak")
    full = max([whole.buy_bytes_per_s or 0.0, *(job.buy_bytes_per_s or 0.0 for job in jobs)])
    several = len({job.dataset for job in jobs}) < len(jobs)
    return rows.made(
        "jobs",
        "What each job needs, and all of them together",
        bars=Bars(column="buy_bytes_per_s", full=full) if full > 0 else None,
        notes=["A dataset that several jobs read counts once."] if several else [],
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
    rows = TableOf(rates_of(need))
    marks = () if needed is None else (Mark(at=needed, label="needed"),)
    rows.add("rate", "rate", of=lambda each: each[0])
    interval = partial(with_interval, low=low, high=high, show=format_rate)
    rows.add("bytes_per_s", "bytes/s", of=lambda each: interval(each[1]) if each[3] else each[1])
    chart = Chart(kind="bars", y=("bytes_per_s",), label=("rate",), marks=marks)
    return rows.made("rates", _title(need), charts=[chart], where="pages")


def _title(need: Requirement) -> str:
    return "What the job demands" + (", and what the storage delivers" if need.measured else "")


def _needed(need: Requirement) -> float | None:
    return need.measured.needed_bytes_per_s if need.measured else need.buy_bytes_per_s
