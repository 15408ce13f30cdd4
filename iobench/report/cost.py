"""``iobench cost``: the ways to pay for a training, best first, with the sources of the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from ..ask.compare.cost import (
    MAX_HOSTS,
    MAX_INTERRUPTIONS,
    Against,
    LateBecause,
    Option,
    Price,
    PricedHosts,
    limit_of,
)
from ..ask.compare.pace import SaveTimes
from ..ask.compare.ranking import BreakEven, Ranking
from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_factor,
    format_percent,
)
from ..record.run import ServingRecord
from ..settings.instances import STATED
from .figures import MAX_BARS, TableOf, facts, listed, picture, some, told, with_interval
from .sections import Cell, Chart, FirstScreen, Section, Table, Value, Where, joined

_DATA = (
    *("samples_per_usd_low", "samples_per_usd_high", "never_interrupted", "save_blocked_s"),
    *("lost_share", "waiting_usd_per_hour", "wanted_samples_per_s", "storage_samples_per_s"),
    *("storage_limits", "if_storage_grows", "break_even_interruptions_per_hour"),
    *("preparation_s", "samples_in_budget", "within_deadline", "within_budget"),
    *("hosts_in_time", "in_time_usd", "never_in_time"),
)
"""Figures of an option that only data shows."""

MAX_DIFFERENCES = 4
"""Largest number of differences between runs that are shown for an option."""

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
    rows = [(f"option {number}", text) for number in numbers for text in details(one, number)]
    rows += [("break-even", break_even(each)) for each in one.break_evens]
    rows += [("interval", text) for text in bases(one)]
    rows += [("note", note) for note in notes]
    unknown = "the price of {} is not known: give --host-price-per-hour"
    rows += [("no price", unknown.format(kind)) for kind in one.without_price]
    yield facts(f"{name}-details", "How it was computed", rows)


def _first(one: Ranking, name: str) -> FirstScreen:
    """What a sample costs with the best option, and with others."""
    best = [each for each in one.options[:1] if not each.figures.never_interrupted]
    bars = [
        (f"{each.figures.kind}, {each.machine}", _million(each), "best known" * (each in best))
        for each in one.options
        if each.figures.usd_per_million_samples
    ]
    return FirstScreen(
        id=name,
        job=title(one),
        state=f"{counted(len(one.options), 'way')} to pay" if one.options else "no price",
        sentences=sentences(one),
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
    """USD for a million samples of each of several ways to pay, and USD over time.

    USD over the time of the job, or over samples/s where no job was stated. A figure that is only a
    bound, since interruptions are not known, beats nothing: it is left out.
    """
    options = [*enumerate(one.options)]
    paid = tuple(at for at, each in options if each.figures.usd_per_million_samples)
    if len(paid) < 2:  # the first screen has the one bar
        return
    usd, names = "usd", ("kind", "machine")
    yield Chart(kind="bars", y=(usd,), label=names, text=(usd, "answer"), title=_TITLE, rows=paid)
    known = tuple(at for at in paid if not one.options[at].figures.never_interrupted)
    left_out = ", without spot: its interruptions are not known" if len(known) < len(paid) else ""
    front = f"Pareto front of the cost and the time of %s{left_out}"
    if len(known) < 2:
        return
    over = Chart(kind="front", y=(usd,), x="samples_per_s", label=names, rows=known)
    if all(one.options[at].figures.job_s and one.options[at].figures.job_usd for at in known):
        of_job = replace(over, x="job_s", y=("job_usd",), better=("less", "less"))
        yield replace(of_job, title=front % "the job")
    else:
        yield replace(over, title=front % "a million samples", better=("more", "less"))


def title(one: Ranking) -> str:
    apart = some(one.apart, MAX_DIFFERENCES, ", ")
    work = f"{one.workload} with {apart}" if apart else one.workload
    if not one.options:
        return f"{work}: no price is known"
    best = one.options[0]
    if len(one.options) == 1:
        return f"{work} on {_named(best)}"
    if not best.figures.samples_per_usd:
        return f"{work}: nothing is trained with any option"
    known = [each.against for each in one.options if not each.figures.never_interrupted]
    inconclusive = any(each is not None and each.answer == "inconclusive" for each in known)
    came_out = "came out cheapest" if inconclusive else "is cheapest"
    return f"{work} {came_out} on {_named(best)}"


def _named(option: Option) -> str:
    paid = option.figures
    return _paid(option.machine, paid.kind, never_interrupted=paid.never_interrupted)


def _paid(machine: str, kind: str, *, never_interrupted: bool = False) -> str:
    paid = f"{machine} {'on spot' if kind == 'spot' else kind}"
    return f"{paid}, if it is never interrupted" if never_interrupted else paid


def sentences(one: Ranking) -> tuple[str, ...]:
    if not one.options:
        return ()
    best = one.options[0]
    paid = best.figures
    late = [option.figures for option in one.options if not option.in_time_and_budget]
    missed = ["late"] * any(each.within_deadline is False for each in late)
    missed += ["too dear"] * any(each.within_budget is False for each in late)
    asked = ["deadline"] * (paid.within_deadline is not None)
    asked += ["budget"] * (paid.within_budget is not None)
    cheaper = any(each.samples_per_usd > paid.samples_per_usd for each in late)
    last = f"What would be {' or '.join(missed)} stands last, though it is cheaper a sample."
    return told(
        paid.samples_per_usd and f"1 USD buys {samples_per_usd(best)} samples{_at(best)}.",
        _job(one, best),
        _of_storage(best),
        *_next_best(one),
        _of_spot(one),
        best.in_time_and_budget and cheaper and last,
        not best.in_time_and_budget and f"No option meets the {' and the '.join(asked)}.",
    )


def _at(option: Option) -> str:
    """Of a server: the limit that its rate held."""
    limit = limit_of(option.slowest.pace)
    return f", at a rate at which {limit}" if limit else ""


def samples_per_usd(option: Option) -> str:
    """Samples for 1 USD with the 95 % interval, if it is known: ``2.58 [2.57, 2.6] million``."""
    paid = option.figures
    size, name = scale(paid.samples_per_usd)

    def show(value: float) -> str:
        return format_count(value) if size == 1 else f"{value / size:.4g}"

    low, high = paid.samples_per_usd_low, paid.samples_per_usd_high
    text = with_interval(paid.samples_per_usd, low, high, show).text
    most = "at most " if paid.never_interrupted else ""
    return f"{most}{text} {name}".strip()


def scale(value: float) -> tuple[float, str]:
    """The unit in which people say a large number, and its name."""
    return (1e9, "billion") if value >= 1e9 else (1e6, "million") if value >= 1e6 else (1.0, "")


def _job(one: Ranking, option: Option) -> str:
    paid = option.figures
    if paid.job_s is None or paid.job_usd is None:
        return ""
    least = "at least " if paid.never_interrupted else ""
    kept = ["in time"] * bool(paid.within_deadline)
    kept += ["within the budget"] * bool(paid.within_budget)
    fits = f", {' and '.join(kept)}" if kept else ""
    number, usd = one.terms.epochs or 1, in_usd(paid.job_usd)
    s = "s" * (number == 1)
    takes = f"take{s} {least}{format_duration(paid.job_s)}"
    return f"{counted(number, 'epoch')} cost{s} {least}{usd} and {takes}{fits}."


def _of_storage(option: Option) -> str:
    """What the storage has to do with these figures; empty if nothing."""
    paid, known = option.figures, option.figures.storage_samples_per_s
    wanted = f"{format_count(paid.wanted_samples_per_s)} samples/s"
    delivers = "" if known is None else f"it was measured to deliver {format_count(known)}"
    if paid.storage_limits and known is not None:
        return f"The hosts wait for the storage: together they could take {wanted}, and {delivers}."
    if paid.if_storage_grows:
        delivers = delivers or "what it can deliver was not measured"
        return (
            f"This holds if the storage grows with the hosts: they take {wanted}, and {delivers}."
        )
    if paid.saving is not None and paid.saving.writers > paid.saving.measured:
        return "The time of saves holds if the storage grows with the hosts."
    return ""


def _next_best(one: Ranking) -> Iterator[str]:
    """The next option on another machine, or the next one at all, if its cost is known."""
    best = one.options[0]
    known = [
        (number, option, option.against)
        for number, option in enumerate(one.options, start=1)
        if option.against is not None and not option.figures.never_interrupted
    ]
    others = [each for each in known if each[1].machine != best.machine] or known
    if not others:
        return
    number, other, against = others[0]
    named = f"option {number}, {_named(other)}"
    if against.ratio is None:
        yield f"With {named}, nothing is trained."
    elif against.answer == "different":
        yield f"With {named}, a sample costs {times(against)} as much."
    elif against.answer == "equal":
        yield f"With {named}, it costs as much, within 5 %."
    else:
        yield f"With {named}, a sample cost {times(against)} as much in these runs."
        why = against.why or "the interval holds both"
        yield f"Whether that holds on another day is inconclusive: {why}."
    if other.machine == best.machine and (lines := other.differs):
        keys = [line.partition(":")[0] for line in lines]
        yield f"Their runs differ in {some(keys, MAX_DIFFERENCES, ', ')}."


def _of_spot(one: Ranking) -> str:
    """What is known of the best spot instances without a rate of interruptions; empty if none."""
    unknown = [option for option in one.options if option.figures.never_interrupted]
    if not unknown:
        return ""
    option = max(unknown, key=lambda each: each.figures.samples_per_usd)
    often = option.figures.break_even_interruptions_per_hour
    until = "" if often is None else f" It pays below {_often(often)}."
    return (
        "How often spot instances are interrupted is not known (--interruptions-per-hour). "
        f"1 USD buys {samples_per_usd(option)} samples with {option.machine} on spot.{until}"
    )


def _often(rate: float) -> str:
    """A rate of interruptions of one host."""
    if rate >= MAX_INTERRUPTIONS:
        return "60 interruptions of a host an hour"
    if rate >= 1:
        return f"{rate:.2g} interruptions of a host an hour"
    if rate <= 0:
        return "any interruption"
    return f"one interruption of a host every {format_duration(3600 / rate)}"


def in_usd(value: float) -> str:
    return f"{plain_usd(value)} USD"


def plain_usd(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.4g}"


def details(one: Ranking, number: int) -> tuple[str, ...]:
    """The facts of option ``number`` of a ranking, from 1."""
    option = one.options[number - 1]
    paid, slowest = option.figures, option.slowest
    often, lost_to = paid.break_even_interruptions_per_hour, "saves"
    if paid.kind == "spot" and not paid.never_interrupted:
        lost_to = "saves and interruptions" if paid.saving else "interruptions"
        again = format_duration(one.terms.schedule.restart_s)
        lost_to += f", each of which takes {again} to restart (--restart)"
    slow = f"{slowest.instance.type}, {format_count(slowest.pace.middle)} samples/s"
    waiting, layout, buys = paid.waiting_usd_per_hour, paid.preparation_s, paid.samples_in_budget
    return told(
        *map(_priced, paid.prices),
        *map(_rated, option.parts),
        len(option.parts) > 1
        and f"hosts that train together wait for the slowest at each step: {slow}",
        number > 1 and _of_storage(option),  # the first one's is among the sentences
        waiting is not None and f"{in_usd(waiting)} an hour are paid while accelerators wait",
        paid.never_interrupted
        and "how often it is interrupted is not known: these figures hold if it never is",
        paid.lost_share and f"{format_percent(paid.lost_share)} of the time is lost to {lost_to}",
        not isinstance(slowest.pace.runs[0], ServingRecord) and _saves(paid.saving),
        often is not None and f"it is cheaper than on demand below {_often(often)}",
        layout
        and f"the loader's own layout takes {format_duration(layout)} to write, once: counted in "
        "a job",
        paid.within_deadline is False and _late(option),
        paid.within_budget is False
        and ("OVER the budget" if paid.job_usd is not None else "the job never ends"),
        buys is not None and f"the budget buys {format_count(buys)} samples",
        option.differs
        and f"its runs differ from those of option 1: {some(option.differs, MAX_DIFFERENCES)}",
    )


def _rated(part: PricedHosts) -> str:
    pace, ids = part.pace, list(dict.fromkeys(part.run_ids))
    shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
    n = None if pace.low < pace.high else 1
    rate = with_interval(pace.middle, pace.low, pace.high, format_count, n).text
    runs = counted(len(pace.runs), "run")
    return f"{part.instance.type}: {rate} samples/s on each host, from {runs}: {shown}"


def _priced(price: Price) -> str:
    source = "stated on the command line" if price.source == STATED else price.source
    known = (price.region or "region not stated", price.priced or "date not stated")
    usd = f"{price.type}: {price.usd_per_hour:g} {price.currency} an hour"
    return ", ".join([usd, *known, source or "source not stated"])


def _saves(saving: SaveTimes | None) -> str:
    if saving is None:
        return "the time of saves is not in it: name a run that measured them with --checkpoints"
    part = ""
    if saving.bytes < saving.full_bytes:
        part = f", computed from {format_bytes(saving.bytes)} of {format_bytes(saving.full_bytes)}"
    writers, measured = saving.writers, saving.measured
    who = "the whole job" if writers in (1, measured) else f"each of {format_count(writers)} hosts"
    got = "one host got"
    if writers == measured > 1:
        got = f"{format_count(measured)} hosts got together"
    stops = f"a save stops training for {format_duration(saving.blocked_s)}"
    slows = "; by how much it slows the steps beside it was not measured" * (saving.drag is None)
    return f"{stops}, if {who} gets what {got} in {saving.run_id}{part}{slows}"


_NEVER_IN_TIME: dict[LateBecause, str] = {
    "": "",
    "preparation": ", since the loader's own layout alone takes longer to write",
    "storage": ", since the storage delivers no more",
    "lost time": ", since too much of the time is lost to saves and interruptions",
    "storage and lost time": ", since the storage delivers no more, and too much of the time is "
    "lost to saves and interruptions",
}


def _late(option: Option) -> str:
    paid = option.figures
    if paid.job_s is None:
        return "the job never ends"
    if paid.hosts_in_time is None or paid.in_time_usd is None:
        if len(option.parts) > 1:
            return "TOO LATE"
        why = _NEVER_IN_TIME[paid.never_in_time]
        return f"TOO LATE, and so are up to {format_count(MAX_HOSTS)} hosts{why}"
    hosts, usd = format_count(paid.hosts_in_time), in_usd(paid.in_time_usd)
    return f"TOO LATE: {hosts} hosts would be in time, for {usd}"


def break_even(found: BreakEven) -> str:
    one = _paid(found.machine, found.kind, never_interrupted=found.never_interrupted)
    other, efficiency = _paid(found.other, found.other_kind), f"{found.efficiency:.3g}"
    if found.efficiency > 1:
        return f"at no scaling efficiency is a sample as cheap with {one} as with {other}"
    return f"at a scaling efficiency of {efficiency}, a sample costs as much with {one} as {other}"


def bases(one: Ranking) -> tuple[str, ...]:
    paces = [option.slowest.pace for option in one.options]
    found = {pace.basis for pace in paces if pace.low < pace.high}
    return told(
        "repetitions" in found
        and "with fewer than 4 runs and no earlier ones like them (--history), [ ] has the slowest "
        "and the fastest repetition, which tell nothing about another day",
        found & {"runs", "drift"} and "[ ] is the 95 % interval of the rate of such runs",
    )


def times(against: Against) -> str:
    if against.ratio is None:
        return ""
    if against.low is None or against.high is None:
        least = "at least " if against.low is not None else ""
        return f"{least}{format_factor(against.ratio)}"
    if against.low == against.high:
        return format_factor(against.ratio)
    return f"{format_factor(against.ratio)} [{against.low:.3g}, {against.high:.3g}]"
