"""Advice on what is beside loading: saves, the start of epochs, waiting for ranks; or none."""

from __future__ import annotations

from collections.abc import Sequence

from ...schema.curve import Bound
from ...schema.verdict import Advice
from ...schema.workload import USER_LOADER
from ...units import counted, format_count, format_percent
from .cut import LONGER, cut_epochs
from .evidence import Evidence


def fill_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on the time until the first batch of each epoch."""
    if (whole := cut_epochs(evidence)) is not None:
        return [_whole_epochs(evidence, whole)]
    if evidence.kind == USER_LOADER:
        return [_first_batches(evidence)]
    return [
        Advice(
            id="longer-epochs",
            change="make epochs longer (more samples in each), or keep the workers reading over "
            "the end of an epoch",
            predicted_gain=_without(evidence, "fill", evidence.shares.fill),
            basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
        )
    ]


def _first_batches(evidence: Evidence) -> Advice:
    """What a loader of the user's own can do: its data is what it is."""
    anew = bool(evidence.workers) and not evidence.persistent
    keep = "set persistent_workers=True in the DataLoader, and " if anew else ""
    return Advice(
        id="first-batches",
        change=f"{keep}make each batch cheaper, so that the first ones of an epoch are there "
        "sooner",
        predicted_gain=_without(evidence, "fill", evidence.shares.fill),
        basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
    )


def _whole_epochs(evidence: Evidence, whole: int) -> Advice:
    """The job's epochs are longer than those that the run had time for."""
    made = evidence.rank_steps or 0.0
    return Advice(
        id="longer-run",
        change=f"{LONGER}: this run made "
        f"{counted(round(made), 'step')} of the {format_count(whole)} of an epoch, so the start of "
        "its epochs weighs more than in the job",
        basis=_because(evidence, "fill", "no batch is there yet", evidence.shares.fill),
    )


def sync_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on ranks that wait for each other at step barriers."""
    return [
        Advice(
            id="no-barrier",
            change="make the ranks equally fast, or let more batches be prefetched, so that a slow "
            "one does not stop all; fewer barriers (gradient accumulation) help, too",
            predicted_gain=_without(evidence, "sync", evidence.shares.sync),
            basis=_because(evidence, "sync", "ranks wait for others", evidence.shares.sync),
        )
    ]


def saves_advice(evidence: Evidence, _: Bound | None) -> Sequence[Advice | None]:
    """Advice on checkpoints that stop the training."""
    return [
        Advice(
            id="faster-saves",
            change="save faster or less often: faster durable writes, an asynchronous writer, or "
            "a longer interval between checkpoints",
            predicted_gain=_without(evidence, "saves", evidence.shares.saves),
            basis=_because(evidence, "saves", "the training stands still", evidence.shares.saves),
        )
    ]


def _without(evidence: Evidence, stage: str, share: float | None) -> float | None:
    """The gain if a part of the time was not there: as tested, or from its share."""
    tested = evidence.gains.get(stage)
    if tested is not None:
        return tested.value
    return 1 / (1 - share) if share is not None and share < 1 else None


def _because(evidence: Evidence, stage: str, what: str, share: float | None) -> str:
    if share is not None:
        return f"{what} for {format_percent(share)} of the time"
    return f"the run without it is {evidence.gains[stage].value:.2f} x as fast"


def nothing(evidence: Evidence) -> Advice:
    """The advice to leave things as they are, where the accelerators bind."""
    supply = {
        "storage": None if evidence.cached else evidence.storage,
        "prep": evidence.prep,
        "harness": evidence.harness,
    }
    known = {name: rate for name, rate in supply.items() if rate is not None}
    if evidence.utilization is not None:
        basis = f"the accelerators are busy {format_percent(evidence.utilization)} of the time"
    else:
        basis = "the accelerators are the lowest ceiling"
    if known and evidence.accelerator:
        first = min(known, key=lambda name: known[name])
        ratio = known[first] / evidence.accelerator
        if ratio >= 1:
            basis += f"; the next limit is {first}, at {ratio:.2f} x their demand"
    return Advice(
        id="none",
        change="no change is needed: faster storage would not speed up this job",
        predicted_gain=1.0,
        low=None,
        high=None,
        basis=basis,
    )
