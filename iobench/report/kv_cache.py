"""A run of a KV cache: whether it is worth it, from where on, and what the traffic asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from ..judge.kv import over
from ..judge.serving import quantile_text
from ..record.run import KvCacheRecord
from ..record.serving import KvCacheRun, KvParts, KvTrial, KvVerdict
from ..record.verdict import Estimate
from ..settings.kv_cache import KvScenario
from .figures import BY_UNIT, Format, Medians, TableOf, cell, interval_of, unit_of
from .glance import whole_report
from .sections import FirstScreen, KeyFigure, Section, Table
from .serving import (
    HOLDS,
    cause,
    failed_sentence,
    figures_table,
    largest_rate,
    parts_table,
    rates_table,
    requests_screen,
    windows_table,
)

_PARTS = {
    "reader_wait_s": "waiting for a reader",
    "write_wait_s": "waiting for writes of its chunks",
    "lookup_s": "look-ups",
    "memory_s": "copies from memory",
    "load_s": "loads",
    "engine_wait_s": "waiting for an engine",
    "prefill_s": "prefill (computed)",
}

_WORTH = {True: "worth it", False: "not worth it", None: "inconclusive whether worth it"}
_SIDES = {True: "above", False: "below", None: "not clearly on one side of"}


def sections(doc: KvCacheRecord) -> list[Section]:
    """All sections for which the run has data."""
    job = doc.job
    parts = parts_table(job.repetitions, _PARTS, "the time to the first token")
    tiers = _spreads(job, "tiers", "What the requests find, and how it is loaded", _TIERS)
    behind = _spreads(job, "behind", "Written and deleted behind the requests", _BEHIND)
    evidence = [figures_table(doc), tiers, parts, behind, _gains(job), rates_table(job)]
    data = windows_table(doc, KvTrial, KvParts)
    return whole_report(doc, _first(doc), evidence, _about(job), data)


def _value(found: Estimate | None, show: Format) -> str:
    return "not measured" if found is None else show(found.value)


def _interval(found: Estimate | None, show: Format) -> str:
    return "" if found is None else interval_of(found, show)


def _first(doc: KvCacheRecord) -> FirstScreen:
    job, verdict = doc.job, doc.job.verdict
    if verdict is None:
        return requests_screen(job, "no rate was measured", [], None, (), _PARTS)
    told = [verdict.sentence, failed_sentence(job), _hits(job.repetitions), cause(verdict)]
    gauges = tuple(_gauges(job, verdict))
    return requests_screen(job, _WORTH[verdict.worth], told, verdict.worth, gauges, _PARTS)


def _gauges(job: KvCacheRun, verdict: KvVerdict) -> Iterator[KeyFigure]:
    rate, equal, plain = verdict.load_bytes_per_s, verdict.break_even_bytes_per_s, verdict.of_plain
    at = f"{_value(equal, format_rate)} {_interval(equal, format_rate)}".strip()
    even = f"(break-even: {at})"
    if rate is not None:
        side = f"{_SIDES[over(verdict.factor)]} the break-even of {at}"
        even = ", ".join(filter(None, (_interval(rate, format_rate), side)))
    if plain is not None:
        even += f"; its reads get {format_percent(plain.value)} of what plain reads do"
    yield KeyFigure("bandwidth of a load", _value(rate, format_rate), even)
    yield _ttft(job, verdict)
    note = (
        f"{_interval(verdict.freed, format_count)} {_needed(job)}{_dollars(job, verdict)}".strip()
    )
    yield KeyFigure("accelerators freed", _value(verdict.freed, format_count), note)
    yield largest_rate(job)


def _ttft(job: KvCacheRun, verdict: KvVerdict) -> KeyFigure:
    """The time to the first token, with the storage and without it."""
    label, tried = f"{quantile_text(job.scenario.quantile)} to the first token", job.repetitions
    known = [one.quantile_s for one in tried if one.quantile_s is not None]
    again = [one.recomputed_quantile_s for one in tried if one.recomputed_quantile_s is not None]
    if not known or not again:
        return KeyFigure(label, "not measured")
    both = f"with the storage, {format_duration(median(again))} without it"
    layers = f"of {part} " if (part := _layers(job.scenario)) else ""
    note = f"{layers}{both}; {HOLDS[verdict.holds]} {format_duration(job.limit_s)}"
    return KeyFigure(label, format_duration(median(known)), note)


def _layers(spec: KvScenario) -> str:
    """Which layers were measured, if not all."""
    return f"{spec.measured_layers} of {spec.model.layers} layers" if spec.share < 1 else ""


def _needed(job: KvCacheRun) -> str:
    """How many accelerators there are, and how many the traffic needs without the storage."""
    known = [one.traffic for one in job.repetitions if one.traffic is not None]
    if not known:
        return ""
    needed = format_count(median(each.accelerators_without_storage for each in known))
    prefill = job.scenario.prefill
    total = prefill.accelerators * prefill.engines
    return f"of {needed} that compute without the storage; there are {total}"


def _dollars(job: KvCacheRun, verdict: KvVerdict) -> str:
    if job.price_per_hour is None or verdict.freed is None:
        return ""
    return f", ${verdict.freed.value * job.price_per_hour:,.2f} an hour"


def _hits(tried: Sequence[KvTrial]) -> str:
    known = [one.traffic for one in tried if one.traffic is not None]
    if not known:
        return ""
    memory = format_percent(median(each.memory_tokens / each.prompt_tokens for each in known))
    loaded = format_percent(median(each.loaded_tokens / each.prompt_tokens for each in known))
    asked = format_rate(median(each.loaded_bytes_per_s for each in known))
    return f"Memory has {memory} of the tokens, the storage {loaded}: loads that need {asked}."


def _spreads(job: KvCacheRun, name: str, title: str, labels: dict[str, str]) -> Table | None:
    """The median of the repetitions for each of these figures."""
    table = Medians()
    for figure, label in labels.items():
        known = [getattr(one, figure) for one in job.repetitions]
        values = [float(value) for value in known if value is not None]
        if values:
            unit = _UNITS.get(figure) or unit_of(figure)
            table.add(label, figure, cell(values, BY_UNIT.get(unit, format_count)))
    return table.table(name, title) if table.rows else None


_UNITS = {"busy": "share", "recomputed_busy": "share", "drive_writes_per_day": "ratio"}
"""The units of figures whose names do not end with one."""


_TIERS = {
    "prompt_tokens": "tokens of the prompts",
    "memory_share": "  found in memory",
    "storage_share": "  found on the storage",
    "chunks_loaded": "chunks loaded",
    "load_p50_s": "  those of one request, p50",
    "load_p99_s": "  p99",
    "fetch_bytes_per_s": "  bandwidth of its reads",
    "plain_bytes_per_s": "  of plain reads, as many in flight",
    "read_bytes_per_s": "bytes loaded",
    "lookups": "look-ups",
    "lookup_mean_s": "  one takes",
    "busy": "engines busy",
    "recomputed_busy": "  without the storage",
}
"""Where the tokens of the prompts come from, and what the storage is asked for."""

_BEHIND = {
    "chunks_written": "chunks written",
    "write_bytes_per_s": "  bytes",
    "write_p50_s": "  one takes, p50",
    "write_p99_s": "  p99",
    "behind_p99_s": "  began late, p99",
    "flush_s": "  flushed at the end in",
    "writes_left": "  not written in time",
    "chunks_deleted": "chunks deleted",
    "delete_p99_s": "  one takes, p99",
    "drive_writes_per_day": "writes of the capacity in a day",
    "stored_share": "share of the tier that was filled before",
}
"""What is written and deleted behind the requests."""


def _gains(job: KvCacheRun) -> Table | None:
    """What leaving out each stage brings."""
    if job.verdict is None or not job.verdict.gains:
        return None
    rows = TableOf(job.verdict.gains.items())
    rows.add("stage", "left out", of=lambda each: _LEFT_OUT[each[0]])
    rows.add("gain", "times as fast", "ratio", lambda each: each[1], ends=("{}_low", "{}_high"))
    name = quantile_text(job.scenario.quantile)
    return rows.made("gains", f"{name} to the first token with one stage left out")


_LEFT_OUT = {
    "reads": "loads",
    "writes": "writes and deletions",
    "lookups": "look-ups",
    "prefill": "prefill (computed)",
}


def _about(job: KvCacheRun) -> list[tuple[str, str]]:
    spec, prefill, prompts = job.scenario, job.scenario.prefill, job.scenario.prompts
    rank = f" in {counted(spec.pieces, 'object')}" if spec.pieces > 1 else ""
    chunk = f"{spec.chunk_tokens:,} tokens, {format_bytes(spec.chunk_bytes)}{rank}"
    layers = f", {part}" if (part := _layers(spec)) else ""
    speed = f"{format_count(prefill.flops / 1e12)} Tflop/s, MFU {prefill.mfu:g}"
    if prefill.tokens_per_s is not None:
        speed = f"{format_count(prefill.tokens_per_s)} tokens/s"
    engines = counted(prefill.engines, "engine")
    accelerators = counted(prefill.accelerators, "accelerator")
    direct = ", past the page cache" if job.direct else ""
    at_once = f"{counted(spec.reader.concurrency, 'request')} at a time, {spec.reader.depth} reads"
    shared = f"{prompts.shared_tokens:,} shared tokens, then a median of {prompts.new_tokens:,} new"
    threads, kept = counted(spec.writers, "thread"), "durable" if spec.durable else "flushed"
    memory, storage = format_bytes(spec.dram), format_bytes(spec.capacity)
    return [
        ("model", f"{spec.model.name}{layers}, KV cache in {spec.dtype}"),
        ("chunk", chunk + (", an extent of one file" if spec.layout == "extents" else "")),
        ("tiers", f"{memory} of {spec.memory} memory, {storage} of storage"),
        ("admission", spec.admission),
        ("prefill", f"computed: {engines} of {accelerators}, {speed}"),
        ("arrivals", str(spec.arrivals.kind)),
        ("prompts", f"{shared} ones a turn, at most {prompts.max_tokens:,}"),
        ("loads", f"{at_once} each by {job.engine.replace('_', ' ')}{direct}"),
        ("plain reads", job.plain_how or "not measured"),
        ("writes", f"{threads}, {kept}"),
    ]
