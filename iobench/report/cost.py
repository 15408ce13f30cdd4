"""``iobench cost``: the ways to pay for a training, best first, with the sources of the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ask.compare.cost import Option
from ..ask.compare.ranking import Ranking
from ..base.units import counted, format_count, format_duration
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
from .figures import MAX_BARS, figure, picture, raw, word
from .sections import (
    Cell,
    Chart,
    Column,
    Fact,
    Facts,
    FirstScreen,
    Headline,
    KeyFigure,
    Row,
    Section,
    Table,
    Where,
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
_TITLE = "What a million samples cost"
_CHARTED = {"usd": "USD for a million samples"}
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
    yield _first(one, name)
    yield Headline(id=name, title=title(one), sentences=sentences(one))
    if one.options:
        job = any(option.figures.job_s is not None for option in one.options)
        columns = (*_SHOWN, *_PAGES, *_DATA, *_CHARTED)
        yield Table(
            id=f"{name}-options",
            columns=tuple(_column(column, job=job) for column in columns),
            rows=tuple(
                _row(one, number, option, columns)
                for number, option in enumerate(one.options, start=1)
            ),
            charts=tuple(cost_charts(one)),
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


def _first(one: Ranking, name: str) -> FirstScreen:
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
        sentences=sentences(one),
        gauges=tuple(gauges),
        picture=picture(_TITLE, _bars(one)[:MAX_BARS]),
        instead=name,
    )


def _column(name: str, *, job: bool) -> Column:
    shown = name in _SHOWN and (job or name not in _JOB)
    where: Where = "everywhere" if shown else "pages" if name in _PAGES else "data"
    return Column(
        name=name,
        label=(_SHOWN | _PAGES | _CHARTED).get(name, ""),
        unit="s" if name == "job_s" else "",
        align="left" if name in _WORDS else "right",
        where="page" if name in _CHARTED else where,
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
        "usd": Cell(
            value=paid.usd_per_million_samples,
            text=_text(option) if paid.usd_per_million_samples else "",
            low=_usd(paid.samples_per_usd_high),
            high=_usd(paid.samples_per_usd_low),
        ),
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
    over = Chart(kind="front", y=(usd,), label=names, rows=known)
    if len(known) < 2:
        return
    if all(one.options[at].figures.job_s and one.options[at].figures.job_usd for at in known):
        yield replace(
            over,
            x="job_s",
            y=("job_usd",),
            title=title % "the job",
            x_label="time of the job",
            y_label="USD of the job",
            better=("less", "less"),
        )
    else:
        yield replace(
            over, x="samples_per_s", title=title % "a million samples", better=("more", "less")
        )


def _bars(one: Ranking) -> list[tuple[str, float | None, str, str]]:
    """The bars of the first screen."""
    rows: list[tuple[str, float | None, str, str]] = []
    for number, option in enumerate(one.options):
        paid = option.figures
        if paid.usd_per_million_samples:
            mark = "best known" if not number and not paid.never_interrupted else ""
            rows.append((_label(option), paid.usd_per_million_samples, _text(option), mark))
    return rows


def _label(option: Option) -> str:
    return f"{option.figures.kind}, {option.machine}"


def _usd(samples_per_usd: float | None) -> float | None:
    return MILLION / samples_per_usd if samples_per_usd else None


def _text(option: Option) -> str:
    least = "at least " if option.figures.never_interrupted else ""
    low, high = _usd(option.figures.samples_per_usd_high), _usd(option.figures.samples_per_usd_low)
    interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    return f"{least}{option.figures.usd_per_million_samples:.4g}{interval}"
