"""``iobench cost``: the ways to pay for a training, best first, with the sources of the prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..analyse.compare.cost import Option
from ..analyse.compare.ranking import Against, Ranking
from ..units import format_count, format_duration
from .compare import left_out_sections
from .cost_charts import cost_charts
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
from .figures import figure, raw, word
from .sections import Cell, Column, Fact, Facts, Headline, Row, Section, Table

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
    yield Headline(id=name, title=title(one), sentences=tuple(sentences(one)))
    yield from cost_charts(one, name)
    if one.options:
        job = any(option.job_s is not None for option in one.options)
        columns = (*_SHOWN, *_PAGES, *_DATA)
        yield Table(
            id=f"{name}-options",
            columns=tuple(_column(column, job=job) for column in columns),
            rows=tuple(
                _row(one, number, option, against, columns)
                for number, (option, against) in enumerate(
                    zip(one.options, one.against, strict=True), start=1
                )
            ),
        )
    facts = [
        Fact(label=f"option {number}", text=text)
        for number, option in enumerate(one.options, start=1)
        for text in details(one, number)
    ]
    facts += [Fact(label="break-even", text=break_even(each)) for each in one.break_evens]
    facts += [Fact(label="interval", text=text) for text in bases(one)]
    notes = dict.fromkeys(note for option in one.options for note in option.notes)
    facts += [Fact(label="note", text=note) for note in notes]
    facts += [
        Fact(label="no price", text=f"the price of {kind} is not known: give --host-price-per-hour")
        for kind in one.without_price
    ]
    yield Facts(id=f"{name}-details", facts=tuple(facts))


def _column(name: str, *, job: bool) -> Column:
    shown = name in _SHOWN and (job or name not in _JOB)
    return Column(
        name=name,
        label=_SHOWN.get(name) or _PAGES.get(name, ""),
        align="left" if name in _WORDS else "right",
        where="everywhere" if shown else "pages" if name in _PAGES else "data",
    )


def _row(
    one: Ranking, rank: int, option: Option, against: Against | None, columns: Sequence[str]
) -> Row:
    pace = option.slowest.pace
    most = "at most " if option.never_interrupted else ""
    cells = {
        "rank": Cell(value=rank, text=str(rank)),
        "machine": word(option.machine),
        "kind": word(option.kind),
        "usd_per_hour": Cell(value=option.usd_per_hour, text=f"{option.usd_per_hour:.4g}"),
        "samples_per_usd": Cell(value=option.samples_per_usd, text=most + samples_per_usd(option)),
        "usd_per_million_samples": figure(option.usd_per_million_samples, lambda usd: f"{usd:.4g}"),
        "job_usd": figure(option.job_usd, plain_usd),
        "job_s": figure(option.job_s, format_duration),
        "samples_per_s": Cell(
            value=option.samples_per_s, text=most + format_count(option.samples_per_s)
        ),
        "answer": _answer(option, against),
        "save_blocked_s": raw(option.saving.blocked_s if option.saving else None),
        "workload": raw(one.workload),
        "instances": raw(" ".join(part.instance.type for part in option.parts)),
        "run_ids": raw(" ".join(doc.run_id for part in option.parts for doc in part.pace.runs)),
        "interval_basis": raw(pace.basis),
        "runs": raw(len(pace.values)),
        "ratio": raw(against.ratio if against else 1.0),
        "ratio_low": raw(against.low if against else 1.0),
        "ratio_high": raw(against.high if against else 1.0),
        **{
            key: raw(", ".join(dict.fromkeys(getattr(price, key) for price in option.prices)))
            for key in ("currency", "region", "priced", "source")
        },
    }
    return Row(cells=tuple(cells.get(name) or raw(getattr(option, name)) for name in columns))


def _answer(option: Option, against: Against | None) -> Cell:
    """What is told of the option, compared with the best one."""
    if not option.samples_per_usd:
        return Cell(value="different", text="nothing is trained")
    missed = "" if option.in_time_and_budget else f", {_missed(option)}"
    if against is None:
        return Cell(value="best", text=f"the least{missed}")
    text = {"equal": "as much", "different": "", "not told": "not told"}[against.answer]
    ratio = times(against)
    text = f"{text}: {ratio}" if text and ratio else text or ratio
    return Cell(value=against.answer, text=text + missed)


def _missed(option: Option) -> str:
    late, dear = option.within_deadline is False, option.within_budget is False
    return " and ".join(["TOO LATE"] * late + ["OVER the budget"] * dear)
