"""Where the time of each rank and of its workers went, from the step events of a repetition.

The time of a rank adds up to its wall time: start-up, pipeline fill, waits for batches, copies,
busy time, waits for other ranks, saves, and the time in which it stood still. A wait for a batch is
divided by what a worker did for that batch: in proportion to its time in reads, and its time in
decompress, decode, check and collate. What is longer than both was no wait for that work, but for
the sampler or the hand-over, and is not divided. ``shares_of`` has the same for a whole run.

Source: R. B. Dean and W. J. Dixon, "Simplified statistics for small numbers of observations", 1951
(the ratio Q, for one value that is far from all others).

What each host of a job did in a repetition, and whether one of them is slow.

The headline of a run on many hosts counts the time in which ranks of all hosts have work. What some
of them still load after that is the tail: it measures how unevenly the work was shared, and not the
storage.

Sources: B. Iglewicz and D. C. Hoaglin, "How to Detect and Handle Outliers", 1993 (the modified z
score, and 3.5 as its bound); Student's t for the mean over repetitions.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, median, stdev, variance
from typing import Any, NamedTuple

import numpy as np

from ...record.host import HostTime
from ...record.training import Epoch, Repetition
from ...record.verdict import RankTime, WorkerTime
from ...settings.workload import Subject
from ..statistics import NOISE, of_all, t_quantile
from .events import RankEpoch, epoch_ends_ns
from .rates import Track, arrived_by

INDEPENDENT = "none"
"""The ``accelerator.sync`` of ranks that never wait for each other."""

_DIXON = (0.941, 0.765, 0.642, 0.560, 0.507, 0.468, 0.437, 0.412)
"""Critical values of Q for 3 to 10 values: a largest value beyond them is chance in 5 % of cases.

For more values the critical ones are lower.
"""


_COUNTED = {
    "copy_s": "copy_ns",
    "busy_s": "busy_ns",
    "sync_s": "sync_ns",
    "saves_s": "checkpoint_ns",
    "lost_s": "lost_ns",
}
"""Parts of a rank's time that columns of its events count."""

_Spent = defaultdict[str, float]
"""Nanoseconds of one rank by the names of ``RankTime``, summed over its epochs."""


def rank_times(
    parts: Sequence[RankEpoch], repetition: Repetition, *, divided: bool = True, users: bool = False
) -> list[RankTime]:
    """How each rank spent the repetition, in the order of ranks.

    An epoch lasts until its slowest rank has ended, and the others wait for that; independent
    ranks have ended with their own last step. ``divided``: the workers' times of a batch are
    known. If not, all waits for batches are in ``wait_s``. ``users``: the loader is the user's, of
    which the first batch is waited for as long as a batch usually takes, beside what is fill.
    """
    joint = repetition.sync != INDEPENDENT
    ends = epoch_ends_ns(parts)
    known = {each.epoch: each for each in repetition.epochs}
    mine: dict[int, dict[int, RankEpoch]] = {}
    for part in parts:
        mine.setdefault(part.rank, {})[part.epoch] = part
    found = []
    for rank, epochs in sorted(mine.items()):
        spent, wall = _Spent(float), 0.0
        for epoch, end in ends.items():
            own = epochs.get(epoch)
            own_end = own.end_ns if own is not None else 0.0
            if own is not None:
                startup = _startup_ns(known.get(epoch), rank)
                _add(spent, own, startup, divided=divided, users=users)
            if joint:
                spent["sync_s"] += end - own_end
            wall += end if joint else own_end
        found.append(_rank_time(rank, spent, wall, divided=divided))
    return found


def starts_left_out(epochs: Sequence[Epoch], subject: Subject) -> list[Epoch]:
    """The epochs with the part of their start-up that counts in no rate.

    That is process creation, which is no part of the data path. But a user's loader that starts its
    workers in each epoch, or sorts, does so in a training, too: of several epochs, only what the
    first one takes longer than the others is left out. Of a single one, nothing is left out where
    workers would start anew in the next one.
    """
    counted = [each.model_copy(update={"startup_s": None, "startups_s": []}) for each in epochs]
    if len(epochs) == 1 and subject.anew:
        return counted
    if not subject.users or len(epochs) < 2:
        return list(epochs)
    first, *later = epochs

    def once(own: float | None, others: Sequence[float | None]) -> float | None:
        known = [each for each in others if each is not None]
        return own if own is None or not known else max(0.0, own - median(known))

    begins = [
        once(own, [each.startups_s[rank] for each in later if rank < len(each.startups_s)])
        for rank, own in enumerate(first.startups_s)
    ]
    alone = once(first.startup_s, [each.startup_s for each in later])
    return [first.model_copy(update={"startup_s": alone, "startups_s": begins}), *counted[1:]]


def _startup_ns(epoch: Epoch | None, rank: int) -> float:
    """Start-up of a rank, or that of the earliest one; 0 if it is unknown."""
    if epoch is None:
        return 0.0
    own = epoch.startups_s[rank] if rank < len(epoch.startups_s) else epoch.startup_s
    return max(0.0, (own or 0.0) * 1e9)


def _add(spent: _Spent, part: RankEpoch, startup: float, *, divided: bool, users: bool) -> None:
    """Add one epoch, which begins with the start-up of processes and the wait for a first batch."""
    rows = part.rows
    alone = int(rows["step"][0]) == 0 and int(rows["steps"][0]) == 1
    first = max(0, int(rows["wait_ns"][0])) if alone else 0
    startup = min(startup, max(0.0, float(rows["start_ns"][0])) + first)
    spent["startup_s"] += startup
    later = 1 if alone else 0
    fetch, prep = _divide(part, later) if divided else (0.0, 0.0)
    spent["wait_s"] += max(0.0, part.sum_ns("wait_ns", first=later) - fetch - prep)
    filled = max(0.0, first - startup)
    if users and divided:
        read, work = (
            part.sum_ns(name) / part.rows["steps"].sum() for name in ("read_ns", "prep_ns")
        )
        usual = min(1.0, filled / max(read + work, 1.0))
        fetch, prep = fetch + read * usual, prep + work * usual
        filled -= (read + work) * usual
    spent["fill_s"] += max(0.0, filled)
    spent["fetch_s"] += fetch
    spent["prep_s"] += prep
    for name, column in _COUNTED.items():
        spent[name] += part.sum_ns(column)


def _divide(part: RankEpoch, first: int) -> tuple[float, float]:
    """Nanoseconds of the waits from row ``first`` on for (fetch, prep)."""
    wait, read, prep = (
        np.maximum(part.rows[name][first:].astype(np.float64), 0.0)
        for name in ("wait_ns", "read_ns", "prep_ns")
    )
    made = read + prep
    share = np.divide(read, made, out=np.zeros_like(made), where=made > 0)
    known = np.minimum(wait, made)
    fetch = float((known * share).sum())
    return fetch, max(0.0, float(known.sum()) - fetch)


def _rank_time(rank: int, spent: _Spent, wall_ns: float, *, divided: bool) -> RankTime:
    """The parts in seconds. Damaged events may say more than the wall time, which then is that."""
    total, busy = float(sum(spent.values())), spent["busy_s"]
    wall_ns = max(wall_ns, total)
    training = wall_ns - spent["startup_s"] - spent["saves_s"]
    known: dict[str, Any] = {name: ns / 1e9 for name, ns in spent.items()}
    if not (divided and spent["fetch_s"] + spent["prep_s"] > 0):
        known |= {"fetch_s": None, "prep_s": None}
    return RankTime(
        rank=rank,
        wall_s=wall_ns / 1e9,
        rest_s=(wall_ns - total) / 1e9,
        accelerator_utilization=min(1.0, busy / training) if busy > 0 and training > 0 else None,
        **known,
    )


def worker_time(
    parts: Sequence[RankEpoch], times: Sequence[RankTime], workers: int, why_not: str = ""
) -> WorkerTime:
    """How the ``workers`` of each rank spent the time from their first read on.

    ``why_not``: why the times of a loader library are not known. A worker that reads ahead while it
    prepares a batch is busy with both: then the shares are those of its busy time.
    """
    if why_not:
        return WorkerTime(not_measured=why_not)
    read, prep = (sum(part.sum_ns(name) for part in parts) / 1e9 for name in ("read_ns", "prep_ns"))
    total = max(1, workers) * sum(each.wall_s - each.startup_s for each in times)
    if total <= 0 or read + prep <= 0:
        return WorkerTime(not_measured="the workers' times were not recorded")
    total = max(total, read + prep)
    shares = min(1.0, read / total), min(1.0, prep / total)
    return WorkerTime(read=shares[0], prep=shares[1], idle=max(0.0, 1.0 - sum(shares)))


class Slow(NamedTuple):
    """A rank for which the others wait; ``share``: of the wall time, how much longer it takes.

    ``wait_s`` and ``others_wait_s``: its own wait for batches, and the mean of that of the others.
    """

    rank: int
    share: float
    wait_s: float
    others_wait_s: float


def slow_rank(repetition: Repetition) -> Slow | None:
    """The rank whose own time exceeds the mean of the others by more than NOISE of the wall time.

    A rank's own time is that without start-up, waits for other ranks, and saves. None if no rank
    stands out from the others (by Dixon's Q, from three ranks on), as when each rank is the slowest
    one in turn.
    """
    ranks = repetition.ranks
    if len(ranks) < 2:
        return None
    own = {each.rank: own_s(each) for each in ranks}
    worst = max(ranks, key=lambda each: own[each.rank])
    others = [each for each in ranks if each is not worst]
    excess = own[worst.rank] - mean(own[each.rank] for each in others)
    if worst.wall_s <= 0 or excess <= NOISE * worst.wall_s or not _stands_out(own.values()):
        return None
    return Slow(
        worst.rank,
        excess / worst.wall_s,
        batches_s(worst),
        mean(batches_s(each) for each in others),
    )


def _stands_out(values: Iterable[float]) -> bool:
    """Whether the largest value is far from all others; two values do not tell it, and count."""
    ordered = sorted(values)
    if len(ordered) < 3:
        return True
    critical = _DIXON[min(len(ordered) - 3, len(_DIXON) - 1)]
    return ordered[-1] - ordered[-2] > critical * (ordered[-1] - ordered[0])


def slowest_rank(repetition: Repetition) -> int | None:
    """The number of the rank for which the others wait; None if no rank stands out."""
    slow = slow_rank(repetition)
    return slow.rank if slow is not None else None


def usual_slow_rank(repetitions: Sequence[Repetition]) -> Slow | None:
    """The slow rank of more than half of the repetitions, as it was in the worst of them."""
    found = [slow for each in repetitions if (slow := slow_rank(each)) is not None]
    for rank, count in Counter(slow.rank for slow in found).most_common(1):
        if 2 * count > len(repetitions):
            return max((slow for slow in found if slow.rank == rank), key=lambda slow: slow.share)
    return None


def own_s(time: RankTime) -> float:
    """Seconds of a rank's own work: without start-up, waits for other ranks, saves, lost time."""
    return time.wall_s - time.startup_s - time.sync_s - time.saves_s - time.lost_s


def batches_s(time: RankTime) -> float:
    """Seconds in which a rank waited for its own batches, the filling of the pipeline included."""
    return time.fill_s + (time.fetch_s or 0.0) + (time.prep_s or 0.0) + time.wait_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Shares:
    """Shares of the time, 0 to 1, median over repetitions; None: not measured."""

    saves: float | None = None
    fill: float | None = None
    sync: float | None = None
    fetch: float | None = None
    prep: float | None = None
    wait: float | None = None  # for batches in all: fetch, prep, and what can't be divided


_PARTS = ("saves", "fill", "sync", "fetch", "prep", "wait")


def shares_of(repetitions: Sequence[Repetition]) -> Shares:
    """The shares of the complete repetitions; of each, the mean over its ranks."""
    found = [_of_ranks(each) for each in repetitions if each.complete]
    shares: dict[str, float | None] = {}
    for part in _PARTS:
        known = [share for each in found if (share := each.get(part)) is not None]
        shares[part] = min(1.0, max(0.0, median(known))) if known else None
    return Shares(**shares)


def _of_ranks(repetition: Repetition) -> dict[str, float | None]:
    ranks = [rank for rank in repetition.ranks if rank.wall_s > rank.startup_s]
    if not ranks:
        return {}
    return {part: of_all(fmean, (_part(rank, part) for rank in ranks)) for part in _PARTS}


def _part(rank: RankTime, part: str) -> float | None:
    """The share of one rank's time that one part took."""
    seconds: float | None
    if part == "wait":
        seconds = (rank.fetch_s or 0.0) + (rank.prep_s or 0.0) + rank.wait_s
    else:
        seconds = getattr(rank, f"{part}_s")
    return None if seconds is None else seconds / (rank.wall_s - rank.startup_s)


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
            max((float(track_of[part.rank, epoch].times_s[-1]) for part in group), default=0.0)
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
        if middle + half < math.log(1 - MIN_SLOWER) and _is_apart(known, host):
            found.append(
                SlowHost(host, math.exp(middle), math.exp(middle - half), math.exp(middle + half))
            )
    return found


def _is_apart(rows: Sequence[Sequence[float]], host: int) -> bool:
    rates = [median(row[at] for row in rows) for at in range(len(rows[0]))]
    if len(rates) < _SCORED:
        return True
    middle = median(rates)
    deviation = median(abs(rate - middle) for rate in rates)
    return 0.6745 * (middle - rates[host]) > MAX_SCORE * deviation
