"""What if: a run that served requests, with other accelerators, other reads in flight or latencies.

The requests arrive when they arrived. What becomes of them follows from the recorded reads: the
accelerators' queue exactly, since it has no influence on the reads, and the queue for a free reader
by carrying it out again with reads that take as long as the recorded ones, or changed alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heapreplace
from statistics import median

import numpy as np

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...base.units import counted, format_duration
from ...judge.figures.requests import Rows, with_served_figures
from ...judge.rebuild import conclude
from ...record.run import ServingRecord
from ...record.serving import ServedTrial
from ...settings.scenario import MAX_IN_FLIGHT, Scenario
from .ceilings import Change, whole


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedPrediction:
    """The run with the change. ``model_error``: of the quantile, without any change."""

    run_id: str
    changes: tuple[str, ...]
    bases: tuple[str, ...]
    model_error: float | None
    what_if: ServingRecord
    before: ServingRecord = field(metadata=UNPRINTED)


def served_if(doc: ServingRecord, rows: Rows, change: Change) -> ServedPrediction:
    """Predict ``doc``, whose ``events.parquet`` has ``rows``. Raises UsageError."""
    known = Change(
        latency=change.latency,
        concurrency=change.concurrency,
        accelerators=change.accelerators,
        step_time=change.step_time,
    )
    if change != replace(known, pinned=change.pinned) or known.empty:
        raise UsageError(
            "of a run that served requests, the latency, the reads in flight, the accelerators and "
            "the step time can be changed",
            remedy="give --latency, --concurrency, --accelerators or --step-time, and no others",
        )
    spec, changes, bases = doc.job.scenario, list[str](), list[str]()
    readers = whole(change.concurrency, spec.reader.concurrency, "reads in flight", 1)
    servers = whole(change.accelerators, spec.accelerators, "accelerators", 1)
    step = spec.step_time if change.step_time is None else change.step_time.of(spec.step_time, "")
    if not 0 < step < spec.limit or readers > MAX_IN_FLIGHT:
        raise UsageError(
            f"a step of {format_duration(step)} is not within the limit of "
            f"{format_duration(spec.limit)}, or more than {MAX_IN_FLIGHT} reads are in flight",
            remedy="give smaller values",
        )
    if change.concurrency is not None:
        changes.append(f"{counted(readers, 'read')} in flight, not {spec.reader.concurrency}")
    if change.accelerators is not None:
        changes.append(f"{counted(servers, 'accelerator')}, not {spec.accelerators}")
    if change.step_time is not None:
        changes.append(f"a step of {format_duration(step)}, not {format_duration(spec.step_time)}")
    old = median([one.storage_p50_s or 0.0 for one in doc.job.repetitions] or [0.0])
    new = old if change.latency is None else change.latency.of(old, "latency")
    if change.latency is not None:
        changes.append(f"a read of {format_duration(new)} at p50, not {format_duration(old)}")
    asked = spec.model_copy(
        update={
            "accelerators": servers,
            "step_time": step,
            "reader": spec.reader.model_copy(update={"concurrency": readers}),
        }
    )
    replays = change.latency is not None or change.concurrency is not None
    if replays:
        bases.append("a read takes as long, however many others are in flight")
    if doc.job.log is not None:
        bases.append("no log is written, whose commits would come at other times")
    trials = [
        _again(doc, rows, place, asked, factor=new / old if old else 1.0, replays=replays)
        for place, one in enumerate(doc.job.trials)
        if one.kind in ("repetition", "without-storage")
    ]
    changed = doc.model_copy(update={"findings": []}).with_job(
        scenario=asked, trials=trials, found=None, log=None
    )
    return ServedPrediction(
        run_id=doc.run_id,
        changes=tuple(changes),
        bases=tuple(bases),
        model_error=_error(doc, rows) if replays else 0.0,
        what_if=conclude(changed),
        before=doc,
    )


def _again(
    doc: ServingRecord, rows: Rows, place: int, spec: Scenario, *, factor: float, replays: bool
) -> ServedTrial:
    """One window with the change; without storage its reads take as long as they did."""
    trial = doc.job.trials[place]
    mine = {name: each[rows["trial"] == place] for name, each in rows.items()}
    if replays:
        each = factor if trial.kind == "repetition" else 1.0
        mine = replayed(mine, readers=spec.reader.concurrency, factor=each)
    return with_served_figures(trial.model_copy(update={"logged": False}), mine, spec)


def replayed(rows: Rows, *, readers: int, factor: float = 1.0) -> dict[str, np.ndarray]:
    """The requests of a window, whose reads take ``factor`` times as long, by so many readers.

    Each reader takes the next request in the order of arrival, and is as late as it was. Requests
    that no reader took are left out.
    """
    taken = {name: each[rows["ready_ns"] >= 0] for name, each in rows.items()}
    at = taken["intended_ns"]
    late = np.maximum(0, taken["issued_ns"] - np.maximum(at, taken["taken_ns"]))
    took = (taken["ready_ns"] - taken["issued_ns"]) * factor
    free, begins = [0.0] * min(readers, max(1, len(at))), np.empty(len(at))
    for request, (arrived, behind, each) in enumerate(zip(at, late, took, strict=True)):
        begin = max(float(arrived), free[0]) + float(behind)
        heapreplace(free, begin + float(each))
        begins[request] = begin
    taken["issued_ns"] = begins.astype(np.int64)
    taken["taken_ns"] = taken["issued_ns"] - late
    taken["ready_ns"] = (begins + took).astype(np.int64)
    return taken


def _error(doc: ServingRecord, rows: Rows) -> float | None:
    """(predicted - recorded) / recorded of the quantile, if nothing is changed."""
    errors = []
    for place, one in enumerate(doc.job.trials):
        if one.kind == "repetition" and one.quantile_s:
            found = _again(doc, rows, place, doc.job.scenario, factor=1.0, replays=True)
            errors.append((found.quantile_s or 0.0) / one.quantile_s - 1)
    return median(errors) if errors else None
