"""Rules for runs of a KV cache. Each returns None if it finds no violation."""

from __future__ import annotations

from statistics import median

from ...base.units import counted, format_bytes, format_duration
from ...record.run import KvCacheRecord
from ..rules_data import RuleOutcome, unknown

MEMORY_MULTIPLE = 3
"""So many times the memory of the host, a page cache can serve little of the reads."""

MAX_BEHIND = 1.0
"""Seconds, or the limit if that is longer, that a write may begin late."""


def nothing_offloaded(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that the tier on storage was written to at all."""
    if not doc.job.repetitions or any(one.chunks_written for one in doc.job.repetitions):
        return None
    error = next((one.write_error for one in doc.job.repetitions if one.write_error), "")
    return RuleOutcome(
        "nothing was written to the storage, so this cache is one of memory alone"
        + (f"; the first error: {error}" if error else ""),
        "use a longer --duration or a higher --rate, admission=always, or repair the storage",
    )


def nothing_loaded(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that something was found on the storage."""
    if not doc.job.repetitions or any(one.chunks_loaded for one in doc.job.repetitions):
        return None
    return RuleOutcome(
        "nothing was found on the storage: memory serves every hit, or nothing is used again",
        "lower dram, use longer pauses (arrivals.person_pause), or a longer --duration",
    )


def working_set(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that this host's page cache can't serve the loads."""
    if doc.job.direct or doc.storage.page_cache is False or not doc.job.repetitions:
        return None
    lies = max(one.before_bytes + one.written_bytes for one in doc.job.repetitions)
    memory, remedy = doc.memory_bytes, "use a storage with O_DIRECT, or a longer --duration"
    if memory is None:
        return unknown("how much memory the page cache can take is not known", remedy)
    if lies >= MEMORY_MULTIPLE * memory:
        return None
    return RuleOutcome(
        f"{format_bytes(lies)} on the storage are less than {MEMORY_MULTIPLE} times the "
        f"{format_bytes(memory)} of memory of this host, whose page cache may serve loads",
        remedy,
    )


def write_failures(doc: KvCacheRecord) -> RuleOutcome | None:
    failed = sum(one.writes_failed for one in doc.job.repetitions)
    if not failed:
        return None
    first = next((one.write_error for one in doc.job.repetitions if one.write_error), "")
    return RuleOutcome(
        f"{counted(failed, 'write or deletion', 'writes or deletions')} failed; the first: {first}",
        "free space, or repair the storage: requests that need such a chunk fail",
    )


def writes_behind(doc: KvCacheRecord) -> RuleOutcome | None:
    """Check that the storage takes the chunks as fast as they are computed."""
    tried, allowed = doc.job.repetitions, max(MAX_BEHIND, doc.job.limit_s)
    late = [one.behind_p99_s for one in tried if one.behind_p99_s is not None]
    left = sum(one.writes_left for one in tried)
    behind = bool(late) and median(late) > allowed
    if not behind and not left:
        return None
    told = f"1 % of the writes began {format_duration(median(late))} late or more" if late else ""
    lost = f"{counted(left, 'chunk')} had not been written in time" if left else ""
    return RuleOutcome(
        "writes fall behind: " + " and ".join(filter(None, [told if behind else "", lost])),
        "use admission=seen-twice, more writers, a lower --rate, or a faster storage",
    )


def scaled(doc: KvCacheRecord) -> RuleOutcome | None:
    """Say that fewer layers were measured than the model has."""
    spec = doc.job.scenario
    if spec.share == 1:
        return None
    whole = format_bytes(spec.whole_chunk_bytes / spec.pieces)
    return RuleOutcome(
        f"{spec.measured_layers} of {spec.model.layers} layers were measured: reads and writes are "
        f"of {format_bytes(spec.piece_bytes)} and not {whole}, and prefill and limit are "
        f"{spec.share:.3g} of the model's",
        "leave layers out to measure the whole model",
    )
