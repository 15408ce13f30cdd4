"""Decide what binds: by the stages that were left out, or else by the ceilings.

Stages that were left out in turns with the repetitions decide (``tested``). Without them the
ceilings and the time that the run spent on each stage do (``inferred``).
"""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ...units import format_bytes
from . import inferred, tested
from .decision import Decision
from .evidence import Evidence
from .rules_cache import cold_parts, epoch_deliveries, uncached
from .rules_device import ONE_DEVICE
from .short import too_short

MAX_SERVED = 0.1
"""A cache that served more of the reads than this hides what the storage can do."""

MIN_READ = 8 << 20
"""Bytes that a loader must have read for the devices' share of them to say anything."""

MIN_CACHED = 0.9
"""Share of a dataset in the page cache from which on a training does not wait for its storage."""


def decide(evidence: Evidence) -> Decision:
    """What binds the run, and why; ``undecided`` with the reason where nothing tells."""
    short = too_short(evidence)
    if short:
        return Decision(binds="undecided", reason=short.why, too_short=short)
    if evidence.measured is None:
        return Decision(binds="undecided", reason="no repetition was completed")
    if any(stage != "fill" for stage in evidence.gains):
        return tested.by_test(evidence)
    if tested.convinces(evidence.gains.get("fill"), evidence.unsteady):
        # It was computed from the events, without a run in which anything was left out.
        return Decision(binds="fill", basis="inferred")
    return inferred.by_inference(evidence)


def served_by_cache(doc: TrainingRecord) -> str:
    """Why the reads of a run say nothing about its storage; empty if they do.

    Either the run asked for a warm page cache, and it was, or more than ``MAX_SERVED`` of what it
    read was there.
    """
    if uncached(doc):
        return ""
    if doc.job.watched is not None:
        return _waits_were_cached(doc)
    if doc.job.workload.cache == "warm" and not cold_parts(doc):
        return "the page cache was filled before the run"
    resident = max(
        (
            epoch.residency_before or 0.0
            for repetition in doc.job.repetitions
            for epoch in repetition.epochs
        ),
        default=0.0,
    )
    if resident > MAX_SERVED:
        return f"up to {resident:.0%} of the dataset was in the page cache before an epoch"
    served = max((each.cached for each in epoch_deliveries(doc)), default=0.0)
    return f"up to {served:.0%} of an epoch came from a cache" if served > MAX_SERVED else ""


def _waits_were_cached(doc: TrainingRecord) -> str:
    """Why a training that was watched did not wait for its storage; empty if it may have.

    Nobody empties the cache before a training, and only its first epoch may be cold. So each epoch
    counts by how long batches were waited for in it. A training that reads a part of its dataset
    says nothing of what the cache holds of the rest: there the counts of the processes tell.
    """
    facts = doc.job.loader.user
    if facts is not None and facts.files_inside and doc.storage.fs_type in ONE_DEVICE:
        read, delivered = facts.process_bytes or 0, facts.device_bytes
        if delivered is not None and read >= MIN_READ and delivered <= MAX_SERVED * read:
            return (
                f"devices delivered {format_bytes(delivered)} of the {format_bytes(read)} that the "
                "loader read"
            )
    waits = [
        (epoch.residency_before, epoch.wait_s or 0.0)
        for repetition in doc.job.repetitions
        for epoch in repetition.epochs
    ]
    waited = sum(wait_s for _, wait_s in waits)
    if not waited or any(share is None for share, wait_s in waits if wait_s):
        return ""
    cached = sum((share or 0.0) * wait_s for share, wait_s in waits) / waited
    return (
        f"{cached:.0%} of the dataset was in the page cache while batches were waited for"
        if cached >= MIN_CACHED
        else ""
    )
