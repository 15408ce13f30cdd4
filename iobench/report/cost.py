"""``iobench cost``: the ways to pay for a training, best first, with the sources of the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..analyse.compare.cost import Option
from ..analyse.compare.ranking import Ranking
from ..analyse.tuning.knee import front
from ..units import counted, format_count, format_duration
from .compare import left_out_sections
from .cost_words import (
    bases,
    break_even,
    details,
    plain_usd,
    samples_per_usd,
    sentences,
    times,
    title,
)
from .figures import figure, picture_of, raw, word
from .sections import (
    Axis,
    Cell,
    Column,
    Fact,
    Facts,
    FirstScreen,
    Headline,
    KeyFigure,
    Range,
    Ranges,
    Row,
    Scatter,
    Section,
    Spot,
    Table,
)

_SHOWN = {
    "rank": "",
    "machine": "machine",
    "kind": "pay",
    "usd_per_hour": "USD/h",
    "samples_per_usd": "samples per USD",
    "usd_per_million_samples": "USD/million",
    "job_usd": "job, USD",
    "job_s": "job, time",
    "answer": "a sample costs",
}
_PAGES = {"samples_per_s": "samples/s"}
_DATA = (
    *("workload", "hosts", "instances", "run_ids", "interval_basis", "runs"),
    *("currency", "region", "priced", "source"),
    *("samples_per_usd_low", "samples_per_usd_high", "never_interrupted", "save_blocked_s"),
    *("lost_share", "waiting_usd_per_hour", "wanted_samples_per_s", "storage_samples_per_s"),
    *("storage_limits", "if_storage_grows", "break_even_interruptions_per_hour"),
    *("preparation_s", "samples_in_budget", "within_deadline", "within_budget"),
    *("hosts_in_time", "in_time_usd", "ratio", "ratio_low", "ratio_high"),
)
_JOB = ("job_usd", "job_s")
_WORDS = ("machine", "kind", "answer")


def sections(found: Sequence[Ranking], left_out: Sequence[str]) -> list[Section]:
    """For each workload its best option in words, a table of all, and the details of each."""
    parts = [
        section
        for number, one in enumerate(found, start=1)
        for section in _ranking(one, f"cost-{number}")
    ]
    return parts + left_out_sections(left_out)


def _ranking(one: Ranking, name: str) -> Iterator[Section]:
    charts = cost_charts(one, name)
    yield _first(one, name, charts)
    yield Headline(id=name, title=title(one), sentences=tuple(sentences(one)))
    yield from charts
    if one.options:
        job = any(option.figures.job_s is not None for option in one.options)
        columns = (*_SHOWN, *_PAGES, *_DATA)
        yield Table(
            id=f"{name}-options",
            columns=tuple(_column(column, job=job) for column in columns),
            rows=tuple(
                _row(one, number, option, columns)
                for number, option in enumerate(one.options, start=1)
            ),
        )
    facts = [
        Fact(label=f"option {number}", text=text)
        for number, option in enumerate(one.options, start=1)
        for text in details(one, number)
    ]
    facts += [Fact(label="break-even", text=break_even(each)) for each in one.break_evens]
    facts += [Fact(label="interval", text=text) for text in bases(one)]
    notes = dict.fromkeys(note for option in one.options for note in option.figures.notes)
    facts += [Fact(label="note", text=note) for note in notes]
    facts += [
        Fact(label="no price", text=f"the price of {kind} is not known: give --host-price-per-hour")
        for kind in one.without_price
    ]
    yield Facts(id=f"{name}-details", facts=tuple(facts))


def _first(one: Ranking, name: str, charts: Sequence[Section]) -> FirstScreen:
    """The first screen of a page: what a sample costs with the best option, and with others."""
    gauges = []
    if one.options:
        paid = one.options[0].figures
        if paid.usd_per_million_samples:
            cheapest = f"{paid.usd_per_million_samples:.4g} USD"
            gauges.append(KeyFigure(label="a million samples", value=cheapest))
        if paid.job_usd is not None and paid.job_s is not None:
            took = f"in {format_duration(paid.job_s)}"
            gauges.append(
                KeyFigure(label="the job", value=f"{plain_usd(paid.job_usd)} USD", note=took)
            )
    return FirstScreen(
        id=f"{name}-answer",
        job=title(one),
        state=f"{counted(len(one.options), 'way')} to pay" if one.options else "no price",
        sentences=tuple(sentences(one)),
        gauges=tuple(gauges),
        picture=picture_of(charts[0]) if charts else None,
        instead=name,
    )


def _column(name: str, *, job: bool) -> Column:
    shown = name in _SHOWN and (job or name not in _JOB)
    return Column(
        name=name,
        label=_SHOWN.get(name) or _PAGES.get(name, ""),
        align="left" if name in _WORDS else "right",
        where="everywhere" if shown else "pages" if name in _PAGES else "data",
    )


def _row(one: Ranking, rank: int, option: Option, columns: Sequence[str]) -> Row:
    pace, against = option.slowest.pace, option.against
    paid = option.figures
    most = "at most " if paid.never_interrupted else ""
    cells = {
        "rank": Cell(value=rank, text=str(rank)),
        "machine": word(option.machine),
        "kind": word(paid.kind),
        "usd_per_hour": Cell(value=paid.usd_per_hour, text=f"{paid.usd_per_hour:.4g}"),
        "samples_per_usd": Cell(value=paid.samples_per_usd, text=most + samples_per_usd(option)),
        "usd_per_million_samples": figure(paid.usd_per_million_samples, lambda usd: f"{usd:.4g}"),
        "job_usd": figure(paid.job_usd, plain_usd),
        "job_s": figure(paid.job_s, format_duration),
        "samples_per_s": Cell(
            value=paid.samples_per_s,
            text=most + format_count(paid.samples_per_s),
        ),
        "answer": _answer(option),
        "save_blocked_s": raw(paid.saving.blocked_s if paid.saving else None),
        "workload": raw(one.workload),
        "hosts": raw(option.hosts),
        "instances": raw(" ".join(part.instance.type for part in option.parts)),
        "run_ids": raw(" ".join(run_id for part in option.parts for run_id in part.run_ids)),
        "interval_basis": raw(pace.basis),
        "runs": raw(len(pace.values)),
        "ratio": raw(against.ratio if against else 1.0),
        "ratio_low": raw(against.low if against else 1.0),
        "ratio_high": raw(against.high if against else 1.0),
        **{
            key: raw(", ".join(dict.fromkeys(getattr(price, key) for price in paid.prices)))
            for key in ("currency", "region", "priced", "source")
        },
    }
    return Row(
        cells=tuple(cells.get(name) or raw(getattr(option.figures, name)) for name in columns)
    )


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


MILLION = 1e6


def cost_charts(one: Ranking, name: str) -> list[Section]:
    """USD for a million samples of each way to pay, and USD over time. The table follows them."""
    options = [option for option in one.options if option.figures.usd_per_million_samples]
    if not options:
        return []
    rows = tuple(
        Range(
            label=_label(option),
            text=_text(option),
            value=option.figures.usd_per_million_samples or 0.0,
            low=_usd(option.figures.samples_per_usd_high),
            high=_usd(option.figures.samples_per_usd_low),
            mark="best known"
            if option is one.options[0] and not option.figures.never_interrupted
            else "",
        )
        for option in options
    )
    axis = Axis(label="USD for a million samples", unit="count")
    found: list[Section] = [
        Ranges(id=f"{name}-usd", title="What a million samples cost", axis=axis, rows=rows)
    ]
    return [*found, *_over_time(options, name)]


def _label(option: Option) -> str:
    return f"{option.figures.kind}, {option.machine}"


def _usd(samples_per_usd: float | None) -> float | None:
    return MILLION / samples_per_usd if samples_per_usd else None


def _text(option: Option) -> str:
    least = "at least " if option.figures.never_interrupted else ""
    low, high = _usd(option.figures.samples_per_usd_high), _usd(option.figures.samples_per_usd_low)
    interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    return f"{least}{option.figures.usd_per_million_samples:.4g}{interval}"


def _million_s(option: Option) -> float | None:
    return MILLION / option.figures.samples_per_s if option.figures.samples_per_s else None


def _over_time(options: list[Option], name: str) -> list[Section]:
    """USD over the time of the job, or of a million samples where no job was stated.

    A figure that is only a bound, since interruptions are not known, beats nothing: it is left out.
    """
    bounds = [option for option in options if option.figures.never_interrupted]
    options = [option for option in options if not option.figures.never_interrupted]
    job = all(option.figures.job_s and option.figures.job_usd for option in options)
    known = [
        (option, seconds, paid)
        for option in options
        if (seconds := option.figures.job_s if job else _million_s(option)) is not None
        and (paid := option.figures.job_usd if job else option.figures.usd_per_million_samples)
        is not None
    ]
    if len(known) < 2:
        return []
    what = "of the job" if job else "of a million samples"
    left_out = ", without spot: its interruptions are not known" if bounds else ""
    kept = front([(seconds, paid) for _, seconds, paid in known])
    return [
        Scatter(
            id=f"{name}-time",
            title=f"Pareto front of the cost and the time {what}{left_out}",
            x=Axis(label=f"time {what}", unit="s"),
            y=Axis(label=f"USD {what}", unit="count"),
            better="less",
            spots=tuple(
                Spot(
                    label=_label(option),
                    text=f"{plain_usd(paid)} USD, {format_duration(seconds)}",
                    x=seconds,
                    y=paid,
                    front=on,
                )
                for (option, seconds, paid), on in zip(known, kept, strict=True)
            ),
        )
    ]
