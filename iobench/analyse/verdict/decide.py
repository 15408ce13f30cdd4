"""Decide what binds: by the stages that were left out, or else by the ceilings.

Stages that were left out in turns with the repetitions decide (``tested``). Without them the
ceilings and the time that the run spent on each stage do (``inferred``).
"""

from __future__ import annotations

from ...schema.record import TrainingRecord
from . import inferred, tested
from .decision import Decision
from .evidence import Evidence
from .rules_cache import epoch_deliveries, uncached
from .short import too_short

MAX_SERVED = 0.1
"""A cache that served more of the reads than this hides what the storage can do."""


def decide(evidence: Evidence) -> Decision:
    """What binds the run, and why; ``undecided`` with the reason where nothing tells."""
    short = too_short(evidence)
    if short:
        return Decision(binds="undecided", reason=short.why, too_short=short)
    if evidence.measured is None:
        return Decision(binds="undecided", reason="no repetition was completed")
    if any(stage != "fill" for stage in evidence.gains):
        return tested.by_test(evidence)
    if tested.convinces(evidence.gains.get("fill")):
        # It was computed from the events, without a run in which anything was left out.
        return Decision(binds="fill", basis="inferred")
    return inferred.by_inference(evidence)


def served_by_cache(doc: TrainingRecord) -> str:
    """Why the reads of a run say nothing about its storage; empty if they do.

    Either the run asked for a warm page cache, or more than ``MAX_SERVED`` of what it read was
    there.
    """
    if uncached(doc):
        return ""
    if doc.job.workload.cache == "warm":
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
