"""What ``iobench cost`` says in words: the answer for everyone, and the details of each option."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..analyse.compare.cost import MAX_HOSTS, MAX_INTERRUPTIONS, Against, Option, Price, PricedHosts
from ..analyse.compare.pace import SaveTimes
from ..analyse.compare.ranking import BreakEven, Ranking
from ..schema.instances import STATED
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_factor,
    format_percent,
)
from .figures import Format, spread

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
    inconclusive = any(
        option.against is not None
        and option.against.answer == "inconclusive"
        and not option.figures.never_interrupted
        for option in one.options
    )
    came_out = "came out cheapest" if inconclusive else "is cheapest"
    return f"{one.workload} {came_out} on {_named(best)}"


def _named(option: Option) -> str:
    return _paid(
        option.machine, option.figures.kind, never_interrupted=option.figures.never_interrupted
    )


def _paid(machine: str, kind: str, *, never_interrupted: bool = False) -> str:
    paid = f"{machine} {'on spot' if kind == 'spot' else kind}"
    return f"{paid}, if it is never interrupted" if never_interrupted else paid


def sentences(one: Ranking) -> Iterator[str]:
    if not one.options:
        return
    best = one.options[0]
    most = "at most " if best.figures.never_interrupted else ""
    if best.figures.samples_per_usd:
        yield f"1 USD buys {most}{samples_per_usd(best)} samples{_job(one, best)}."
    yield from _of_storage(best)
    yield from _next_best(one)
    yield from _of_spot(one)
    late = [option for option in one.options if not option.in_time_and_budget]
    if best.in_time_and_budget and any(
        option.figures.samples_per_usd > best.figures.samples_per_usd for option in late
    ):
        asked = ["late"] * any(option.figures.within_deadline is False for option in late)
        asked += ["too dear"] * any(option.figures.within_budget is False for option in late)
        yield (
            f"What would be {' or '.join(asked)} stands last, though it is cheaper for each sample."
        )
    if not best.in_time_and_budget:
        asked = ["deadline"] * (best.figures.within_deadline is not None)
        asked += ["budget"] * (best.figures.within_budget is not None)
        yield f"No option meets the {' and the '.join(asked)}."


def samples_per_usd(option: Option) -> str:
    """Samples for 1 USD with the 95 % interval, if it is known: ``2.58 [2.57, 2.6] million``."""
    paid = option.figures
    size, name = scale(paid.samples_per_usd)
    show: Format = format_count if size == 1 else lambda value: f"{value:.4g}"
    middle, low, high = (
        None if value is None else value / size
        for value in (
            paid.samples_per_usd,
            paid.samples_per_usd_low,
            paid.samples_per_usd_high,
        )
    )
    if middle is None or low is None or high is None:
        return f"{show(paid.samples_per_usd / size)} {name}".strip()
    return f"{spread(middle, low, high, show)} {name}".strip()


def _large(value: float) -> str:
    """``2.58 million``, as people say it."""
    size, name = scale(value)
    return f"{_three(value / size)} {name}" if name else format_count(value)


def scale(value: float) -> tuple[float, str]:
    """The unit in which people say a large number, and its name."""
    return (1e9, "billion") if value >= 1e9 else (1e6, "million") if value >= 1e6 else (1.0, "")


def _three(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else format_count(value)


def _job(one: Ranking, option: Option) -> str:
    paid = option.figures
    if paid.job_s is None or paid.job_usd is None:
        return ""
    least = "at least " if paid.never_interrupted else ""
    epochs = counted(one.terms.epochs or 1, "epoch")
    kept = [] if paid.within_deadline is None else ["in time" * bool(paid.within_deadline)]
    kept += ["within the budget"] if paid.within_budget else []
    kept = [each for each in kept if each]
    fits = f", {' and '.join(kept)}" if kept else ""
    return (
        f"; {epochs} cost {least}{_usd(paid.job_usd)} and take {least}"
        f"{format_duration(paid.job_s)}{fits}"
    )


def _of_storage(option: Option) -> Iterator[str]:
    paid = option.figures
    wanted = f"{format_count(paid.wanted_samples_per_s)} samples/s"
    known = paid.storage_samples_per_s
    if paid.storage_limits and known is not None:
        yield (
            f"The hosts wait for the storage: together they could take {wanted}, and it was "
            f"measured to deliver {format_count(known)}."
        )
    elif paid.if_storage_grows:
        measured = (
            "what it can deliver was not measured"
            if known is None
            else f"it was measured to deliver {format_count(known)}"
        )
        yield f"This holds if the storage grows with the hosts: they take {wanted}, and {measured}."
    elif paid.saving is not None and paid.saving.writers > 1:
        yield "The time of saves holds if the storage grows with the hosts."


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
        yield f"With {named}, a sample costs {_said(against)}."
    elif against.answer == "equal":
        yield f"With {named}, it costs as much, within 5 %."
    else:
        yield (
            f"With {named}, a sample cost {_said(against)} in these runs; whether that holds on "
            f"another day is inconclusive: {against.why or 'the interval holds both'}."
        )
    if other.machine == best.machine and (lines := other.differs):
        keys = [line.partition(":")[0] for line in lines[:MAX_DIFFERENCES]]
        more = " and others" if len(lines) > len(keys) else ""
        yield f"Their runs differ in {', '.join(keys)}{more}."


def _said(against: Against) -> str:
    """``1.63 times as much, 1.5 to 1.7``, as people say it."""
    if against.ratio is None:
        return "more than can be said"
    text = f"{against.ratio:.3g} times as much"
    if against.low is None or against.high is None or against.low == against.high:
        return text
    return f"{text} (95 % interval: {against.low:.3g} to {against.high:.3g})"


def _of_spot(one: Ranking) -> Iterator[str]:
    unknown = [option for option in one.options if option.figures.never_interrupted]
    if not unknown:
        return
    option = min(unknown, key=lambda each: -each.figures.samples_per_usd)
    most, often = option.figures.samples_per_usd, option.figures.break_even_interruptions_per_hour
    until = "" if often is None else f"; it pays below {_often(often)}"
    yield (
        f"How often spot instances are interrupted is not known (--interruptions-per-hour): "
        f"{option.machine} on spot gives at most {_large(most)} samples for 1 "
        f"USD{until}."
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


def _usd(value: float) -> str:
    return f"{plain_usd(value)} USD"


def plain_usd(value: float) -> str:
    return f"{value:,.2f}" if value >= 1 else f"{value:.4g}"


def details(one: Ranking, number: int) -> Iterator[str]:
    """The facts of option ``number`` of a ranking, from 1."""
    option = one.options[number - 1]
    paid = option.figures
    yield from (_priced(price) for price in paid.prices)
    yield from (_rated(part) for part in option.parts)
    if len(option.parts) > 1:
        slowest = option.slowest
        yield (
            f"hosts that train together wait for the slowest at each step: {slowest.instance.type},"
            f" {format_count(slowest.pace.middle)} samples/s"
        )
    if number > 1:  # it is in the first sentences
        yield from _of_storage(option)
    if paid.waiting_usd_per_hour is not None:
        yield f"{_usd(paid.waiting_usd_per_hour)} an hour are paid while accelerators wait"
    yield from _lost(option)
    if paid.preparation_s is not None:
        written = format_duration(paid.preparation_s)
        yield f"the loader's own layout takes {written} to write, once: counted in a job"
    if paid.within_deadline is False:
        yield _late(option)
    if paid.within_budget is False:
        yield "OVER the budget" if paid.job_usd is not None else "the job never ends"
    if paid.samples_in_budget is not None:
        yield f"the budget buys {format_count(paid.samples_in_budget)} samples"
    yield from _differs(option.differs)


def _rated(part: PricedHosts) -> str:
    pace = part.pace
    ids = list(dict.fromkeys(part.run_ids))
    shown = ", ".join(ids[:3]) + (", ..." if len(ids) > 3 else "")
    rate = spread(pace.middle, pace.low, pace.high, format_count)
    return (
        f"{part.instance.type}: {rate} samples/s on each host, from "
        f"{counted(len(pace.runs), 'run')}: {shown}"
    )


def _priced(price: Price) -> str:
    source = "stated on the command line" if price.source == STATED else price.source
    facts = [
        f"{price.type}: {price.usd_per_hour:g} {price.currency} an hour",
        price.region or "region not stated",
        price.priced or "date not stated",
        source or "source not stated",
    ]
    return ", ".join(facts)


def _lost(option: Option) -> Iterator[str]:
    paid = option.figures
    often = paid.break_even_interruptions_per_hour
    if paid.never_interrupted:
        yield "how often it is interrupted is not known: these figures hold if it never is"
    if paid.lost_share:
        what = "saves and interruptions" if paid.saving else "interruptions"
        what = what if paid.kind == "spot" and not paid.never_interrupted else "saves"
        yield f"{format_percent(paid.lost_share)} of the time is lost to {what}"
    yield _saves(paid.saving)
    if often is not None:
        yield f"it is cheaper than on demand below {_often(often)}"


def _saves(saving: SaveTimes | None) -> str:
    if saving is None:
        return "the time of saves is not in it: name a run that measured them with --checkpoints"
    part = (
        f", computed from {format_bytes(saving.bytes)} of {format_bytes(saving.full_bytes)}"
        if saving.bytes < saving.full_bytes
        else ""
    )
    got = (
        f"if each of {format_count(saving.writers)} hosts gets what one host got"
        if saving.writers > 1
        else "if the whole job gets what one host got"
    )
    return (
        f"a save stops training for {format_duration(saving.blocked_s)}, {got} in "
        f"{saving.run_id}{part}"
    )


def _late(option: Option) -> str:
    paid = option.figures
    if paid.job_s is None:
        return "the job never ends"
    if paid.hosts_in_time is None or paid.in_time_usd is None:
        if len(option.parts) > 1:
            return "TOO LATE"
        why = ", since the storage delivers no more" if paid.storage_samples_per_s else ""
        return f"TOO LATE, and so are up to {MAX_HOSTS} hosts{why}"
    return (
        f"TOO LATE: {format_count(paid.hosts_in_time)} hosts would be in time, for "
        f"{_usd(paid.in_time_usd)}"
    )


def _differs(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        more = len(lines) - MAX_DIFFERENCES
        shown = "; ".join(lines[:MAX_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        yield f"its runs differ from those of option 1: {shown}"


def break_even(found: BreakEven) -> str:
    one = _paid(found.machine, found.kind, never_interrupted=found.never_interrupted)
    other = _paid(found.other, found.other_kind)
    if found.efficiency > 1:
        return f"at no scaling efficiency is a sample as cheap with {one} as with {other}"
    return (
        f"at a scaling efficiency of {found.efficiency:.3g}, a sample costs as much with {one} as "
        f"with {other}"
    )


def bases(one: Ranking) -> Iterator[str]:
    bases = {option.slowest.pace.basis for option in one.options}
    if "repetitions" in bases:
        yield (
            "with fewer than 4 runs and no earlier ones like them (--history), [ ] has the slowest "
            "and the fastest repetition, which tell nothing about another day"
        )
    if bases & {"runs", "drift"}:
        yield "[ ] is the 95 % interval of the rate of such runs"


def times(against: Against) -> str:
    if against.ratio is None:
        return ""
    if against.low is None or against.high is None:
        least = "at least " if against.low is not None else ""
        return f"{least}{format_factor(against.ratio)}"
    if against.low == against.high:
        return format_factor(against.ratio)
    return f"{format_factor(against.ratio)} [{against.low:.3g}, {against.high:.3g}]"
