"""Advice where storage is the bottleneck: more reads in flight, larger or fewer, or faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ...schema.curve import Bound
from ...schema.verdict import Advice, AdviceId, Estimate
from ...schema.workload import MAX_CONCURRENCY
from ...units import counted, format_count, format_rate
from .advice_host import direct_advice, more_cores
from .evidence import AT_LIMIT, Evidence
from .limits import (
    enough_in_flight,
    gain_of_large_reads,
    gain_of_more_reads,
    more_batches,
    reads_for,
)
from .promise import WORTH, at_most, model_gain

ROOM = 1.5
"""More reads in flight are advised until the storage delivers this times what can be used."""

ZSTD_DECODE_BYTES_PER_S = 1.3e9
"""Decompressed bytes per CPU second, for zstd level 1 on float volumes and weights.

1.34 to 1.37 GB/s were measured on one core.
"""


def storage_advice(evidence: Evidence, bound: Bound | None) -> Sequence[Advice | None]:
    """Advice by what limits the storage at the run's reads in flight."""
    if (reads := _no_map(evidence)) is not None:
        return [reads, _faster(evidence)]
    if bound == "latency":
        return [_more_reads(evidence) or _faster(evidence)]
    if bound == "stragglers":
        return [more_batches(evidence) or _more_reads(evidence)]
    if bound == "client":
        return [direct_advice(evidence), more_cores(evidence)]
    if bound == "operations":
        return [_pack(evidence), _faster(evidence)]
    if bound == "bandwidth":
        return [_compress(evidence), _faster(evidence)]
    # What is spent is not known, so larger reads may be all that is missing.
    measured = evidence.curve is not None
    untold = measured and _can_pack(evidence) and gain_of_large_reads(evidence) is None
    return [
        _pack(evidence, told=False) if measured else None,
        _compress(evidence),
        _faster(evidence, untried=bound == "unknown", larger=untold),
    ]


def _no_map(evidence: Evidence) -> Advice | None:
    """Reads instead of a memory map, where the storage's curve has more of them than it gets.

    A map asks for a sample page by page, and waits for each of them.
    """
    today = evidence.fetch or evidence.measured
    if not evidence.mapped or not evidence.raw or not today:
        return None
    most = gain_of_more_reads(evidence, enough_in_flight(evidence))
    here = evidence.raw / max(1.0, most.value if most is not None else 1.0)
    if today >= AT_LIMIT * here:
        return None
    gain = _moved(replace(evidence, fetch=today), Estimate(value=here / today))
    return Advice(
        id="mapping",
        change="read the files instead of mapping them: reader.mmap=false",
        settings=["reader.mmap=false"],
        predicted_gain=gain.value if gain is not None else None,
        basis=f"reads with as many in flight get {evidence.told(here)} from the same files, and "
        f"the map {evidence.told(today)}: it asks for a sample page by page",
    )


def _more_reads(evidence: Evidence) -> Advice | None:
    """More reads in flight, up to the knee of the curve."""
    most = gain_of_more_reads(evidence, enough_in_flight(evidence))
    useful = None if most is None else _moved(evidence, most)
    if most is None or useful is None or most.value < WORTH:
        return None
    useful = at_most(useful, evidence.gains.get("storage"))
    # The storage need not deliver more than the other stages can use, with room for jitter.
    target = reads_for(evidence, ROOM * max(1.0, useful.value))
    more = gain_of_more_reads(evidence, target) or most
    target = target or evidence.in_flight * most.value
    name, how, settings = _how(evidence, target)
    gain = _moved(evidence, more)
    if gain is None:
        return None
    if evidence.curve is not None:
        basis = (
            f"with {counted(target, 'read')} in flight instead of "
            f"{format_count(evidence.in_flight)} the storage delivers {more.value:.2f} x as much"
        )
    else:
        share = 1 / more.value
        basis = (
            f"{evidence.raw_source} reads {evidence.told(evidence.raw)} from the same files, the "
            f"reader {share:.0%} of it"
        )
    return Advice(
        id=name,
        change=f"keep more reads in flight: {how}",
        settings=settings,
        predicted_gain=gain.value,
        low=gain.low,
        high=gain.high,
        basis=f"{basis}; reads in flight = rate x latency (Little's law)",
    )


def _how(evidence: Evidence, target: float) -> tuple[AdviceId, str, list[str]]:
    """(id of the advice, the change, settings) that keep ``target`` reads in flight."""
    per_worker = math.ceil(target / evidence.streams)
    requests = evidence.requests_per_batch
    offered = evidence.reads_ahead or requests is None or requests >= 0.99 * per_worker
    own = not evidence.subject.reads_itself
    if own and offered and per_worker <= MAX_CONCURRENCY:
        change = f"reader.concurrency={per_worker} instead of {evidence.concurrency}"
        return "concurrency", change, [f"reader.concurrency={per_worker}"]
    today = max(1, evidence.workers // evidence.accelerators)
    workers = max(today + 1, math.ceil(today * target / evidence.in_flight))
    why = "" if not own or per_worker > MAX_CONCURRENCY else ", since a batch has few requests"
    change = f"{workers} workers for each accelerator instead of {today}{why}"
    return "workers", change, [f"loader.workers={workers}"]


def _can_pack(evidence: Evidence) -> bool:
    """Whether larger reads are possible: samples in shards, or shards that are read in order."""
    return evidence.packed is False or (evidence.packed is True and evidence.access == "random")


def _pack(evidence: Evidence, *, told: bool = True) -> Advice | None:
    """Larger requests, where operations are spent and bytes are not.

    Not ``told``: it is not known which of both is spent.
    """
    if not _can_pack(evidence):
        return None
    larger, tested = gain_of_large_reads(evidence), evidence.gains.get("storage")
    gain = None
    if larger is not None and larger.value >= WORTH:
        gain = _moved(evidence, larger)
        more = f"large requests get {larger.value:.2f} x the bytes/s"
    elif larger is None and tested is not None:
        # All that leaving the storage out brought, or any part of it.
        gain = Estimate(
            value=tested.value, low=min(1.0, tested.value), high=tested.high or tested.value
        )
        more = "how much of it there is for large requests was not measured"
    if gain is None:
        return None
    change, settings = (
        ("read whole shards in order: reader.access=sequential", ["reader.access=sequential"])
        if evidence.packed
        else ("pack the samples into shards: generate the dataset with format=tar", [])
    )
    return Advice(
        id="pack",
        change=change,
        settings=settings,
        predicted_gain=gain.value,
        low=gain.low,
        high=gain.high,
        basis=_why_pack(more, told=told, measured=larger is not None),
    )


def _why_pack(more: str, *, told: bool, measured: bool) -> str:
    if told:
        return f"its operations/s are spent, its bandwidth is not: {more}"
    if measured:
        return more
    return (
        "the time did not suffice to tell whether its operations/s are spent or its bandwidth "
        f"(a larger --budget or --calibration does): {more}"
    )


def _moved(evidence: Evidence, factor: Estimate) -> Estimate | None:
    """Gain on the measured rate if the storage delivers ``factor`` times as much."""
    if evidence.storage is None:
        return None
    storage = evidence.storage
    gains = [
        None if each is None else model_gain(evidence, storage=storage * each)
        for each in (factor.value, factor.low, factor.high)
    ]
    if gains[0] is None:
        return None
    return Estimate(value=gains[0], low=gains[1], high=gains[2], n=factor.n)


def _faster(evidence: Evidence, *, untried: bool = False, larger: bool = False) -> Advice | None:
    """Another storage, or more of it.

    ``untried``: it is not known whether more reads in flight would get more from this one;
    ``larger``: whether larger reads would.
    """
    if evidence.storage is None:
        return None
    gain = model_gain(evidence, storage=None)
    tested = evidence.gains.get("storage")
    if gain is None and tested is None:
        return None
    untold = ["more reads in flight"] * untried + ["larger reads"] * larger
    unless = f", if iobench probe shows that {' and '.join(untold)} do not help" if untold else ""
    if tested is not None:
        basis = "the storage was left out: the bytes came from memory"
        gain = tested.value
    else:
        basis = "the next lowest ceiling is then the limit"
    if evidence.accelerator is not None:
        enough = evidence.told(evidence.required * evidence.accelerator)
        basis += f"; {enough} are enough for {counted(evidence.accelerators, 'accelerator')}"
        basis += f" at {evidence.required * 100:.4g} % utilization"
    return Advice(
        id="faster-storage",
        change=f"use faster storage, or spread the data over more devices{unless}",
        predicted_gain=gain,
        basis=basis,
    )


def _compress(evidence: Evidence) -> Advice | None:
    """Only if decompression is faster than storage (cores x decode rate > bandwidth).

    The data must be compressible, too.
    """
    stored = evidence.bytes_per_s(evidence.storage)
    if (
        evidence.codec != "none"
        or evidence.compress_ratio <= WORTH
        or not evidence.cores
        or stored is None
        or (evidence.raw and evidence.fetch and evidence.fetch < AT_LIMIT * evidence.raw)
    ):
        return None
    decode = evidence.cores * ZSTD_DECODE_BYTES_PER_S
    if decode <= stored or evidence.storage is None or evidence.bytes_per_sample is None:
        return None
    rate = decode / evidence.bytes_per_sample
    prep = rate if evidence.prep is None else 1 / (1 / rate + 1 / evidence.prep)
    return Advice(
        id="compress",
        change="store the samples compressed (codec zstd:1)",
        predicted_gain=model_gain(
            evidence, storage=evidence.storage * evidence.compress_ratio, prep=prep
        ),
        basis=f"the data compresses {evidence.compress_ratio:.2f} x, and {evidence.cores:g} cores "
        f"decompress {format_rate(decode)}, "
        f"more than the {format_rate(stored)} of storage",
    )
