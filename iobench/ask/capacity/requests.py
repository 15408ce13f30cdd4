"""Requests that arrive by themselves: what they demand, and what if they were served otherwise.

The requests arrive when they arrived. What becomes of them follows from the recorded reads: the
accelerators' queue exactly, since it has no influence on the reads, and the queue for a free reader
by carrying it out again with reads that take as long as the recorded ones, or changed alike.

What a scenario demands of storage is how long a read may take so that its limit holds. Its requests
are carried out in virtual time: each waits for one of the reads in flight, is read, and waits for
an accelerator and its batch, exactly as in a serving run. What is varied is how long the reads
take: all of them alike, until the limit just holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from heapq import heapreplace
from statistics import median

import numpy as np
import numpy.typing as npt

from ...base.documents import UNPRINTED
from ...base.errors import UsageError
from ...base.units import counted, format_duration
from ...judge.figures.requests import Rows, with_served_figures
from ...judge.rebuild import conclude
from ...record.run import ServingRecord
from ...record.serving import ServedTrial
from ...settings.scenario import MAX_IN_FLIGHT, Scenario
from .ceilings import Change, whole
from .margin import lognormal_sigma


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


Reads = npt.NDArray[np.float64]

SIMULATED = 20_000
"""Requests that are carried out: 200 of them are slower than p99."""

PRECISION = 1.01
"""The longest reads are known within this factor."""


@dataclass(frozen=True, kw_only=True)
class ServedNeed:
    """A rate of requests whose quantile is to stay within a limit.

    ``most_read_s`` and ``most_read_p99_s``: the longest reads, at their median and 99th percentile,
    with which the limit holds; None: it does not hold even if reads take no time. ``in_flight``:
    reads that are then under way on average, and ``in_flight_most`` at most, at 99.9 % of the
    arrivals. ``busy``: the share of the time for which the accelerators work.

    ``read_s`` and ``read_p99_s``: of the reads that were stated, or recorded by the run
    ``measured_run`` at ``measured_rate`` requests/s; with these the quantile is ``latency_s``, and
    the limit ``holds`` or does not.
    """

    scenario: str
    rate: float
    limit_s: float
    quantile: float
    readers: int
    sample_bytes: float
    bytes_per_s: float
    busy: float
    simulated: int
    most_read_s: float | None
    most_read_p99_s: float | None
    in_flight: float | None = None
    in_flight_most: float | None = None
    read_s: float | None = None
    read_p99_s: float | None = None
    latency_s: float | None = None
    holds: bool | None = None
    measured_run: str = ""
    measured_rate: float | None = None


def stated_reads(median_s: float, p99_s: float | None) -> Reads:
    """Lognormal reads of this median and 99th percentile; without the latter all are alike."""
    if p99_s is None:
        return np.full(SIMULATED, median_s)
    sigma = lognormal_sigma(median_s, p99_s)
    return np.random.default_rng(0).lognormal(math.log(median_s), sigma, SIMULATED)


def recorded_reads(doc: ServingRecord, rows: Rows) -> Reads:
    """Reads drawn from those of the repetitions. Raises UsageError where there are none."""
    places = [at for at, one in enumerate(doc.job.trials) if one.kind == "repetition"]
    good = np.isin(rows["trial"], places) & (rows["ready_ns"] >= 0) & (rows["failed"] == 0)
    took = (rows["ready_ns"] - rows["issued_ns"])[good] / 1e9
    if not len(took):
        raise UsageError(
            f"run {doc.run_id} read no sample in a repetition", remedy="name another run"
        )
    return np.random.default_rng(0).choice(took, SIMULATED)


def served_need(
    scenario: Scenario,
    instants: npt.NDArray[np.int64],
    reads: Reads | None,
    *,
    rate: float,
    sample_bytes: float,
    measured: ServingRecord | None = None,
) -> ServedNeed:
    """Find the longest reads with which the limit holds at ``instants``, in nanoseconds.

    ``reads``: as long as they are on some storage, in seconds; None: all take the same time. Their
    spread stays while their length is varied.
    """
    base = np.ones(len(instants)) if reads is None else np.resize(reads, len(instants))
    usual, slow = float(np.median(base)), float(np.quantile(base, 0.99))
    windows = _Windows(scenario, instants, base, rate)
    found, now = windows.longest(), windows.at(1.0)[0] if reads is not None else None
    in_flight: tuple[float, float] | None = None
    if found is not None:
        in_flight = _in_flight(windows.at(found)[1])
    return ServedNeed(
        scenario=scenario.name,
        rate=rate,
        limit_s=scenario.limit,
        quantile=scenario.quantile,
        readers=scenario.reader.concurrency,
        sample_bytes=sample_bytes,
        bytes_per_s=rate * sample_bytes,
        busy=min(1.0, rate / scenario.most_per_s),
        simulated=len(instants),
        most_read_s=None if found is None else found * usual,
        most_read_p99_s=None if found is None or reads is None else found * slow,
        in_flight=None if in_flight is None else in_flight[0],
        in_flight_most=None if in_flight is None else in_flight[1],
        read_s=None if reads is None else usual,
        read_p99_s=None if reads is None else slow,
        latency_s=None if now is None else now.quantile_s,
        holds=None if now is None else _holds(now),
        measured_run="" if measured is None else measured.run_id,
        measured_rate=None if measured is None else measured.job.rate,
    )


class _Windows:
    """One window of requests, with reads of other lengths."""

    def __init__(
        self, scenario: Scenario, instants: npt.NDArray[np.int64], reads: Reads, rate: float
    ) -> None:
        self.scenario = scenario
        self.rows: Rows = {
            "intended_ns": instants,
            "taken_ns": instants,
            "issued_ns": instants,
            "ready_ns": instants + (1e9 * reads).astype(np.int64),
            "failed": np.zeros(len(instants), np.uint8),
        }
        self.usual = float(np.median(reads))
        seconds = max(1e-6, float(instants[-1]) / 1e9) if len(instants) else 1.0
        self.trial = ServedTrial(
            kind="repetition", seed=0, rate=rate, seconds=seconds, requests=len(instants)
        )

    def at(self, factor: float) -> tuple[ServedTrial, Rows]:
        """The window whose reads take ``factor`` times as long."""
        rows = replayed(self.rows, readers=self.scenario.reader.concurrency, factor=factor)
        return with_served_figures(self.trial, rows, self.scenario), rows

    def longest(self) -> float | None:
        """The largest factor with which the limit holds; None: it does not even with 0."""
        if not _holds(self.at(0.0)[0]):
            return None
        low, high = 0.0, self.scenario.limit / self.usual
        least = 1e-6 * high
        while high > PRECISION * max(low, least):
            middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
            low, high = (middle, high) if _holds(self.at(middle)[0]) else (low, middle)
        return low if low > 0 else None


def _holds(trial: ServedTrial) -> bool:
    return bool(trial.holds) and trial.steady is not False


def _in_flight(rows: Rows) -> tuple[float, float]:
    """Reads under way on average, and at 99.9 % of the instants at which one begins."""
    begun, done = np.sort(rows["issued_ns"]), np.sort(rows["ready_ns"])
    under_way = np.arange(1, len(begun) + 1) - np.searchsorted(done, begun, side="right")
    whole = float((rows["ready_ns"] - rows["issued_ns"]).sum())
    return whole / max(1, int(done[-1] - begun[0])), float(np.quantile(under_way, 0.999))
