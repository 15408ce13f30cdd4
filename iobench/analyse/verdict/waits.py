"""What binds a training that was watched, from what it waited for: no stage was measured alone.

While a batch was waited for, its worker computed, or waited itself, or the batch was made and on
its way; in which of these the time went, the counts of the loader's processes tell.
"""

from __future__ import annotations

from ...units import format_percent
from .decision import Decision
from .evidence import Evidence
from .loader_waits import LoaderWaits
from .user_loader import MIN_HELD_BACK, slow_worker

CLEAR = 2.0
"""The workers waited clearly longer for one of fetch and prep than for the other."""

MOST = 0.5
"""What takes this share of the waits, or of the time to make a batch, is what to look at first."""


def by_waits(evidence: Evidence, seen: LoaderWaits) -> Decision:
    """What binds: the step if the training is fed, or else a part of its loader."""
    if evidence.fed:
        return Decision(binds="accelerator")
    fetch, prep, wait = evidence.shares.fetch, evidence.shares.prep, evidence.shares.wait
    if fetch is None or prep is None or not fetch + prep:
        return Decision(
            binds="undecided", reason="what the loader did while batches were waited for is unknown"
        )
    if wait and seen.working is not None and seen.working < MOST * wait:
        return Decision(binds="harness", reason=_idle(seen))
    if seen.uneven is not None and (seen.held_back or 0.0) >= MIN_HELD_BACK:
        return Decision(
            binds="prep",
            reason=f"{slow_worker(seen.uneven)}, and in {format_percent(seen.held_back or 0.0)} of "
            "the waits a later batch was ready and held back",
        )
    computing = prep / (fetch + prep)
    reason = (
        f"while batches were waited for, the loader computed for {computing:.0%} of the time and "
        f"waited for {1 - computing:.0%} of it"
    )
    if prep >= CLEAR * fetch:
        return Decision(binds="prep", reason=reason)
    if seen.collate is not None and seen.collate >= MOST:
        return Decision(binds="prep", reason=f"{reason}, most of it in collate_fn")
    if evidence.cached:
        return Decision(binds="prep", reason=f"{reason}, but not for its files")
    if fetch >= CLEAR * prep:
        return Decision(binds="storage", reason=f"{reason}: for storage, a network or a lock")
    return Decision(binds="storage", also=("prep",), reason=reason)


def _idle(seen: LoaderWaits) -> str:
    """Workers that compute hand their batches over late, too, so only idle ones tell the cause."""
    made = ""
    if seen.handed_over is not None and seen.handed_over >= MOST:
        made = f", and in {format_percent(seen.handed_over)} of the waits the batch was made"
    return (
        f"while batches were waited for, the workers mostly had nothing to do{made}: the time goes "
        "into handing batches over"
    )


def starting_workers(evidence: Evidence) -> bool:
    """Whether the workers' start takes most of the time until the first batch of each epoch."""
    seen, fill = evidence.watched, evidence.shares.fill
    return bool(seen and seen.starting and fill and seen.starting >= MOST * fill)


def why_filling(evidence: Evidence) -> str:
    """What a training that was watched waited for at the start of its epochs; else empty."""
    if evidence.watched is None or not evidence.shares.fill:
        return ""
    until = ", most of it until its workers have started" if starting_workers(evidence) else ""
    share = format_percent(evidence.shares.fill)
    return f"the first batches of epochs are waited for {share} of the time{until}"
