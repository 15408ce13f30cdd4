"""What ``iobench cost`` says in words: the answer for everyone, and the details of each option."""

from __future__ import annotations

from collections.abc import Iterator

from ..ask.compare.cost import MAX_HOSTS, MAX_INTERRUPTIONS, Against, Option, Price, PricedHosts
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
from .figures import some, spread, told, with_interval

MAX_DIFFERENCES = 4
"""Largest number of differences between runs that are shown for an option."""


def title(one: Ranking) -> str:
    if not one.options:
        return f"{one.workload}: no price is known"
    best = one.options[0]
    if len(one.options) == 1:
        return f"{one.workload} on {_named(best)}"
    if not best.figures.samples_per_usd:
        return f"{one.workload}: nothing is trained with any option"
    known = [each.against for each in one.options if not each.figures.never_interrupted]
    inconclusive = any(each is not None and each.answer == "inconclusive" for each in known)
    came_out = "came out cheapest" if inconclusive else "is cheapest"
    return f"{one.workload} {came_out} on {_named(best)}"


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
        paid.samples_per_usd and f"1 USD buys {samples_per_usd(best)} samples.",
        _job(one, best),
        _of_storage(best),
        *_next_best(one),
        _of_spot(one),
        best.in_time_and_budget and cheaper and last,
        not best.in_time_and_budget and f"No option meets the {' and the '.join(asked)}.",
    )


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
    epochs, usd = counted(one.terms.epochs or 1, "epoch"), in_usd(paid.job_usd)
    return f"{epochs} cost {least}{usd} and take {least}{format_duration(paid.job_s)}{fits}."


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
    if paid.saving is not None and paid.saving.writers > 1:
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
    rate = spread(pace.middle, pace.low, pace.high, format_count)
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
    who = f"each of {format_count(saving.writers)} hosts" if saving.writers > 1 else "the whole job"
    stops = f"a save stops training for {format_duration(saving.blocked_s)}"
    return f"{stops}, if {who} gets what one host got in {saving.run_id}{part}"


def _late(option: Option) -> str:
    paid = option.figures
    if paid.job_s is None:
        return "the job never ends"
    if paid.hosts_in_time is None or paid.in_time_usd is None:
        if len(option.parts) > 1:
            return "TOO LATE"
        why = ", since the storage delivers no more" if paid.storage_samples_per_s else ""
        return f"TOO LATE, and so are up to {MAX_HOSTS} hosts{why}"
    hosts, usd = format_count(paid.hosts_in_time), in_usd(paid.in_time_usd)
    return f"TOO LATE: {hosts} hosts would be in time, for {usd}"


def break_even(found: BreakEven) -> str:
    one = _paid(found.machine, found.kind, never_interrupted=found.never_interrupted)
    other, efficiency = _paid(found.other, found.other_kind), f"{found.efficiency:.3g}"
    if found.efficiency > 1:
        return f"at no scaling efficiency is a sample as cheap with {one} as with {other}"
    return f"at a scaling efficiency of {efficiency}, a sample costs as much with {one} as {other}"


def bases(one: Ranking) -> tuple[str, ...]:
    found = {option.slowest.pace.basis for option in one.options}
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
