"""Advice on a training that was watched: what binds was inferred, so no gain is promised."""

from __future__ import annotations

from ...schema.verdict import Advice
from ...units import counted, format_bytes, format_percent
from .decision import Decision
from .evidence import Evidence
from .loader_waits import LoaderWaits
from .user_loader import MIN_HELD_BACK, slow_worker
from .waits import CLEAR, MOST, starting_workers

CAUSES = ("storage", "prep", "harness", "fill")
"""Stages of the user's own loader."""

KEEP_WORKERS = "set persistent_workers=True in the DataLoader, so that its workers start only once"

TEST = (
    "test the cause: put the function that makes this loader under iobench run --loader "
    "MODULE:FUNCTION"
)


def watched_advice(evidence: Evidence, decision: Decision) -> list[Advice]:
    """The change that fits what was seen, and how to find out what it brings."""
    most = "" if not evidence.utilization else f"at most {1 / evidence.utilization:.2f} x: "
    busy = format_percent(evidence.utilization or 0.0)
    basis = f"{most}the training did not wait for batches {busy} of the time"
    change = _change(evidence, decision, evidence.watched or LoaderWaits())
    found = [Advice(change=change, basis=basis)]
    return [*found, Advice(change=TEST, basis="what binds was inferred from one training")]


def watched_nothing(evidence: Evidence) -> Advice:
    """No change of the loader is worth the work: the training waits for little."""
    busy = evidence.utilization or 1.0
    return Advice(
        id="none",
        change="no change of the loader is needed: faster storage would not speed up this training",
        predicted_gain=1.0,
        basis=f"the training did not wait for batches {format_percent(busy)} of the time: without "
        f"any wait it is at most {1 / busy:.2f} x as fast",
    )


def _change(evidence: Evidence, decision: Decision, seen: LoaderWaits) -> str:
    each = evidence.workers // max(1, evidence.accelerators)
    now = f"now {counted(each, 'worker')} for each rank"
    if decision.binds == "fill":
        return _fill(evidence, seen)
    if decision.binds == "harness":
        return (
            "make the hand-over of batches cheaper: smaller types (uint8 instead of float32), "
            f"fewer and larger tensors, smaller samples ({_size(seen)})"
        )
    if seen.uneven is not None and (seen.held_back or 0.0) >= MIN_HELD_BACK:
        return (
            f"find out why {slow_worker(seen.uneven)}, or set in_order=False in the DataLoader if "
            "the order of batches does not matter"
        )
    if seen.held_back is not None and seen.held_back >= MOST:
        return (
            "find out what makes some batches slow, or set in_order=False in the DataLoader if "
            "their order does not matter"
        )
    if seen.collate is not None and seen.collate >= MOST:
        return (
            f"make collate_fn cheaper, which takes {format_percent(seen.collate)} of the time in "
            "which a batch is made: smaller types (uint8 instead of float32), smaller samples"
            f" ({_size(seen)}), and nothing that can be done before the training; a profiler in a "
            "worker tells which of its lines (py-spy, cProfile)"
        )
    if not each and (evidence.cores is None or evidence.cores > 1):
        return (
            "let worker processes make the batches while the training computes: num_workers of a "
            "DataLoader (now the training process makes them itself)"
        )
    if decision.binds == "storage":
        return (
            f"keep more reads in flight: more workers, threads or a longer prefetch ({now}); where "
            "that brings nothing, faster storage"
        )
    if (evidence.shares.prep or 0.0) < CLEAR * (evidence.shares.fetch or 0.0):
        return f"find out what the loader waits for, or hide it behind more workers ({now})"
    if evidence.cores and evidence.workers < evidence.cores:
        return f"use more workers while cores are free ({now}, {evidence.cores:g} cores)"
    return "prepare the data before the training, or make decoding and transforms cheaper"


def _size(seen: LoaderWaits) -> str:
    return f"now {format_bytes(round(seen.batch_bytes or 0))} in a batch"


def _fill(evidence: Evidence, seen: LoaderWaits) -> str:
    anew = bool(evidence.workers) and (seen.starts or 0) > 1
    if not starting_workers(evidence):
        keep = f"{KEEP_WORKERS} (they were started {seen.starts} times), and " if anew else ""
        return f"{keep}make each batch cheaper, so that the first ones of an epoch are there sooner"
    if evidence.epochs > 1 and seen.starts == 1:
        return "train for longer: the workers start only once"
    return f"{KEEP_WORKERS}, and keep what has to be sent to them small"
