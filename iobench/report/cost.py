"""``iobench cost``: the ways to pay for a training, best first, with the sources of the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..ask.compare.cost import Option
from ..ask.compare.ranking import Ranking
from ..base.units import counted, format_count, format_duration
from .cost_words import (
    bases,
    break_even,
    details,
    in_usd,
    plain_usd,
    samples_per_usd,
    sentences,
    times,
    title,
)
from .figures import MAX_BARS, TableOf, facts, listed, picture, with_interval
from .sections import Cell, Chart, FirstScreen, KeyFigure, Section, Table, Value, Where, joined

_DATA = (
    *("samples_per_usd_low", "samples_per_usd_high", "never_interrupted", "save_blocked_s"),
    *("lost_share", "waiting_usd_per_hour", "wanted_samples_per_s", "storage_samples_per_s"),
    *("storage_limits", "if_storage_grows", "break_even_interruptions_per_hour"),
    *("preparation_s", "samples_in_budget", "within_deadline", "within_budget"),
    *("hosts_in_time", "in_time_usd"),
)
"""Figures of an option that only data shows."""

_MILLION, _TITLE = "usd_per_million_samples", "What a million samples cost, in USD"


def sections(found: Sequence[Ranking], left_out: Sequence[str]) -> list[Section]:
    """For each workload its best option in words, a table of all, and the details of each."""
    named = [(f"cost-{number}", one) for number, one in enumerate(found, start=1)]
    parts = [part for name, one in named for part in _ranking(one, name)]
    return joined(parts, listed("left-out", "Left out", left_out))


def _ranking(one: Ranking, name: str) -> Iterator[Section]:
    yield _first(one, name)
    if one.options:
        yield _options(one, name)
    notes = dict.fromkeys(note for option in one.options for note in option.figures.notes)
    numbers = range(1, len(one.options) + 1)
    told = [(f"option {number}", text) for number in numbers for text in details(one, number)]
    told += [("break-even", break_even(each)) for each in one.break_evens]
    told += [("interval", text) for text in bases(one)]
    told += [("note", note) for note in notes]
    unknown = "the price of {} is not known: give --host-price-per-hour"
    told += [("no price", unknown.format(kind)) for kind in one.without_price]
    yield facts(f"{name}-details", "How it was computed", told)


def _first(one: Ranking, name: str) -> FirstScreen:
    """What a sample costs with the best option, and with others."""
    gauges = []
    best = [each for each in one.options[:1] if not each.figures.never_interrupted]
    bars = [
        (f"{each.figures.kind}, {each.machine}", _million(each), "best known" * (each in best))
        for each in one.options
        if each.figures.usd_per_million_samples
    ]
    if one.options:
        paid = one.options[0].figures
        if paid.usd_per_million_samples:
            cheapest = f"{paid.usd_per_million_samples:.4g} USD"
            gauges.append(KeyFigure("a million samples", cheapest))
        if paid.job_usd is not None and paid.job_s is not None:
            took = f"in {format_duration(paid.job_s)}"
            gauges.append(KeyFigure("the job", in_usd(paid.job_usd), took))
    return FirstScreen(
        id=name,
        job=title(one),
        state=f"{counted(len(one.options), 'way')} to pay" if one.options else "no price",
        sentences=sentences(one),
        gauges=tuple(gauges),
        picture=picture(_TITLE, bars[:MAX_BARS]),
    )


def _options(one: Ranking, name: str) -> Table:
    """A row for each way to pay, the best first."""
    job = any(option.figures.job_s is not None for option in one.options)
    of_job: Where = "everywhere" if job else "data"
    rank, rows = {id(option): at for at, option in enumerate(one.options, 1)}, TableOf(one.options)
    rows.add("rank", "", of=lambda option: rank[id(option)])
    rows.add("machine", "machine")
    rows.add("kind", "pay", of=lambda option: option.figures.kind)
    rows.add("usd_per_hour", "USD/h", of=lambda each: each.figures.usd_per_hour, show=_four)
    rows.add("samples_per_usd", "samples per USD", of=_samples)
    million, job_usd = (partial(_of_figures, key=key) for key in (_MILLION, "job_usd"))
    rows.add(_MILLION, "USD/million", of=million, show=_four)
    rows.add("job_usd", "job, USD", of=job_usd, show=plain_usd, where=of_job)
    rows.add("job_s", "job, time", of=lambda each: each.figures.job_s, where=of_job)
    rows.add("answer", "a sample costs", of=_answer)
    rows.add("samples_per_s", "samples/s", of=_samples_per_s, where="pages")
    rows.data("workload", of=lambda _: one.workload)
    rows.data("hosts")
    rows.data("instances", of=lambda each: " ".join(part.instance.type for part in each.parts))
    rows.data("run_ids", of=lambda each: " ".join(i for part in each.parts for i in part.run_ids))
    rows.data("interval_basis", of=lambda each: each.slowest.pace.basis)
    rows.data("runs", of=lambda each: len(each.slowest.pace.values))
    rows.data("currency", "region", "priced", "source", each=_of_prices)
    rows.data(*_DATA, each=_of_figures)
    rows.data("ratio", "ratio_low", "ratio_high", each=_ratio)
    rows.add("usd", "USD for a million samples", of=_million, where="page")
    return rows.made(f"{name}-options", "Ways to pay, the best first", charts=[*cost_charts(one)])


def _samples(option: Option) -> Cell:
    return Cell(value=option.figures.samples_per_usd, text=samples_per_usd(option))


def _million(option: Option) -> Cell:
    """USD for a million samples; at least so much where interruptions are not known."""
    paid = option.figures
    if not paid.usd_per_million_samples:
        return Cell(value=paid.usd_per_million_samples)
    ends = (paid.samples_per_usd_high, paid.samples_per_usd_low)
    low, high = (1e6 / end if end else None for end in ends)
    cell = with_interval(paid.usd_per_million_samples, low, high, _four)
    return replace(cell, text=f"at least {cell.text}") if paid.never_interrupted else cell


def _samples_per_s(option: Option) -> Cell:
    rate, most = option.figures.samples_per_s, "at most " * option.figures.never_interrupted
    return Cell(value=rate, text=f"{most}{format_count(rate)}")


def _four(usd: float) -> str:
    return f"{usd:.4g}"


def _of_prices(option: Option, key: str) -> str:
    return ", ".join(dict.fromkeys(getattr(price, key) for price in option.figures.prices))


def _of_figures(option: Option, key: str) -> Value:
    saving = option.figures.saving
    if key == "save_blocked_s":
        return saving.blocked_s if saving else None
    value: Value = getattr(option.figures, key)
    return value


def _ratio(option: Option, key: str) -> float | None:
    against = option.against
    return getattr(against, key.removeprefix("ratio_")) if against else 1.0


def _answer(option: Option) -> Cell:
    """What is told of the option, compared with the best one."""
    if not option.figures.samples_per_usd:
        return Cell(value="different", text="nothing is trained")
    against = option.against
    missed = "" if option.in_time_and_budget else f", {_missed(option)}"
    if against is None:
        return Cell(value="best", text=f"the least{missed}")
    text = {"equal": "as much", "different": "", "inconclusive": "inconclusive"}[against.answer]
    ratio = times(against)
    text = f"{text}: {ratio}" if text and ratio else text or ratio
    return Cell(value=against.answer, text=text + missed)


def _missed(option: Option) -> str:
    late, dear = option.figures.within_deadline is False, option.figures.within_budget is False
    return " and ".join(["TOO LATE"] * late + ["OVER the budget"] * dear)


def cost_charts(one: Ranking) -> Iterator[Chart]:
    """USD for a million samples of each way to pay, and USD over time.

    USD over the time of the job, or over samples/s where no job was stated. A figure that is only a
    bound, since interruptions are not known, beats nothing: it is left out.
    """
    options = [*enumerate(one.options)]
    paid = tuple(at for at, each in options if each.figures.usd_per_million_samples)
    if not paid:
        return
    usd, names = "usd", ("kind", "machine")
    yield Chart(kind="bars", y=(usd,), label=names, text=(usd, "answer"), title=_TITLE, rows=paid)
    known = tuple(at for at in paid if not one.options[at].figures.never_interrupted)
    left_out = ", without spot: its interruptions are not known" if len(known) < len(paid) else ""
    title = f"Pareto front of the cost and the time of %s{left_out}"
    if len(known) < 2:
        return
    over = Chart(kind="front", y=(usd,), x="samples_per_s", label=names, rows=known)
    if all(one.options[at].figures.job_s and one.options[at].figures.job_usd for at in known):
        of_job = replace(over, x="job_s", y=("job_usd",), better=("less", "less"))
        yield replace(of_job, title=title % "the job")
    else:
        yield replace(over, title=title % "a million samples", better=("more", "less"))
