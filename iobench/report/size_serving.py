"""What serving needs: the storage of loads of a model's weights, and of requests that arrive.

Loads also on another storage than they were measured on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ask.capacity.loads import LoadCost, LoadGuess, LoadNeed, LoadWhatIf
from ..ask.capacity.requests import ServedNeed
from ..ask.capacity.scaling import Band
from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..judge.serving import quantile_text
from .cost import in_usd, plain_usd
from .figures import ENDS, MAX_BARS, TableOf, facts, picture, with_interval, word
from .sections import Cell, FirstScreen, KeyFigure, Section


def load_sections(need: LoadNeed) -> list[Section]:
    buy = need.storage_bytes_per_s
    many = counted(need.replicas, "replica")
    first = FirstScreen(
        job=f"{many} of {need.model} ready in {format_duration(need.ready_s)}",
        state="no rate is enough" if buy is None else f"{format_rate(buy)} to buy",
        sentences=tuple(_load_sentences(need)),
        gauges=tuple(_load_gauges(need)),
    )
    rows = [
        ("weights", f"{format_bytes(need.bytes)}, read once by each replica, on a host of its own"),
        ("before", "nothing local: no host has anything of the files"),
        ("engine start", f"{format_duration(need.engine_start_s)}, as given"),
        ("without storage", f"{format_duration(need.rest_s)} of a load, by the run of --from"),
        ("rate", "replicas x weights / (ready - engine start - without storage)"),
    ]
    shown = [row for row in rows if not row[1].startswith("0 s")]
    return [first, facts("requirement", "How it was computed", shown)]


def _load_sentences(need: LoadNeed) -> Iterator[str]:
    buy, one = need.storage_bytes_per_s, need.host_bytes_per_s
    ready = format_duration(need.ready_s)
    if buy is None or one is None:
        fixed = format_duration(need.engine_start_s + need.rest_s)
        yield f"No storage is fast enough: {fixed} pass without it, and {ready} are allowed."
        return
    yield (
        f"To have {counted(need.replicas, 'replica')} ready in {ready}, buy storage that sustains "
        f"{format_rate(buy)} of uncached reads for all hosts together."
    )
    if need.replicas > 1:
        yield f"If the weights are read once and passed on between hosts, {format_rate(one)} do."


def _load_gauges(need: LoadNeed) -> Iterator[KeyFigure]:
    host, network = need.host_bytes_per_s, need.network_bytes_per_s
    if host is not None:
        beside = ""
        if network is not None:
            enough = "is enough" if network >= host else "is too slow"
            beside = f"(its network, {format_rate(network)}, {enough})"
        yield KeyFigure("each host", format_rate(host), beside)
    if need.loading_usd is not None:
        hosts = f"{counted(need.replicas, 'host')} at {need.host_usd_per_hour:.2f} USD an hour"
        yield KeyFigure("while loading", in_usd(need.loading_usd), f"a start ({hosts})")
    if need.measured_bytes_per_s is not None and need.measured_ready_s is not None:
        by = f"all ready after {format_duration(need.measured_ready_s)}"
        if need.storage_bytes_per_s:
            share = need.measured_bytes_per_s / need.storage_bytes_per_s
            by = f"{format_percent(share)} of it, {by}"
        yield KeyFigure("measured", format_rate(need.measured_bytes_per_s), f"({by})")


def loads_at_sections(found: LoadWhatIf) -> list[Section]:
    """The loads of a run on a storage with another bandwidth."""
    best = min(found.loads, key=lambda each: each.predicted_s.high)
    bars = [
        (_name(each), each.predicted_s.high, f"{format_duration(each.ready_s)} recorded")
        for each in found.loads
    ]
    to, after = format_rate(found.bandwidth), _between(best.predicted_s)
    first = FirstScreen(
        job=f"Load of {found.model} from a storage of {to}",
        state=f"{after} predicted",
        sentences=(
            f"With {to} instead of {format_rate(found.was)}, the weights are there after {after} "
            f"by the loader {best.loader}, not after {format_duration(best.ready_s)}.",
        ),
        picture=picture(
            "Seconds until the slowest replica has its weights, at most", bars, format_duration
        ),
    )
    rows = TableOf(found.loads)
    rows.add("loader", "loader")
    rows.add("replicas", "replicas", of=_replicas)
    rows.add_each({"ready_s": "recorded"})
    rows.add("predicted", "predicted", "", lambda each: _between(each.predicted_s))
    rows.data("predicted_low_s", of=lambda each: each.predicted_s.low)
    rows.data("predicted_high_s", of=lambda each: each.predicted_s.high)
    notes = [
        "what a load takes without the storage stays; the two ends are the times of a loader that "
        "reads nothing beside its other work, and of one that reads all the time"
    ]
    return [first, rows.made("loads", "Loads", notes=notes)]


def _between(seconds: Band) -> str:
    """``1.37 s``, or ``1.37 s to 2.70 s``."""
    low, high = format_duration(seconds.low), format_duration(seconds.high)
    return low if low == high else f"{low} to {high}"


def load_cost_sections(costs: Sequence[LoadCost]) -> list[Section]:
    """What hosts cost while replicas load, the cheapest first; nothing without any."""
    if not costs:
        return []
    ranked = sorted(costs, key=lambda each: each.usd)
    best, worst = ranked[0], ranked[-1]
    sentences = [
        f"A start of {counted(best.replicas, 'replica')} of {best.model} costs "
        f"{in_usd(best.usd)} on {best.machine}, {best.kind}, by the loader {best.loader}; "
        f"the files before: {best.retained or 'not known'}."
    ]
    if worst.usd > best.usd:
        sentences.append(
            f"The dearest way here costs {in_usd(worst.usd)}: {_name(worst)} on "
            f"{worst.machine}, {worst.kind}."
        )
    bars = [(f"{_name(each)}, {each.machine} {each.kind}", each.usd, "") for each in ranked]
    first = FirstScreen(
        job=f"Loads of {best.model}",
        state=f"{in_usd(best.usd)} a start",
        sentences=tuple(sentences),
        gauges=(KeyFigure("1,000 starts", in_usd(1000 * best.usd)),),
        picture=picture("USD until the slowest replica is ready", bars[:MAX_BARS], in_usd),
    )
    rows = TableOf(ranked)
    rows.add("loader", "loader")
    rows.add("replicas", "replicas", of=_replicas)
    rows.add("machine", "hosts")
    rows.add("kind", "paid")
    rows.add("usd_per_hour", "USD/hour", show=plain_usd)
    rows.add("seconds", "ready", "s")
    rows.add("usd", "USD a start [min, max]", of=_usd, ends=ENDS)
    rows.add("retained", "files before", of=lambda each: each.retained or "-")
    notes = ["All hosts are paid for until the slowest replica of the run was ready."]
    return [first, rows.made("load-costs", "What a start costs", notes=notes)]


def _usd(each: LoadCost) -> Cell:
    return with_interval(each.usd, each.usd_low, each.usd_high, plain_usd, each.rounds)


def _name(each: LoadGuess | LoadCost) -> str:
    return f"{each.loader}, {_replicas(each).text}"


def _replicas(each: LoadGuess | LoadCost) -> Cell:
    text = f"{counted(each.replicas, 'replica')}{', one read' if each.one_read else ''}"
    return word(text, each.replicas)


def request_sections(need: ServedNeed) -> list[Section]:
    most = need.most_read_s
    limit = f"{format_duration(need.limit_s)} at {quantile_text(need.quantile)}"
    first = FirstScreen(
        job=f"{format_count(need.rate)} requests/s of {need.scenario} within {limit}",
        state="no storage is fast enough" if most is None else f"reads of {_lengths(need)}",
        sentences=tuple(_request_sentences(need, limit)),
        gauges=tuple(_request_gauges(need)),
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


def _request_sentences(need: ServedNeed, limit: str) -> Iterator[str]:
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


def _request_gauges(need: ServedNeed) -> Iterator[KeyFigure]:
    yield KeyFigure("bandwidth", format_rate(need.bytes_per_s), "if each sample is read once")
    if need.in_flight is not None and need.in_flight_most is not None:
        most = f"on average, at most {format_count(need.in_flight_most)} at 99.9 % of the arrivals"
        yield KeyFigure("reads in flight", format_count(need.in_flight), most)
    if need.read_s is not None:
        slow = format_duration(need.read_p99_s or 0.0)
        yield KeyFigure("reads", format_duration(need.read_s), f"at p50, {slow} at p99")
