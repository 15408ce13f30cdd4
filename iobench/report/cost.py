"""``iobench cost``: samples per dollar, then details of the cost, with the dates of the prices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from ..analyse.compare.cost import MAX_HOSTS, Cost, Price
from ..schema.instances import Instance
from ..units import format_count, format_duration, format_percent
from .compare import left_out_sections
from .figures import raw, spread, word
from .sections import Cell, Column, Fact, Facts, Headline, Row, Section, Table

_PRICE = tuple(field.name for field in fields(Price))
_LABELS = {
    "workload": "workload",
    "instance": "instance",
    "hosts": "hosts",
    "kind": "pay",
    "priced": "priced",
    "usd_per_hour": "USD/h",
    "samples_per_s": "samples/s",
    "samples_per_usd": "samples per USD",
    "usd_per_million_samples": "USD per million",
}
"""The columns that people see; the details of the others are below the table."""

_PAGES = ("workload", "instance", "hosts", "samples_per_s")
_WORDS = ("workload", "instance", "kind", "priced")


def sections(costs: Sequence[Cost], left_out: Sequence[str]) -> list[Section]:
    """For each run its rate, a table with a row for each way to pay, and the details of each."""
    best = max((price.samples_per_usd for one in costs for price in one.prices), default=0.0)
    parts = [
        section
        for number, one in enumerate(costs, start=1)
        for section in _cost(one, f"cost-{number}", best)
    ]
    return parts + left_out_sections(left_out)


def _cost(one: Cost, name: str, best: float) -> list[Section]:
    kind = one.instance
    holds = (
        f" ({kind.accelerators or ''} {kind.accelerator})".replace("( ", "(")
        if kind.accelerator
        else ""
    )
    many = f"{one.hosts} x " if one.hosts > 1 else ""
    rate = spread(*one.samples_per_s, format_count)
    found: list[Section] = [
        Headline(
            id=name, title=f"{one.workload} on {many}{kind.type}{holds}: {rate} samples/s each"
        )
    ]
    if one.prices:
        columns = tuple(
            _column(name) for name in ("run_id", "workload", "instance", "hosts", "region", *_PRICE)
        )
        rows = tuple(_row(one, price, best) for price in one.prices)
        found.append(Table(id=f"{name}-prices", columns=columns, rows=rows))
    facts = []
    if one.preparation_s is not None:
        written = format_duration(one.preparation_s)
        text = f"the loader's own layout takes {written} to write, once: counted in a job"
        facts.append(Fact(label="layout", text=text))
    for price in one.prices:
        facts += [Fact(label=price.kind, text=text) for text in _details(price)]
    facts += [Fact(label="note", text=text) for text in one.notes]
    if not one.prices:
        text = "no price is known: give one with --host-price-per-hour"
        facts.append(Fact(label="price", text=text))
    facts.append(Fact(label="run", text=one.run_id))
    return [*found, Facts(id=f"{name}-details", facts=tuple(facts))]


def _column(name: str) -> Column:
    return Column(
        name=name,
        label=_LABELS.get(name, ""),
        align="left" if name in _WORDS else "right",
        where="data" if name not in _LABELS else "pages" if name in _PAGES else "everywhere",
    )


def _row(one: Cost, price: Price, best: float) -> Row:
    million = price.usd_per_million_samples
    region = _region(price, one.instance.region)
    told = spread(
        price.samples_per_usd, price.samples_per_usd_low, price.samples_per_usd_high, format_count
    )
    shown = {
        "kind": price.kind,
        "priced": ", ".join([price.priced or "of unknown date", *([region] if region else [])]),
        "usd_per_hour": f"{price.usd_per_hour:g}",
        "samples_per_s": format_count(price.samples_per_s),
        "samples_per_usd": told,
        "usd_per_million_samples": "-" if million is None else f"{million:.4g}",
    }
    fewer = 0 < price.samples_per_usd < best
    return Row(
        cells=(
            raw(one.run_id),
            word(one.workload),
            word(one.instance.type),
            Cell(value=one.hosts, text=str(one.hosts)),
            raw(region),
            *(Cell(value=getattr(price, name), text=shown.get(name, "")) for name in _PRICE),
        ),
        mark=f"{best / price.samples_per_usd:.3g} x fewer than the best" if fewer else "",
    )


def _usd(value: float) -> str:
    return f"{value:,.2f} USD" if value >= 1 else f"{value:.4g} USD"


def _details(price: Price) -> list[str]:
    found = ["nothing is trained"] if price.usd_per_million_samples is None else []
    if price.waiting_usd_per_hour is not None:
        found.append(f"{_usd(price.waiting_usd_per_hour)} an hour are paid while accelerators wait")
    if price.lost_share:
        found.append(f"{format_percent(price.lost_share)} of the time is lost to interruptions")
    if price.job_s is not None and price.job_usd is not None:
        dear = (
            ""
            if price.within_budget is None
            else ", within the budget"
            if price.within_budget
            else ", OVER the budget"
        )
        found.append(
            f"the job takes {format_duration(price.job_s)} and "
            f"{_usd(price.job_usd)}{dear}{_late(price)}"
        )
    elif price.within_deadline is False or price.within_budget is False:
        found.append("the job never ends")
    if price.samples_in_budget is not None:
        found.append(f"the budget buys {format_count(price.samples_in_budget)} samples")
    return found


def _region(price: Price, region: str | None) -> str:
    """The region of a price from the table; a price that a user stated has no known region."""
    return region if region and price.priced[:1].isdigit() else ""


def _late(price: Price) -> str:
    if price.within_deadline is None:
        return ""
    if price.within_deadline:
        return ", in time"
    if price.hosts_in_time is None or price.in_time_usd is None:
        return f", TOO LATE, and so are up to {MAX_HOSTS} hosts"
    return (
        f", TOO LATE: {format_count(price.hosts_in_time)} hosts would be in time, for "
        f"{_usd(price.in_time_usd)}"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class CostRecord:
    """The cost of one run in the JSON document."""

    run_id: str
    workload: str
    instance: Instance
    hosts: int
    samples_per_s: Mapping[str, float]
    accelerator_utilization_strict: float | None
    preparation_s: float | None
    notes: tuple[str, ...]
    prices: tuple[Price, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """The JSON document of ``iobench cost``."""

    costs: tuple[CostRecord, ...]
    left_out: tuple[str, ...]


def document(costs: Sequence[Cost], left_out: Sequence[str]) -> Document:
    """The costs, and the runs that were left out."""
    records = tuple(
        CostRecord(
            run_id=one.run_id,
            workload=one.workload,
            instance=one.instance,
            hosts=one.hosts,
            samples_per_s=dict(zip(("median", "min", "max"), one.samples_per_s, strict=True)),
            accelerator_utilization_strict=one.utilization,
            preparation_s=one.preparation_s,
            notes=one.notes,
            prices=one.prices,
        )
        for one in costs
    )
    return Document(costs=records, left_out=tuple(left_out))
