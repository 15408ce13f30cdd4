"""``iobench size`` of requests that arrive: how long a read may take, and what follows."""

from __future__ import annotations

from collections.abc import Iterator

from ..ask.capacity.requests import ServedNeed
from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..judge.serving import quantile_text
from .figures import facts
from .sections import FirstScreen, KeyFigure, Section


def request_sections(need: ServedNeed) -> list[Section]:
    most = need.most_read_s
    limit = f"{format_duration(need.limit_s)} at {quantile_text(need.quantile)}"
    first = FirstScreen(
        job=f"{format_count(need.rate)} requests/s of {need.scenario} within {limit}",
        state="no storage is fast enough" if most is None else f"reads of {_lengths(need)}",
        sentences=tuple(_sentences(need, limit)),
        gauges=tuple(_gauges(need)),
    )
    how = f"{counted(need.simulated, 'request')} in virtual time, with the arrivals and the "
    how += "accelerators of the scenario; reads alone vary"
    size = format_bytes(need.sample_bytes)
    rows = [
        ("reads", f"{format_count(need.rate)}/s of {size}, one a request"),
        ("readers", f"{counted(need.readers, 'read')} in flight at most (reader.concurrency)"),
        ("accelerators", f"busy for {format_percent(need.busy)} of the time"),
        ("how", how),
    ]
    return [first, facts("requirement", "How it was computed", rows)]


def _lengths(need: ServedNeed) -> str:
    most, slow = need.most_read_s or 0.0, need.most_read_p99_s
    if slow is None or slow <= most:
        return f"{format_duration(most)} or less"
    return f"{format_duration(most)} at p50 and {format_duration(slow)} at p99 or less"


def _sentences(need: ServedNeed, limit: str) -> Iterator[str]:
    if need.most_read_s is None:
        yield (
            f"Even with reads that take no time, {limit} does not hold: the accelerators are busy "
            f"for {format_percent(need.busy)} of the time."
        )
        return
    yield (
        f"Buy storage whose reads of {format_bytes(need.sample_bytes)} take {_lengths(need)}, "
        f"while it delivers {format_rate(need.bytes_per_s)}."
    )
    if need.read_s is not None and need.latency_s is not None:
        told = "hold it" if need.holds else "do not hold it"
        whose = f"The reads of {need.measured_run}" if need.measured_run else "These reads"
        found = f"{quantile_text(need.quantile)} is {format_duration(need.latency_s)}"
        yield f"{whose} {told}: {found}."
    if need.measured_rate is not None and need.measured_rate < need.rate:
        yield (
            f"They were measured at {format_count(need.measured_rate)} requests/s; with more of "
            "them a storage may read more slowly."
        )


def _gauges(need: ServedNeed) -> Iterator[KeyFigure]:
    yield KeyFigure("bandwidth", format_rate(need.bytes_per_s), "if each sample is read once")
    if need.in_flight is not None and need.in_flight_most is not None:
        most = f"at most {format_count(need.in_flight_most)} at 99.9 % of the arrivals"
        yield KeyFigure("reads in flight", format_count(need.in_flight), most)
    if need.read_s is not None:
        slow = format_duration(need.read_p99_s or 0.0)
        yield KeyFigure("reads", format_duration(need.read_s), f"at p50, {slow} at p99")
