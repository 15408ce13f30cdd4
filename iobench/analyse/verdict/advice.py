"""Changes that would speed up a run, sorted by predicted gain.

Each gain is a counterfactual on the roofline model: one ceiling moves, the others stay.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...schema.verdict import Advice, AdviceId
from ...schema.workload import MAX_CONCURRENCY, OWN_LOADER
from ...units import counted, format_count, format_rate
from ..compare.statistics import NOISE
from .evidence import AT_LIMIT, Evidence

CEILINGS = ("raw", "fetch", "prep", "harness")

WORTH = 1 + NOISE
"""Advice needs at least this predicted gain, since smaller ones are within the noise."""

NEXT_CEILING = "the gain is limited by the next lowest ceiling"

ZSTD_DECODE_BYTES_PER_S = 1.3e9
"""Decompressed bytes per CPU second, for zstd level 1 on float volumes and weights.

1.34 to 1.37 GB/s were measured on one core.
"""

RING_OVER_TENSOR = 2.6 / 1.4
"""Smallest measured ratio of the ring transport to torch's default collate.

The ring moved at least 2.6 GB/s, the collate at most 1.4 GB/s.
"""


def advise(evidence: Evidence, binds: str) -> list[Advice]:
    """Changes worth making, the largest predicted gain first.

    If the accelerators are the limit, the only entry says that no change is needed.
    """
    if binds == "accelerator":
        return [_nothing(evidence)]
    evidence = _reached(evidence)
    found = (
        [_client(evidence)]
        if evidence.client_bound
        else [_reader(evidence), _faster_storage(evidence), _compress(evidence)]
    )
    found += [
        _more_workers(evidence),
        _another_loader(evidence),
        _cheaper_samples(evidence),
        _ring(evidence),
    ]
    worth = [
        advice for advice in found if advice is not None and (advice.predicted_gain or 0) >= WORTH
    ]
    worth.sort(key=lambda advice: -(advice.predicted_gain or 0))
    return worth


def _reached(evidence: Evidence) -> Evidence:
    """Raise each ceiling that the run exceeded to the rate of the run.

    Such a ceiling was measured on a busier host; unchanged, it would promise too large a gain.
    """
    return replace(
        evidence,
        **{
            name: max(rate, evidence.measured)
            for name in CEILINGS
            if (rate := getattr(evidence, name)) and evidence.measured is not None
        },
    )


def _gain(evidence: Evidence, **moved: float | None) -> float | None:
    """Factor on the predicted samples/s if the ceilings in ``moved`` had these rates.

    A rate of None removes a ceiling. The result is None if no ceiling is left.
    """
    now = evidence.predicted
    ceilings = {
        "storage": evidence.storage,
        "prep": evidence.prep,
        "harness": evidence.harness,
        "accelerator": evidence.accelerator,
        **moved,
    }
    left = [rate for rate in ceilings.values() if rate is not None]
    return min(left) / now if left and now else None


def _workers_of_a_rank(evidence: Evidence) -> int:
    return evidence.workers // evidence.accelerators


def _rate(evidence: Evidence, samples_per_s: float) -> str:
    moved = evidence.bytes_per_s(samples_per_s)
    return f"{format_count(samples_per_s)} samples/s" if moved is None else format_rate(moved)


def _storage_is_lowest(evidence: Evidence) -> bool:
    return evidence.storage is not None and evidence.storage == evidence.predicted


def _reader(evidence: Evidence) -> Advice | None:
    if (
        not _storage_is_lowest(evidence)
        or evidence.raw is None
        or evidence.fetch is None
        or evidence.fetch >= AT_LIMIT * evidence.raw
    ):
        return None
    needed = math.ceil(evidence.concurrency * evidence.raw / evidence.fetch)
    how = f"raise reader.concurrency from {evidence.concurrency} to about {needed}, or add workers"
    own = evidence.kind == OWN_LOADER
    more_workers = math.ceil(max(1, _workers_of_a_rank(evidence)) * evidence.raw / evidence.fetch)
    return Advice(
        id="concurrency" if own else "workers",
        change=f"keep more reads in flight: {how if own else 'add workers'}",
        settings=[
            f"reader.concurrency={min(needed, MAX_CONCURRENCY)}"
            if own
            else f"loader.workers={more_workers}"
        ],
        predicted_gain=_gain(evidence, storage=evidence.raw),
        basis=f"{evidence.raw_source} reads {_rate(evidence, evidence.raw)} from the same files, "
        f"the reader {_rate(evidence, evidence.fetch)} "
        f"({evidence.fetch / evidence.raw:.0%}); reads in flight = rate x latency (Little's law)",
    )


def _faster_storage(evidence: Evidence) -> Advice | None:
    """Only if the storage itself is at its limit: otherwise the reader would not use more of it."""
    if not _storage_is_lowest(evidence) or evidence.storage is None:
        return None
    if (
        evidence.raw is not None
        and evidence.fetch is not None
        and evidence.fetch < AT_LIMIT * evidence.raw
    ):
        return None
    gain = _gain(evidence, storage=None)
    if gain is None:
        return None
    change = (
        "use faster storage, or spread the data over more devices: up to "
        f"{_rate(evidence, evidence.storage * gain)} would be used"
    )
    basis = "the next lowest ceiling is then the limit"
    if evidence.accelerator is not None:
        enough = _rate(evidence, evidence.required * evidence.accelerator)
        basis += f"; {enough} are enough for {counted(evidence.accelerators, 'accelerator')}"
        basis += f" at {evidence.required * 100:.4g} % utilization"
    return Advice(id="faster-storage", change=change, predicted_gain=gain, basis=basis)


def _compress(evidence: Evidence) -> Advice | None:
    """Only if decompression is faster than storage (cores x decode rate > bandwidth).

    The data must be compressible, too.
    """
    stored = evidence.bytes_per_s(evidence.storage)
    if (
        not _storage_is_lowest(evidence)
        or evidence.codec != "none"
        or evidence.compress_ratio <= WORTH
        or not evidence.cores
        or stored is None
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
        predicted_gain=_gain(
            evidence, storage=evidence.storage * evidence.compress_ratio, prep=prep
        ),
        basis=f"the data compresses {evidence.compress_ratio:.2f} x, and {evidence.cores:g} cores "
        f"decompress {format_rate(decode)}, "
        f"more than the {format_rate(stored)} of storage",
    )


def _client(evidence: Evidence) -> Advice | None:
    """For a host that is saturated by reading alone."""
    if not _storage_is_lowest(evidence):
        return None
    can = evidence.direct is False and evidence.kind == OWN_LOADER  # libraries have no direct IO
    change = (
        "reduce the CPU time for each byte that is read: reader.direct=true"
        if can
        else "provide more CPU for reading: more cores, or a second host"
    )
    return Advice(
        id="direct" if can else "cores",
        change=change,
        settings=["reader.direct=true"] if can else [],
        predicted_gain=_gain(evidence, storage=evidence.raw),
        basis=f"reading alone keeps {evidence.fetch_cores:.1f} of {evidence.cores:g} cores busy; "
        + _raw_bound(evidence),
    )


def _raw_bound(evidence: Evidence) -> str:
    if evidence.raw is None:
        return f"{NEXT_CEILING}, and raw storage was not measured"
    return f"raw storage delivers {_rate(evidence, evidence.raw)}"


def _more_workers(evidence: Evidence) -> Advice | None:
    if evidence.prep is None or evidence.prep != evidence.predicted or not evidence.cores:
        return None
    busy = max(evidence.workers, evidence.accelerators)
    gain = _gain(evidence, prep=None)
    if busy < evidence.cores:
        spread = evidence.prep * evidence.cores / busy
        return Advice(
            id="workers",
            settings=[f"loader.workers={math.floor(evidence.cores / evidence.accelerators)}"]
            if evidence.cores >= evidence.accelerators
            else [],
            change=(
                f"use more workers: {math.floor(evidence.cores)} in total instead of {busy}, one "
                "for each core"
            ),
            predicted_gain=_gain(evidence, prep=spread),
            basis=(
                f"preparation is CPU work: {_rate(evidence, evidence.prep / busy)} for each "
                "worker; the other cores are idle"
            ),
        )
    if gain is None:
        return None
    return Advice(
        id="cores",
        change=(
            f"provide more cores for data preparation: {math.ceil(evidence.cores * gain)} instead "
            f"of {evidence.cores:g}"
        ),
        predicted_gain=gain,
        basis=(
            f"each core prepares {_rate(evidence, evidence.prep / evidence.cores)}; {NEXT_CEILING}"
        ),
    )


def _another_loader(evidence: Evidence) -> Advice | None:
    if (
        evidence.kind == OWN_LOADER
        or evidence.own_prep is None
        or evidence.prep is None
        or evidence.prep != evidence.predicted
    ):
        return None
    return Advice(
        id="loader",
        settings=[f"loader.kind={OWN_LOADER}"],
        change=(
            f"use a loader that takes less CPU time than {evidence.kind}: iobench's own "
            f"(loader.kind={OWN_LOADER}) shows the rate that is possible"
        ),
        predicted_gain=_gain(evidence, prep=evidence.own_prep),
        basis=f"with the same files in memory, {evidence.kind} reaches "
        f"{_rate(evidence, evidence.prep)}, "
        f"and iobench's own loader {_rate(evidence, evidence.own_prep)}",
    )


def _cheaper_samples(evidence: Evidence) -> Advice | None:
    if evidence.prep is None or evidence.prep != evidence.predicted or evidence.harness is None:
        return None
    if evidence.cheaper_codecs and evidence.storage is not None:
        return Advice(
            id="codec",
            change=(
                f"use a codec that takes less CPU time to decompress than {evidence.codec}: "
                f"{' or '.join(evidence.cheaper_codecs)}"
            ),
            predicted_gain=_gain(
                evidence, prep=evidence.harness, storage=evidence.storage / evidence.compress_ratio
            ),
            basis="at best, preparation takes no time and the harness "
            f"({_rate(evidence, evidence.harness)}) is the limit, "
            f"with {evidence.compress_ratio:.2f} x the bytes to read",
        )
    if not evidence.decode:
        return None
    return Advice(
        id="decoding",
        change=(
            "use samples that need less decoding: smaller images, or images that are decoded once "
            "and stored as arrays"
        ),
        predicted_gain=_gain(evidence, prep=evidence.harness),
        basis=(
            "at best, decoding takes no time and the harness "
            f"({_rate(evidence, evidence.harness)}) is the limit; arrays are larger than images"
        ),
    )


def _ring(evidence: Evidence) -> Advice | None:
    if (
        evidence.harness is None
        or evidence.predicted is None
        or evidence.harness > evidence.predicted * WORTH
    ):
        return None
    if evidence.transport == "tensor":
        # Prep used the same transport, so its ceiling would rise too; those of storage and of the
        # accelerators would not.
        return Advice(
            id="transport",
            settings=["loader.transport=ring"],
            change=(
                "use loader.transport=ring: batches stay in shared memory, and only the number of "
                "a slot is sent through the pipe"
            ),
            predicted_gain=_gain(evidence, harness=evidence.harness * RING_OVER_TENSOR, prep=None),
            basis=(
                "compared with torch's default collate, the ring moves at least 1.9 x the bytes/s "
                "with a tenth of the CPU time"
            ),
        )
    if evidence.cores and evidence.workers >= evidence.cores:
        name: AdviceId = "cores"
        change, basis = (
            "provide more cores, or run this job on more hosts",
            f"{counted(evidence.workers, 'worker')} share {evidence.cores:g} cores",
        )
    else:
        name = "workers"
        change, basis = (
            "use more workers, or larger batches",
            "the loader's cost per batch is the limit, and cores are idle",
        )
    return Advice(
        id=name,
        change=change,
        predicted_gain=_gain(evidence, harness=None),
        basis=f"{basis}; {NEXT_CEILING}",
    )


def _nothing(evidence: Evidence) -> Advice:
    supply = {"storage": evidence.storage, "prep": evidence.prep, "harness": evidence.harness}
    known = {name: rate for name, rate in supply.items() if rate is not None}
    basis = (
        "the accelerators reach the required utilization"
        if evidence.utilization is not None
        else "the accelerators are the lowest ceiling"
    )
    if known and evidence.accelerator:
        first = min(known, key=lambda name: known[name])
        basis += (
            f"; the next limit is {first}, at {known[first] / evidence.accelerator:.2f} x their "
            "demand"
        )
    return Advice(
        id="none",
        change="no change is needed: faster storage would not speed up this job",
        predicted_gain=1.0,
        basis=basis,
    )
