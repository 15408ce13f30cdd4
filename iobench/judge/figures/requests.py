"""The figures of a window, from the times of its requests.

Accelerators take requests in batches, in virtual time. Requests arrive whether or not those before
them were answered, so an accelerator has no influence on when samples are ready for it. That is why
an emulated one need not run: what it would have done with the samples of a window follows from when
they were ready, exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from heapq import heapreplace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...record.run import Summary
from ...record.serving import KvTrial, RequestWindow, ServedTrial
from ...record.training import RankLog, RunLog
from ...settings.scenario import Scenario
from ...settings.workload import LogSpec
from ..statistics import of_all, t_quantile

Times = npt.NDArray[Any]


class Accelerators:
    """Servers that take requests in batches; all times have one unit.

    A server that is free begins a batch when ``batch_size`` requests are there, or ``batch_delay``
    after the first of them was ready, with those that are there. A batch takes ``step``.
    """

    def __init__(self, *, servers: int, batch_size: int, batch_delay: float, step: float) -> None:
        self.batch_size, self.batch_delay, self.step = batch_size, batch_delay, step
        self._free = [0.0] * servers

    def next_begin(self, ready: Sequence[float], first: int = 0) -> float:
        """When the batch of request ``first`` begins, if no others than ``ready`` come."""
        last = first + self.batch_size - 1
        full = ready[last] if last < len(ready) else math.inf
        return max(self._free[0], min(full, ready[first] + self.batch_delay))

    def begin(self, ready: Sequence[float], first: int = 0) -> tuple[float, int]:
        """Begin the batch of request ``first``: when, and the place of the next request."""
        begin, most = self.next_begin(ready, first), first + self.batch_size
        heapreplace(self._free, begin + self.step)
        return begin, bisect_right(ready, begin, first + 1, min(most, len(ready)))


def served(
    ready: Times, *, servers: int, batch_size: int, batch_delay: float, step: float
) -> tuple[Times, Times]:
    """When the step of each request begins and ends, in the order of the requests.

    The requests are taken in the order in which they are ``ready``.
    """
    order = np.argsort(ready, kind="stable")
    waiting = ready[order].astype(np.float64).tolist()
    begins, first = np.empty(len(waiting)), 0
    accelerators = Accelerators(
        servers=min(servers, max(1, len(waiting))),
        batch_size=batch_size,
        batch_delay=batch_delay,
        step=step,
    )
    while first < len(waiting):
        begin, stop = accelerators.begin(waiting, first)
        begins[first:stop] = begin
        first = stop
    placed = np.empty(len(waiting))
    placed[order] = begins
    return placed, placed + step


Rows = Mapping[str, npt.NDArray[Any]]
"""The columns of one window: those of ``SERVED_COLUMNS``, or of ``KV_COLUMNS``."""

SLOW = 0.01
"""The share of the slowest requests whose parts are told."""

SLICES = 10
"""Parts of a fifth of the requests; their means are nearly independent of one another."""

GROWN, GROWTH_LEVEL = 1.5, 0.001
"""A latency has grown if it is so many times as long, and by more than chance."""


def with_served_figures(trial: ServedTrial, rows: Rows, scenario: Scenario) -> ServedTrial:
    """The window with every figure that follows from its requests."""
    update, good = answers(rows)
    if not good.any():
        return trial.model_copy(update=update)
    intended, taken, issued, ready = (
        rows[name][good].astype(np.float64) / 1e9
        for name in ("intended_ns", "taken_ns", "issued_ns", "ready_ns")
    )
    begins, ends = served(
        ready,
        servers=scenario.accelerators,
        batch_size=scenario.batch_size,
        batch_delay=scenario.batch_delay,
        step=scenario.step_time,
    )
    answered = ends
    if trial.logged:
        logged = rows["logged_ns"][good]
        committed = np.where(logged < 0, np.inf, logged / 1e9)
        update |= _of_log(trial, scenario, float(intended[-1]), ends, committed)
        if scenario.log.waits:
            answered = np.maximum(ends, committed)
            known = np.isfinite(answered)
            update["unserved"] += int((~known).sum())
            if not known.any():
                return trial.model_copy(update=update)
            intended, taken, issued, ready, begins, ends, answered = (
                each[known] for each in (intended, taken, issued, ready, begins, ends, answered)
            )
    log_s, storage_s = answered - ends, ready - issued
    parts = {
        "reader_wait_s": issued - intended,
        "storage_s": storage_s,
        "accelerator_wait_s": begins - ready,
        "step_s": ends - begins,
        "log_wait_s": log_s,
    }
    update |= of_answers(
        trial,
        Answered(intended=intended, taken=taken, issued=issued, ready=ready, answered=answered),
        parts,
        update,
        limit_s=scenario.limit,
        at=scenario.quantile,
    )
    reading_s = max(trial.seconds, float(ready.max()))
    return trial.model_copy(
        update=update
        | {
            "without_accelerator_s": quantile(ready - intended + log_s, scenario.quantile),
            "storage_p50_s": quantile(storage_s, 0.5),
            "storage_p99_s": quantile(storage_s, 0.99),
            "storage_max_s": float(storage_s.max()),
            "reads_per_s": trial.reads / reading_s if trial.reads else None,
        }
    )


def answers(rows: Rows) -> tuple[dict[str, Any], npt.NDArray[np.bool_]]:
    """How many requests a window has, and which of them were read.

    The figures are those of a window without any answer, until ``of_answers`` tells more.
    """
    failed, unserved = rows["failed"] > 0, rows["ready_ns"] < 0
    found: dict[str, Any] = {
        "requests": len(failed),
        "failed": int(failed.sum()),
        "unserved": int(unserved.sum()),
    }
    if len(failed):
        found |= {"over": 1.0, "holds": False, "steady": False}
    return found, ~failed & ~unserved


class Answered(NamedTuple):
    """The times of the requests with an answer, in seconds since the window began."""

    intended: npt.NDArray[np.float64]
    taken: npt.NDArray[np.float64]
    issued: npt.NDArray[np.float64]
    ready: npt.NDArray[np.float64]
    answered: npt.NDArray[np.float64]


def of_answers(
    trial: ServedTrial | KvTrial,
    times: Answered,
    parts: Mapping[str, npt.NDArray[np.float64]],
    counts: Mapping[str, int],
    *,
    limit_s: float,
    at: float,
) -> dict[str, Any]:
    """The figures of a window that follow from the requests with an answer.

    ``parts``: of their latencies. ``counts``: what ``answers`` found of all requests, of which the
    share ``at`` has to be within the limit.
    """
    latency, number, kind = times.answered - times.intended, counts["requests"], type(trial.parts)
    over = float((latency > limit_s).sum() + number - len(latency)) / number
    growth, grows = growth_of(latency)
    steady = None if growth is None else not grows
    slow = latency >= quantile(latency, 1 - SLOW)
    late = times.issued - np.maximum(times.intended, times.taken)
    return {
        "offered_per_s": number / trial.seconds,
        "requests_per_s": len(latency) / max(trial.seconds, float(times.answered.max())),
        "latency_mean_s": float(latency.mean()),
        "latency_p50_s": quantile(latency, 0.5),
        "latency_p99_s": quantile(latency, 0.99),
        "latency_p999_s": quantile(latency, 0.999),
        "latency_max_s": float(latency.max()),
        "quantile_s": quantile(latency, at),
        "over": over,
        "holds": over <= 1 - at + 1e-9,
        "growth": growth,
        "steady": False if counts["unserved"] else steady,
        # One request that is late is an accident: of fewer than 100 they are two at least.
        "late_p99_s": min(quantile(late, 0.99), float(np.sort(late)[-min(2, len(late))])),
        "read_bytes_per_s": trial.bytes / max(trial.seconds, float(times.ready.max())),
        "parts": kind(**{name: _mean(each) for name, each in parts.items()}),
        "slow_parts": kind(**{name: _mean(each[slow]) for name, each in parts.items()}),
    }


def _mean(seconds: npt.NDArray[np.float64]) -> float:
    return max(0.0, float(seconds.mean()))


def _of_log(
    trial: ServedTrial,
    scenario: Scenario,
    last_s: float,
    ends: npt.NDArray[np.float64],
    committed: npt.NDArray[np.float64],
) -> dict[str, object]:
    """The figures of the log. ``last_s``: when the last request arrived."""
    order = np.argsort(ends, kind="stable")
    ends, committed = ends[order], committed[order]
    done = np.sort(committed)
    waits = np.maximum(0.0, committed - ends)[np.isfinite(committed)]
    left = len(ends) - len(waits)
    grows = growth_of(waits)
    keeps_up = None if grows[0] is None else not grows[1]
    if scenario.log.commit == "rotation":  # the time until a commit is that until the rotation
        keeps_up = True
    backlog = np.arange(1, len(ends) + 1) - np.searchsorted(done, ends, side="right")
    until = max(trial.seconds, float(done[len(waits) - 1])) if len(waits) else trial.seconds
    return {
        "log_records": len(waits),
        "log_left": left,
        "log_records_per_s": len(waits) / until,
        "log_objects_per_hour": objects_per_hour(
            scenario.log,
            objects=trial.log_objects,
            commits=trial.log_commits,
            nbytes=trial.log_bytes,
            seconds=trial.seconds,
        ),
        "log_commit_p50_s": quantile(waits, 0.5) if len(waits) else None,
        "log_commit_p99_s": quantile(waits, 0.99) if len(waits) else None,
        "log_backlog_max": int(max(0, backlog.max())),
        "log_backlog_end": int(max(0, (ends <= last_s).sum() - (done <= last_s).sum())),
        "log_keeps_up": False if left else keeps_up,
    }


def objects_per_hour(
    spec: LogSpec, *, objects: int, commits: int, nbytes: int, seconds: float
) -> float:
    """Objects or files of an hour at this rate: windows are too short for a rotation."""
    if spec.commit != "rotation" and objects == commits:
        return 3600 * objects / seconds
    full = nbytes / seconds / spec.writers / spec.rotate_bytes
    return 3600 * spec.writers * max(full, 1 / spec.rotate_delay)


def joined_log(ranks: Sequence[Sequence[RankLog]], spec: LogSpec | None) -> RunLog | None:
    """The logs of all ranks together, each of which wrote one in each epoch; None without any."""
    logs = [_of_epochs(epochs) for epochs in ranks if epochs]
    if not logs or spec is None:
        return None
    sums = {name: sum(getattr(each, name) for each in logs) for name in (*_SUMS, *_BACKLOGS)}
    grows = {each.grows for each in logs}
    keeps_up: bool | None = None if None in grows else True
    if spec.commit == "rotation":  # the time until a commit is that until the rotation
        keeps_up, grows = True, set()
    if True in grows or sums["left"]:
        keeps_up = False
    hourly = [
        objects_per_hour(
            spec,
            objects=each.objects,
            commits=each.commits,
            nbytes=each.bytes,
            seconds=each.seconds,
        )
        for each in logs
    ]
    found: dict[str, Any] = {
        **sums,
        **{name: of_all(max, (getattr(each, name) for each in logs)) for name in _TIMES},
        **{name: of_all(sum, (getattr(each, name) for each in logs)) for name in _RISKS},
        "seconds": max(each.seconds for each in logs),
        "waited_s": max(each.waited_s for each in logs),
        "grows": _any_grows([each.grows for each in logs]),
        "records_per_s": sum(each.records / each.seconds for each in logs),
        "objects_per_hour": sum(hourly),
        "keeps_up": keeps_up,
    }
    return RunLog.model_validate(found)


_SUMS = ("records", "left", "bytes", "commits", "objects")
_BACKLOGS = ("backlog_max", "backlog_end")
_TIMES = ("commit_p50_s", "commit_p99_s")
_RISKS = ("at_risk", "volatile")


def _of_epochs(epochs: Sequence[RankLog]) -> RankLog:
    """The logs of one rank, one after the other."""
    found: dict[str, Any] = {
        **{name: sum(getattr(each, name) for each in epochs) for name in _SUMS},
        **{name: max(getattr(each, name) for each in epochs) for name in _BACKLOGS},
        "seconds": max(1e-9, sum(each.seconds for each in epochs)),
        "waited_s": sum(each.waited_s for each in epochs),
        "grows": _any_grows([each.grows for each in epochs]),
    }
    for name in (*_TIMES, *_RISKS):
        found[name] = of_all(max, (getattr(each, name) for each in epochs))
    return RankLog.model_validate(found)


def _any_grows(known: Sequence[bool | None]) -> bool | None:
    return True if True in known else None if None in known else False


def quantile(values: npt.NDArray[np.float64], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    place = max(0, math.ceil(share * len(values) - 1e-9) - 1)
    return float(np.partition(values, place)[place])


def growth_of(latency: npt.NDArray[np.float64]) -> tuple[float | None, bool]:
    """Mean latency of the last fifth of the requests over that of the first; whether it grows.

    It grows if it is longer by more than the means of slices of both fifths differ by chance, and
    by enough to matter. None: too few requests.
    """
    fifth = len(latency) // 5
    if fifth < SLICES:
        return None, False
    first, last = (
        np.array([part.mean() for part in np.array_split(fifths, SLICES)])
        for fifths in (latency[:fifth], latency[-fifth:])
    )
    growth = float(last.mean() / first.mean()) if first.mean() > 0 else 1.0
    error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / SLICES)
    beyond = last.mean() - first.mean() > t_quantile(SLICES - 1, 2 * GROWTH_LEVEL) * error
    return growth, bool(beyond and growth > GROWN)


SUMMARISED = (
    *("latency_p50_s", "latency_p99_s", "latency_p999_s", "latency_max_s"),
    *("storage_p99_s", "requests_per_s", "reads_per_s", "read_bytes_per_s"),
    *("log_commit_p99_s", "log_records_per_s", "log_at_risk", "log_objects_per_hour"),
)


def summaries(
    repetitions: Sequence[RequestWindow], names: Sequence[str] = SUMMARISED
) -> dict[str, Summary]:
    """The figures of the repetitions by the names of ``record.metrics``."""
    return Summary.of(
        {
            name: [value for one in repetitions if (value := getattr(one, name)) is not None]
            for name in names
        }
    )
