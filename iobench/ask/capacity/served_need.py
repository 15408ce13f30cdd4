"""What requests that arrive demand of storage: how long a read may take so that a limit holds.

The requests of a scenario are carried out in virtual time: each waits for one of the reads in
flight, is read, and waits for an accelerator and its batch, exactly as in a serving run. What is
varied is how long the reads take: all of them alike, until the limit just holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...base.errors import UsageError
from ...judge.figures.requests import Rows, with_served_figures
from ...record.run import ServingRecord
from ...record.serving import ServedTrial
from ...settings.scenario import Scenario
from .margin import lognormal_sigma
from .requests import replayed

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


def stated_reads(median_s: float, p99_s: float | None, seed: int = 0) -> Reads:
    """Lognormal reads of this median and 99th percentile; without the latter all are alike."""
    if p99_s is None:
        return np.full(SIMULATED, median_s)
    sigma = lognormal_sigma(median_s, p99_s)
    return np.random.default_rng(seed).lognormal(math.log(median_s), sigma, SIMULATED)


def recorded_reads(doc: ServingRecord, rows: Rows, seed: int = 0) -> Reads:
    """Reads drawn from those of the repetitions. Raises UsageError where there are none."""
    places = [at for at, one in enumerate(doc.job.trials) if one.kind == "repetition"]
    good = np.isin(rows["trial"], places) & (rows["ready_ns"] >= 0) & (rows["failed"] == 0)
    took = (rows["ready_ns"] - rows["issued_ns"])[good] / 1e9
    if not len(took):
        raise UsageError(
            f"run {doc.run_id} read no sample in a repetition", remedy="name another run"
        )
    return np.random.default_rng(seed).choice(took, SIMULATED)


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
