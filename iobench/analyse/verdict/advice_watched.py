"""Advice on a training that was watched: what binds was inferred, so no gain is promised."""

from __future__ import annotations

from ...schema.verdict import Advice
from ...units import counted, format_percent
from .decision import Decision
from .evidence import Evidence

CAUSES = ("storage", "prep", "harness")
"""Stages of the user's own loader."""

TEST = (
    "test the cause: put the function that makes this loader under iobench run --loader "
    "MODULE:FUNCTION"
)


def watched_advice(evidence: Evidence, decision: Decision) -> list[Advice]:
    """The change that fits what was seen, and how to find out what it brings."""
    most = "" if not evidence.utilization else f"at most {1 / evidence.utilization:.2f} x: "
    busy = format_percent(evidence.utilization or 0.0)
    basis = f"{most}the training did not wait for batches {busy} of the time"
    found = [Advice(change=_change(evidence, decision), basis=basis)]
    return [*found, Advice(change=TEST, basis="what binds was inferred from one training")]


def _change(evidence: Evidence, decision: Decision) -> str:
    each = evidence.workers // max(1, evidence.accelerators)
    now = f"now {counted(each, 'worker')} for each rank"
    if decision.binds == "harness":
        return (
            "make the hand-over of batches cheaper: smaller types (uint8 instead of float32), "
            f"fewer and larger tensors, no collate in the main process ({now})"
        )
    if decision.binds == "storage":
        return f"keep more reads in flight: more workers, threads or a longer prefetch ({now})"
    if evidence.cached and decision.reason.endswith(evidence.cached):
        return f"find out what the loader waits for, or hide it behind more workers ({now})"
    if evidence.cores and evidence.workers < evidence.cores:
        return f"use more workers while cores are free ({now}, {evidence.cores:g} cores)"
    return "prepare the data before the training, or make decoding and transforms cheaper"
