"""Output of ``iobench cost``: samples per dollar, then details of the cost, with price dates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from ..analyse.compare.cost import MAX_HOSTS, Cost, Price
from ..documents import json_text
from ..text import markdown, printable, renders
from ..units import format_count, format_duration, format_percent
from .lines import csv_text, wrapped


def render(costs: Sequence[Cost], left_out: Sequence[str], *, kind: str) -> str:
    """The costs as text, JSON, CSV or markdown."""
    return {"text": _text, "json": _json, "csv": _csv, "markdown": _markdown}[kind](costs, left_out)


def _usd(value: float) -> str:
    return f"{value:,.2f} USD" if value >= 1 else f"{value:.4g} USD"


@renders(printable)
def _text(costs: Sequence[Cost], left_out: Sequence[str], width: int = 110) -> str:
    lines: list[str] = []
    best = max((price.samples_per_usd for one in costs for price in one.prices), default=0.0)
    for one in costs:
        kind = one.instance
        holds = (
            f" ({kind.accelerators or ''} {kind.accelerator})".replace("( ", "(")
            if kind.accelerator
            else ""
        )
        many = f"{one.hosts} x " if one.hosts > 1 else ""
        middle, low, high = one.samples_per_s
        lines.append(
            f"{one.workload} on {many}{kind.type}{holds}: {_rate(middle)} [{_rate(low)}, "
            f"{_rate(high)}] samples/s each"
        )
        if one.preparation_s is not None:
            lines.append(
                f"  the loader's own layout takes {format_duration(one.preparation_s)} to write, "
                "once: counted in a job"
            )
        for price in one.prices:
            some = 0 < price.samples_per_usd < best
            share = f", {best / price.samples_per_usd:.3g} x fewer than the best" if some else ""
            head = (
                f"{format_count(price.samples_per_usd)} samples per dollar {_range(price)}{share}"
            )
            lines += wrapped(head, width, f"  {price.kind:<10}", " " * 12)
            for text in _details(price, kind.region):
                lines += wrapped(text, width, " " * 12, " " * 14)
        for note in one.notes:
            lines += wrapped(f"note: {note}", width, "  ", "    ")
        if not one.prices:
            lines.append("  no price is known: give one with --host-price-per-hour")
        lines.append(f"  run {one.run_id}")
        lines.append("")
    lines += [line for why in left_out for line in wrapped(f"left out: {why}", width, "", "  ")]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"


def _rate(value: float) -> str:
    return format_count(value)


def _range(price: Price) -> str:
    return (
        f"[{format_count(price.samples_per_usd_low)}, {format_count(price.samples_per_usd_high)}]"
    )


def _details(price: Price, region: str | None) -> list[str]:
    where = f", {_region(price, region)}" if _region(price, region) else ""
    million = price.usd_per_million_samples
    each = "nothing is trained" if million is None else f"{_usd(million)} for a million samples"
    found = [f"{each}, at {price.usd_per_hour:g} USD an hour (price {_priced(price)}{where})"]
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


def _priced(price: Price) -> str:
    return f"of {price.priced}" if price.priced[:1].isdigit() else price.priced or "of unknown date"


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


def _records(costs: Sequence[Cost]) -> list[dict[str, object]]:
    return [
        {
            "run_id": one.run_id,
            "workload": one.workload,
            "instance": one.instance.model_dump(mode="json"),
            "hosts": one.hosts,
            "samples_per_s": dict(zip(("median", "min", "max"), one.samples_per_s, strict=True)),
            "accelerator_utilization_strict": one.utilization,
            "preparation_s": one.preparation_s,
            "notes": list(one.notes),
            "prices": [
                {field.name: getattr(price, field.name) for field in fields(price)}
                for price in one.prices
            ],
        }
        for one in costs
    ]


def _json(costs: Sequence[Cost], left_out: Sequence[str]) -> str:
    return json_text({"costs": _records(costs), "left_out": list(left_out)}) + "\n"


@renders(printable)
def _csv(costs: Sequence[Cost], left_out: Sequence[str]) -> str:
    names = [field.name for field in fields(Price)]
    rows = [
        (
            *(one.run_id, one.workload, one.instance.type, one.hosts),
            _region(price, one.instance.region),
            *(getattr(price, name) for name in names),
        )
        for one in costs
        for price in one.prices
    ]
    return csv_text([("run_id", "workload", "instance", "hosts", "region", *names), *rows])


@renders(markdown)
def _markdown(costs: Sequence[Cost], left_out: Sequence[str]) -> str:
    names = (
        "workload",
        "instance",
        "hosts",
        "pay",
        "USD/h",
        "samples/s",
        "samples per USD",
        "USD per million",
        "priced",
        "region",
    )
    lines = [f"| {' | '.join(names)} |", "|---|---|---:|---|---:|---:|---:|---:|---|---|"]
    for one in costs:
        for price in one.prices:
            cells = [
                one.workload,
                one.instance.type,
                str(one.hosts),
                price.kind,
                f"{price.usd_per_hour:g}",
            ]
            cells += [
                format_count(price.samples_per_s),
                f"{format_count(price.samples_per_usd)} {_range(price)}",
            ]
            cells += [
                "-"
                if price.usd_per_million_samples is None
                else f"{price.usd_per_million_samples:.4g}",
                price.priced,
            ]
            cells.append(_region(price, one.instance.region))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"- left out: {why}" for why in left_out)]).rstrip() + "\n"
