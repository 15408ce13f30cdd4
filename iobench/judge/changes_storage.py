"""Changes where storage is the bottleneck: more reads in flight, larger or fewer, or faster.

What limits the storage at the run's reads in flight, and what more or larger reads bring.

Stragglers are few reads that take many times as long as the others, and hold up batches. A batch
waits for its slowest read, so 2 % of slow reads can take most of the time although the
storage has bandwidth and operations to spare. More batches in flight hide them: while one waits,
the others go on (J. Dean and L. A. Barroso, "The Tail at Scale", CACM 2013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..base.units import counted, format_count, format_duration, format_rate, format_share
from ..record.curve import Bound, Rate, StorageCurve
from ..record.verdict import Estimate
from ..settings.workload import MAX_CONCURRENCY
from .evidence import AT_LIMIT, Evidence
from .figures.curve import bound_at, expected_rate
from .promise import WORTH, Effect, advised, at_most, bringing, model_gain, moving
from .statistics import NOISE


def storage_bound(evidence: Evidence) -> Bound | None:
    """What limits the storage; None if it was not measured, or a cache served the reads.

    Records without a curve have the rate of raw storage instead. It is a limit only if it was
    measured with more reads in flight than the run had.
    """
    if evidence.cached:
        return None
    if evidence.curve is not None:
        known, reads = evidence.curve, evidence.in_flight
        if gets_all(evidence):
            reads = max(reads, enough_in_flight(evidence) or 0.0)
        return bound_at(known.curve, reads, known.large, known.opens)
    if evidence.client_bound:
        return "client"
    if evidence.raw is None or evidence.fetch is None:
        return None
    if evidence.fetch < AT_LIMIT * evidence.raw:
        return "latency"
    return "operations or bandwidth" if evidence.raw_by == "reader" else "unknown"


def gets_all(evidence: Evidence) -> bool:
    """Whether the run's own reader gets all that the storage gave to any number of reads.

    More reads in flight bring nothing then, whatever the curve says of the run's number of them.
    """
    fetch, raw = evidence.fetch, evidence.raw
    return fetch is not None and raw is not None and fetch * (1 + NOISE) >= raw


def enough_in_flight(evidence: Evidence) -> float | None:
    """The reads in flight from which on the storage delivers no more; None without a curve.

    On a curve that has no knee, the most that were tried.
    """
    if evidence.curve is None:
        return None
    curve = evidence.curve.curve
    return float(curve.knee_in_flight or max(point.in_flight for point in curve.points))


def gain_of_more_reads(evidence: Evidence, target: float | None) -> Estimate | None:
    """Factor on the rate of the storage with ``target`` reads in flight; None if nothing tells."""
    if target is None or evidence.curve is None:
        if not evidence.raw or not evidence.fetch:
            return None
        return Estimate(value=evidence.raw / evidence.fetch)
    points = evidence.curve.curve.points
    return ratio(expected_rate(points, target), expected_rate(points, evidence.in_flight))


def gain_of_reader(evidence: Evidence, target: float | None) -> Estimate | None:
    """Factor on the rate of the job's reader with ``target`` reads in flight.

    That of the storage, as far as the reader does not get all of it already: no number of reads
    got more than the raw rate. None if nothing tells.
    """
    more = gain_of_more_reads(evidence, target)
    if more is None or not evidence.raw or not evidence.fetch:
        return more
    cut = min(1.0, max(1.0, evidence.raw / evidence.fetch) / more.value)
    return more.each(lambda end: end * cut)


def reads_for(evidence: Evidence, factor: float) -> float | None:
    """The reads in flight with which the storage delivers ``factor`` times as much as today.

    At most those from which on it delivers no more; None without a curve.
    """
    enough = enough_in_flight(evidence)
    if enough is None:
        return None
    reads = evidence.in_flight
    while reads < enough:
        reads = min(2 * reads, enough)
        found = gain_of_more_reads(evidence, reads)
        if found is not None and found.value >= factor:
            break
    return max(reads, evidence.in_flight)


def gain_of_large_reads(evidence: Evidence) -> Estimate | None:
    """Bytes/s of large sequential requests over those of the run's own; None without such a curve.

    Where the objects are too small for large requests, the second curve is one of small ones. It
    tells that operations are spent, and not how many more bytes/s there are.
    """
    if evidence.curve is None or evidence.curve.large is None:
        return None
    mine, other = evidence.curve.curve, evidence.curve.large
    if other.request_bytes <= mine.request_bytes:
        return None
    return ratio(_most_bytes(other), _most_bytes(mine))


def _most_bytes(curve: StorageCurve) -> Rate | None:
    if curve.plateau_bytes_per_s is not None:
        return curve.plateau_bytes_per_s
    rates = [point.bytes_per_s for point in curve.points]
    return max(rates, key=lambda rate: rate.value, default=None)


def ratio(one: Rate | None, other: Rate | None) -> Estimate | None:
    """The factor between two rates, with the interval that their intervals allow."""
    if one is None or other is None or other.value <= 0:
        return None
    value = one.value / other.value
    if one.low is None or one.high is None or not other.low or other.high is None:
        return Estimate(value=value)
    return Estimate(
        value=value,
        low=min(value, one.low / other.high),
        high=max(value, one.high / other.low),
        n=max(1, min(one.windows, other.windows)),
    )


SLOW = 10.0
"""The slowest hundredth of reads are stragglers if they take this many times the median."""

_HUNDREDTH = 0.01

HOLDS_UP = 0.5
"""They are the limit if they add this part of the time that a batch takes without them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stragglers:
    """The times of reads at the run's reads in flight: the median, and the slowest hundredth."""

    usual_s: float
    slow_s: float


def stragglers(evidence: Evidence, bound: Bound | None) -> Stragglers | None:
    """The stragglers that hold up the batches of a storage that is the bottleneck; None if none do.

    ``bound``: what the curve says of the storage. A plateau of operations or of bandwidth is the
    limit, unless the run is far from it.
    """
    if evidence.curve is None or bound in (None, "client") or not evidence.in_flight > 0:
        return None
    if bound != "latency" and not _far_from(evidence.raw, evidence.between_saves):
        return None
    known = [
        (abs(math.log(point.in_flight / evidence.in_flight)), usual, slow)
        for point in evidence.curve.curve.points
        if (usual := point.latency_p50_s) and (slow := point.latency_p99_s)
    ]
    if not known:
        return None
    _, usual, slow = min(known)
    if slow < SLOW * usual:
        return None
    requests = max(1.0, evidence.requests_per_batch or float(evidence.batch_size or 1))
    each = max(1.0, evidence.in_flight / max(1, evidence.streams))
    without = math.ceil(requests / each - 1e-9) * usual
    held_up = (1 - (1 - _HUNDREDTH) ** requests) * slow
    return Stragglers(usual_s=usual, slow_s=slow) if held_up >= HOLDS_UP * without else None


def _far_from(raw: float | None, measured: float | None) -> bool:
    return raw is not None and measured is not None and measured < AT_LIMIT * raw


def told(found: Stragglers) -> str:
    """``a read usually takes 2.00 ms (p50), and one in a hundred takes 202 ms or longer (p99)``."""
    return (
        f"a read usually takes {format_duration(found.usual_s)} (p50), and one in a hundred takes "
        f"{format_duration(found.slow_s)} or longer (p99)"
    )


ROOM = 1.5
"""More reads or batches in flight are advised for this times what can be used."""

ZSTD_DECODE_BYTES_PER_S = 1.3e9
"""Decompressed bytes per CPU second, for zstd level 1 on float volumes and weights.

1.34 to 1.37 GB/s were measured on one core.
"""

LITTLE = "reads in flight = rate x latency (Little's law)"


@advised(
    "mapping",
    "reader.mmap=false",
    change="read the files instead of mapping them: reader.mmap=false",
    basis="reads with as many in flight get {reads} from the same files, and the map {map}: it "
    "asks for a sample page by page",
)
def reads_instead_of_a_map(evidence: Evidence) -> Effect | None:
    """Where the storage's curve has more of them than the map gets, which waits for each page."""
    today = evidence.fetch or evidence.between_saves
    if not evidence.job.workload.reader.mmap or not evidence.raw or not today:
        return None
    most = gain_of_more_reads(evidence, enough_in_flight(evidence))
    here = evidence.raw / max(1.0, most.value if most is not None else 1.0)
    if today >= AT_LIMIT * here:
        return None
    gain = _moved(replace(evidence, fetch=today), Estimate(value=here / today))
    return bringing(
        gain.value if gain is not None else None,
        reads=evidence.told(here),
        map=evidence.told(today),
    )


class MoreReads(NamedTuple):
    """So many reads in flight, what they bring, and why."""

    target: float
    gain: Estimate
    basis: str

    def of_worker(self, evidence: Evidence) -> int:
        """Reads in flight of each process that reads."""
        return math.ceil(self.target / evidence.streams)


@advised(
    "concurrency",
    "reader.concurrency={each}",
    change="keep more reads in flight: reader.concurrency={each} instead of {today}",
    basis=f"{{basis}}; {LITTLE}",
)
def concurrent_reads(evidence: Evidence) -> Effect | None:
    """More reads in flight of each worker, where its batches have enough requests."""
    more = _more_reads(evidence)
    if more is None or evidence.subject.reads_itself:
        return None
    each, requests = more.of_worker(evidence), evidence.requests_per_batch
    offered = evidence.reads_ahead or requests is None or requests >= 0.99 * each
    if not offered or each > MAX_CONCURRENCY:
        return None
    return bringing(
        more.gain, each=each, today=evidence.job.workload.reader.concurrency, basis=more.basis
    )


@advised(
    "workers",
    "loader.workers={workers}",
    change="keep more reads in flight: {workers} workers for each accelerator instead of "
    "{today}{why}",
    basis=f"{{basis}}; {LITTLE}",
)
def workers_that_read(evidence: Evidence) -> Effect | None:
    """More reads in flight by more workers, where a worker can't have as many."""
    more = _more_reads(evidence)
    if more is None:
        return None
    today = evidence.workers // evidence.accelerators
    readers = max(1, today)  # without workers, the rank itself reads
    few = not evidence.subject.reads_itself and more.of_worker(evidence) <= MAX_CONCURRENCY
    return bringing(
        more.gain,
        workers=max(readers + 1, math.ceil(readers * more.target / evidence.in_flight)),
        today=today,
        why=", since a batch has few requests" if few else "",
        basis=more.basis,
    )


def _more_reads(evidence: Evidence) -> MoreReads | None:
    """More reads in flight, up to the knee of the curve; None if they bring nothing."""
    most = gain_of_more_reads(evidence, enough_in_flight(evidence))
    useful = None if most is None else _moved(evidence, most)
    if most is None or useful is None or most.value < WORTH:
        return None
    useful = at_most(useful, evidence.gains.get("storage"))
    # The storage need not deliver more than the other stages can use, with room for jitter.
    needed = ROOM * max(1.0, useful.value)
    target = reads_for(evidence, needed)
    if target is None:
        target = evidence.in_flight * min(most.value, needed)
    more = gain_of_reader(evidence, target) or most
    gain = _moved(evidence, more)
    if gain is None:
        return None
    if evidence.curve is None:
        return MoreReads(
            target,
            gain,
            f"{evidence.raw_source} reads {evidence.told(evidence.raw)} from the same files, the "
            f"reader {format_share(1 / more.value)} of it",
        )
    return MoreReads(
        target,
        gain,
        f"with {counted(target, 'read')} in flight instead of {format_count(evidence.in_flight)} "
        f"the storage delivers {more.value:.2f} x as much",
    )


@advised(
    "workers",
    "loader.workers={workers}",
    change="keep more batches in flight, so that fewer wait for one with a slow read: {workers} "
    "workers for each accelerator instead of {today}",
    basis="{times}: a batch waits for its slowest read, and the storage has more to give",
)
def more_batches(evidence: Evidence) -> Effect | None:
    """More workers, each of which has a batch in flight, up to what the storage can deliver."""
    found = stragglers(evidence, "latency")
    if found is None or not evidence.measured:
        return None
    tested = evidence.gains.get("storage")
    most = [evidence.raw, evidence.accelerator, evidence.prep, evidence.loader]
    gains = [evidence.with_saves(rate) / evidence.measured for rate in most if rate]
    gains += [tested.value] if tested is not None else []
    useful = max(1.0, min(gains, default=1.0))
    today = evidence.workers // evidence.accelerators
    workers = max(today + 1, math.ceil(ROOM * useful * max(1, today) - 1e-9))
    gain = min(useful, workers / max(1, today))
    if gain < WORTH:
        return None
    # How many of the slow reads that hides was not measured.
    known = Estimate(value=gain, low=1.0, high=gain)
    return bringing(known, workers=workers, today=today, times=told(found))


OPERATIONS = "its operations/s are spent, its bandwidth is not: {more}"
EITHER = "{either}{more}"


@advised(
    "pack",
    "reader.access=sequential",
    change="read whole shards in order: reader.access=sequential",
    basis=OPERATIONS,
)
def shards_in_order(evidence: Evidence) -> Effect | None:
    return _larger_reads(evidence) if evidence.packed else None


@advised(
    "pack",
    change="pack the samples into shards: generate the dataset with format=tar",
    basis=OPERATIONS,
)
def samples_in_shards(evidence: Evidence) -> Effect | None:
    return None if evidence.packed else _larger_reads(evidence)


LARGER_READS = (shards_in_order, samples_in_shards)

_OPENS = "opening the files takes as long as reading them: {more}"
FEWER_OPENS = (replace(samples_in_shards, basis=_OPENS),)
"""Where opens are what is spent, samples in shards need few of them."""

PERHAPS_LARGER_READS = tuple(replace(each, basis=EITHER) for each in LARGER_READS)
"""Where it is not known what is spent, larger reads may be all that is missing."""


_LARGEST_BYTES = 4 << 20
"""Shards are read in blocks of this size (``reader.block_size``), so larger ones are not known."""


def _can_pack(evidence: Evidence) -> bool:
    """Whether larger reads are possible: samples in shards, or shards that are read in order."""
    if evidence.curve is not None and evidence.curve.curve.request_bytes >= _LARGEST_BYTES:
        return False
    return evidence.packed is False or (evidence.packed is True and evidence.access == "random")


def _larger_reads(evidence: Evidence) -> Effect | None:
    """Larger requests, where operations are spent and bytes are not, as far as a curve tells."""
    if evidence.curve is None or not _can_pack(evidence):
        return None
    larger, tested = gain_of_large_reads(evidence), evidence.gains.get("storage")
    if larger is not None:
        gain = _moved(evidence, larger) if larger.value >= WORTH else None
        more = f"large requests get {larger.value:.2f} x the bytes/s"
        return None if gain is None else bringing(gain, either="", more=more)
    if tested is None:
        return None
    # All that leaving the storage out brought, or any part of it.
    return bringing(
        Estimate(value=tested.value, low=min(1.0, tested.value), high=tested.high or tested.value),
        either="the time did not suffice to tell whether its operations/s are spent or its "
        "bandwidth (a larger --budget or --calibration does): ",
        more="how much of it there is for large requests was not measured",
    )


def _moved(evidence: Evidence, factor: Estimate) -> Estimate | None:
    """Gain on the measured rate if the storage delivers ``factor`` times as much."""
    if evidence.storage is None:
        return None
    value, low, high = (
        None if each is None else model_gain(evidence, storage=evidence.storage * each)
        for each in (factor.value, factor.low, factor.high)
    )
    return None if value is None else Estimate(value=value, low=low, high=high, n=factor.n)


@advised(
    "local-cache",
    change="run without the local cache (--cache-dir), or make it as large as the dataset",
    basis="it copies whole objects, and the storage delivers {times:.2f} x the bytes of the "
    "samples",
)
def no_local_cache(evidence: Evidence) -> Effect | None:
    """A cache that is too small to keep its copies makes the storage deliver more."""
    if evidence.relief >= 1 / (1 + NOISE) or evidence.storage is None:
        return None
    alone = evidence.storage / evidence.relief
    return moving(evidence, {"storage": alone}, times=1 / evidence.relief)


FASTER = "use faster storage, or more devices"


@advised("faster-storage", change=FASTER, basis="{basis}")
def faster_storage(evidence: Evidence) -> Effect | None:
    gain = model_gain(evidence, storage=None)
    tested = evidence.gains.get("storage")
    if evidence.storage is None or (gain is None and tested is None):
        return None
    basis = "the next lowest ceiling is then the limit"
    if tested is not None:
        basis, gain = "the storage was left out: the bytes came from memory", tested.value
    if evidence.accelerator is not None:
        enough = evidence.told(evidence.required * evidence.accelerator)
        basis += f"; {enough} are enough for {counted(evidence.accelerators, 'accelerator')}"
        basis += f" at {evidence.required * 100:.4g} % utilization"
    return bringing(gain, basis=basis)


@advised("faster-storage", change=FASTER + "{unless}", basis="{basis}")
def faster_than_larger_reads(evidence: Evidence) -> Effect | None:
    """Where it is not known whether larger reads would get more from this storage."""
    unless = ", if iobench probe shows no gain from larger reads"
    return _unless(evidence, unless if _untold(evidence) else "")


@advised("faster-storage", change=FASTER + "{unless}", basis="{basis}")
def faster_than_more_reads(evidence: Evidence) -> Effect | None:
    """Where it is not known either whether more reads in flight would."""
    reads = "more or larger reads" if _untold(evidence) else "more reads in flight"
    return _unless(evidence, f", if iobench probe shows no gain from {reads}")


def _untold(evidence: Evidence) -> bool:
    measured = evidence.curve is not None
    return measured and _can_pack(evidence) and gain_of_large_reads(evidence) is None


def _unless(evidence: Evidence, unless: str) -> Effect | None:
    effect = faster_storage.check(evidence)
    return None if effect is None else bringing(effect.gain, unless=unless, **effect.facts)


@advised(
    "compress",
    change="store the samples compressed (codec zstd:1)",
    basis="the data compresses {ratio:.2f} x, and {cores:g} cores decompress {decode}, more than "
    "the {stored} of storage",
)
def compression(evidence: Evidence) -> Effect | None:
    """Only if decompression is faster than storage (cores x decode rate > bandwidth).

    The data must be compressible, too.
    """
    stored, ratio = evidence.bytes_per_s(evidence.storage), evidence.compress_ratio
    if (
        evidence.codec != "none"
        or ratio <= WORTH
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
    return moving(
        evidence,
        {"storage": evidence.storage * ratio, "prep": prep},
        ratio=ratio,
        cores=evidence.cores,
        decode=format_rate(decode),
        stored=format_rate(stored),
    )
