"""What each host of a job did in a repetition, and whether one of them is slow.

The headline of a run on many hosts counts the time in which ranks of all hosts have work. What some
of them still load after that is the tail: it measures how unevenly the work was shared, and not the
storage.

Sources: B. Iglewicz and D. C. Hoaglin, "How to Detect and Handle Outliers", 1993 (the modified z
score, and 3.5 as its bound); Student's t for the mean over repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, median, stdev, variance
from typing import NamedTuple

import numpy as np

from ...record.host import HostTime
from ...record.training import Repetition
from ...record.verdict import RankTime
from ..statistics import t_quantile
from .events import RankEpoch
from .ranktime import own_s
from .rates import Track, arrived_by

MIN_SLOWER = 0.1
"""A host that is less slower than this, as a share of the others' rate, is not named."""

MAX_SCORE = 3.5
"""The bound of the modified z score, which needs ``_SCORED`` hosts to mean anything."""

_SCORED = 5

MIN_ROUNDS = 3
"""Repetitions that it takes to call a host slow."""

_FALSE_ALARMS = 0.02
"""Share of clean runs in which some host may be called slow, for rates that vary independently."""


class HostWindow(NamedTuple):
    """The time in which ranks of all hosts had work, and the rest, in seconds over all epochs."""

    seconds: float
    tail_s: float


def host_window(
    hosts: Sequence[HostTime], parts: Sequence[RankEpoch], tracks: Sequence[Track], moved: str
) -> tuple[HostWindow, list[HostTime]]:
    """The window of a repetition, and what each host did in it.

    ``tracks``: of each of ``parts``, what the rank had received by when, from the first read of any
    rank on. ``moved``: the column that counts the bytes.
    """
    track_of = dict(zip([(part.rank, part.epoch) for part in parts], tracks, strict=True))
    seconds = tail = 0.0
    samples, stored = [0.0] * len(hosts), [0.0] * len(hosts)
    firsts, lasts = [0.0] * len(hosts), [0.0] * len(hosts)
    for epoch in sorted({part.epoch for part in parts}):
        mine = [part for part in parts if part.epoch == epoch]
        grouped = [[part for part in mine if _has(host, part.rank)] for host in hosts]
        ends = [
            max(
                (float(track_of[part.rank, epoch].times_s[-1]) for part in group),
                default=0.0,
            )
            for group in grouped
        ]
        window = min(ends)
        seconds += window
        tail += max(ends) - window
        for place, group in enumerate(grouped):
            for part in group:
                at, times_s = np.array([window]), track_of[part.rank, epoch].times_s
                samples[place] += float(arrived_by(at, times_s, part.rows["samples"])[0])
                stored[place] += float(arrived_by(at, times_s, part.rows[moved])[0])
            firsts[place] += min((part.end_ns for part in group), default=0.0) / 1e9
            lasts[place] += max((part.end_ns for part in group), default=0.0) / 1e9
    found = [
        host.model_copy(
            update={
                "samples_per_s": samples[place] / seconds if seconds > 0 else None,
                "read_bytes_per_s": stored[place] / seconds if seconds > 0 else None,
                "first_done_s": max(0.0, firsts[place]),
                "last_done_s": max(0.0, lasts[place]),
            }
        )
        for place, host in enumerate(hosts)
    ]
    return HostWindow(seconds, tail), found


def _has(host: HostTime, rank: int) -> bool:
    return host.first_rank <= rank < host.first_rank + host.ranks


def with_times(
    hosts: Sequence[HostTime],
    parts: Sequence[RankEpoch],
    times: Sequence[RankTime],
    context: Repetition,
) -> list[HostTime]:
    """The hosts with what follows from the times of their ranks, and from the epochs' records."""
    amounts: dict[int, int] = {}
    for part in parts:
        amounts[part.rank] = amounts.get(part.rank, 0) + int(
            part.rows["samples"].astype(np.int64).sum()
        )
    lasts = last_shares(parts) if context.sync == "step" else {}
    found = []
    for place, host in enumerate(hosts):
        ranks = [each for each in times if _has(host, each.rank)]
        own = [(amounts[each.rank], took_s) for each in ranks if (took_s := own_s(each)) > 0]
        skews = [
            late
            for epoch in context.epochs
            for rank, late in enumerate(epoch.late_starts_s)
            if late is not None and _has(host, rank)
        ]
        held = [
            ratio
            for epoch in context.epochs
            for at, ratio in enumerate(epoch.residencies)
            if at == place and ratio is not None
        ]
        update: dict[str, object] = {
            "samples": sum(amounts.get(each.rank, 0) for each in ranks),
            "own_samples_per_s": sum(n / s for n, s in own) if len(own) == len(ranks) else None,
            "start_skew_s": max(0.0, max(skews)) if skews else None,
            "residency_before": max(held) if held else None,
            "last_share": sum(lasts.get(each.rank, 0.0) for each in ranks) if lasts else None,
        }
        found.append(host.model_copy(update=update))
    return found


def last_shares(parts: Sequence[RankEpoch]) -> dict[int, float]:
    """How often each rank was the last at the barrier, as a share of the steps; it waited least.

    Only steps that have rows of their own count, and that all ranks of the epoch made.
    """
    last: dict[int, int] = {}
    steps = 0
    for epoch in {part.epoch for part in parts}:
        mine = [part for part in parts if part.epoch == epoch]
        if len(mine) < 2 or any("sync_ns" not in part.rows for part in mine):
            continue
        known = [
            dict(zip(part.rows["step"].tolist(), part.rows["sync_ns"].tolist(), strict=True))
            for part in mine
            if (part.rows["steps"] == 1).all()
        ]
        if len(known) < len(mine):
            continue
        for step in set.intersection(*(set(each) for each in known)):
            waits = [each[step] for each in known]
            rank = mine[int(np.argmin(waits))].rank
            last[rank] = last.get(rank, 0) + 1
            steps += 1
    return {part.rank: last.get(part.rank, 0) / steps for part in parts} if steps else {}


class SlowHost(NamedTuple):
    """A host that is slower than the others: its rate as a share of theirs, with its interval."""

    host: int
    ratio: float
    low: float
    high: float


def slow_hosts(rounds: Sequence[Sequence[float | None]]) -> list[SlowHost]:
    """The hosts that are slower than the others, by their rates for each rank in several rounds.

    ``rounds``: [rounds][hosts]. A host is slow if the upper end of the interval of its rate over
    the median of the others' is below 1 - MIN_SLOWER, and, among ``_SCORED`` hosts or more, if its
    modified z score is beyond MAX_SCORE as well. Several hosts are tested, so each has a part of
    the false alarms. How much the rate of a host varies is told by the rounds of all hosts, since
    three of one host tell little; a host that varies more than the others counts by its own.
    """
    known = [[rate for rate in row if rate] for row in rounds]
    count = max((len(row) for row in rounds), default=0)
    known = [row for row in known if len(row) == count]
    if count < 2 or len(known) < MIN_ROUNDS:
        return []
    logs = [
        [
            math.log(row[host] / median(rate for at, rate in enumerate(row) if at != host))
            for row in known
        ]
        for host in range(count)
    ]
    pooled = math.sqrt(mean(variance(each) for each in logs))
    beyond = t_quantile((len(known) - 1) * (count - 1), 2 * _FALSE_ALARMS / count)
    found = []
    for host, each in enumerate(logs):
        middle = mean(each)
        half = beyond * max(pooled, stdev(each)) / math.sqrt(len(each))
        if middle + half < math.log(1 - MIN_SLOWER) and _stands_out(known, host):
            found.append(
                SlowHost(host, math.exp(middle), math.exp(middle - half), math.exp(middle + half))
            )
    return found


def _stands_out(rows: Sequence[Sequence[float]], host: int) -> bool:
    rates = [median(row[at] for row in rows) for at in range(len(rows[0]))]
    if len(rates) < _SCORED:
        return True
    middle = median(rates)
    deviation = median(abs(rate - middle) for rate in rates)
    return 0.6745 * (middle - rates[host]) > MAX_SCORE * deviation
