"""Rules about ranks, their hosts and the time: who was slow, when, and what else ran there.

Each rule returns None if it finds no violation, or if the run is too short to say anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from ..base.units import counted, format_count, format_duration, format_percent
from ..record.host import JobHost
from ..record.run import TrainingRecord
from ..record.training import Rates, Repetition
from .cache import is_cold, uncached
from .figures.ranktime import INDEPENDENT, SlowHost, slow_hosts, usual_slow_rank
from .figures.rates import MIN_BIN_S, MIN_BINS, Fall, lasting_fall
from .rules_data import MIN_WALL_S, RuleOutcome, complete, unknown
from .statistics import NOISE, t_quantile

MAX_OTHER_LOAD = 0.25
"""Share of a host's cores that others may use on average.

The kernel's own threads (network, encryption) and this run's parent process are among the others,
so the bound is generous.
"""


MIN_COUNTED_S = 1.0
"""Time over which the kernel's ticks tell how busy cores are."""


def other_cores(doc: TrainingRecord, one: Repetition, host: int = 0) -> float | None:
    """How many cores of a host other processes used at least, on average over a repetition.

    None: not recorded.
    """
    found = _of_others(doc, one, host)
    return found[0] / found[1] if found is not None else None


def _of_others(doc: TrainingRecord, one: Repetition, host: int) -> tuple[float, float] | None:
    """(CPU seconds of other processes, seconds) of a repetition; None: not recorded."""
    kernel, cpu_s, cores = one.resources, one.cpu_s or 0.0, (doc.hosts or [doc.host])[host].cores
    if len(doc.hosts) > 1:
        mine = next((each for each in one.hosts if each.host == host), None)
        kernel = mine.resources if mine is not None else None
        cpu_s *= mine.ranks / one.accelerators if mine is not None else 0.0
    if kernel is None or kernel.cpu_busy is None or not cores:
        return None
    if kernel.own_cpu_s is None or kernel.children_cpu_s is None:
        return None
    # A process that nobody waited for is no child that has ended; what it said of itself counts.
    own_s = kernel.own_cpu_s + max(kernel.children_cpu_s, cpu_s)
    return max(0.0, cores * kernel.cpu_busy * kernel.wall_s - own_s), kernel.wall_s


def cpu_other_load(doc: TrainingRecord) -> RuleOutcome | None:
    """Compare how busy the cores of each host were with the CPU time of this run's own processes.

    Short repetitions are looked at together. A record without the host's counters says nothing.
    """
    walls = [(one, one.resources.wall_s) for one in complete(doc) if one.resources is not None]
    long = [one for one, wall_s in walls if wall_s >= MIN_WALL_S]
    short = [one for one, wall_s in walls if wall_s < MIN_WALL_S]
    if not long and sum(wall_s for _, wall_s in walls) < MIN_COUNTED_S:
        return None
    machines = [each.machine for each in doc.job.hosts]
    if len(set(machines)) < len(machines):
        return unknown("hosts of this run are one machine, so each is a load to the others")
    most = [_most_of_others(doc, number, long, short) for number in range(max(1, len(doc.hosts)))]
    told = []
    for number, (host, used) in enumerate(zip(doc.hosts, most, strict=False)):
        cores = host.cores or 0
        if used is not None and used > MAX_OTHER_LOAD * cores:
            of = f"{host_name(doc.job.hosts, number)} has" if len(most) > 1 else "the host has"
            told.append(f"{used:.1f} of the {counted(cores, 'core')} that {of}")
    if not told:
        return unknown("how busy the host's cores were was not recorded") if None in most else None
    return RuleOutcome(
        f"other processes used {', and '.join(told)}, during "
        + ("a repetition" if long else "the repetitions"),
        "run on a host that does nothing else: a lack of CPU time can look like slow storage",
    )


def _most_of_others(
    doc: TrainingRecord, host: int, long: Sequence[Repetition], short: Sequence[Repetition]
) -> float | None:
    """The most cores of a host that others used in a long repetition, or in all short ones."""
    others = [used for one in long if (used := other_cores(doc, one, host)) is not None]
    together = [each for one in short if (each := _of_others(doc, one, host)) is not None]
    time_s = sum(seconds for _, seconds in together)
    if time_s >= MIN_COUNTED_S:
        others.append(sum(used for used, _ in together) / time_s)
    return max(others, default=None)


MAX_SKEW = 0.01
"""The most that the hosts' starts may differ, as a share of an epoch."""


def host_name(known: Sequence[JobHost], host: int) -> str:
    """``host 1 (node7)``."""
    name = known[host].name if host < len(known) else ""
    return f"host {host} ({name})" if name else f"host {host}"


def rank_name(known: Sequence[JobHost], rank: int) -> str:
    """``rank 3``, and of several hosts its own: ``rank 3 on host 1 (node7)``."""
    own = [n for n, each in enumerate(known) if 0 <= rank - each.first_rank < each.ranks]
    return (
        f"rank {rank} on {host_name(known, own[0])}" if own and len(known) > 1 else f"rank {rank}"
    )


def slow_host(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no host is slower than the others by 10 %, by fetching alone or in the run."""
    fetched, ran = _slow_hosts(doc)
    told = [
        f"{host_name(doc.job.hosts, each.host)} {did} at {format_percent(each.ratio)} "
        f"[{format_percent(each.low)}, {format_percent(each.high)}] of the rate of the others"
        for did, found in (("reads", fetched), ("loads", ran))
        for each in found
    ]
    if not told:
        return None
    return RuleOutcome("; ".join(told), SLOW_REMEDY)


def slow_host_names(doc: TrainingRecord) -> list[str]:
    """The hosts that ``slow_host`` tells, in their order."""
    fetched, ran = _slow_hosts(doc)
    return [host_name(doc.job.hosts, host) for host in sorted({x.host for x in (*fetched, *ran)})]


def _slow_hosts(doc: TrainingRecord) -> tuple[list[SlowHost], list[SlowHost]]:
    """Those that read slowly, and others that were slow in the run."""
    fetched = _by_fetch(doc)
    known = {each.host for each in fetched}
    return fetched, [each for each in _by_run(doc) if each.host not in known]


SLOW_REMEDY = (
    "measure this host's path to the storage with iobench probe, and compare its network, mount "
    "options and cores with those of the others"
)


def _by_fetch(doc: TrainingRecord) -> list[SlowHost]:
    """By the windows in which all hosts only read, at the same time."""
    ceiling = doc.job.ceilings.get("fetch")
    windows = ceiling.details.windows if ceiling is not None else []
    return slow_hosts([_each(doc, window.hosts_samples_per_s) for window in windows])


def _by_run(doc: TrainingRecord) -> list[SlowHost]:
    return slow_hosts(
        [
            [
                None if not host.own_samples_per_s else host.own_samples_per_s / max(1, host.ranks)
                for host in each.hosts
            ]
            for each in complete(doc)
            if each.hosts
        ]
    )


def _each(doc: TrainingRecord, rates: Sequence[float | None]) -> list[float | None]:
    """The rates of hosts for each of their ranks."""
    ranks = [host.ranks for host in doc.job.hosts]
    return [
        None if rate is None else rate / max(1, ranks[at] if at < len(ranks) else 1)
        for at, rate in enumerate(rates)
    ]


def skew(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the epochs began at one instant on all hosts, as far as their clocks can tell."""
    errors = [host.offset_error_s or 0.0 for host in doc.job.hosts]
    worst, told = 0.0, ""
    for number, each in enumerate(complete(doc)):
        epoch_s = (each.wall_s or 0.0) / max(1, len(each.epochs))
        for host in each.hosts:
            error = errors[host.host] if host.host < len(errors) else 0.0
            late = (host.start_skew_s or 0.0) + error
            if epoch_s > 0 and late / epoch_s > max(worst, MAX_SKEW):
                worst = late / epoch_s
                name = host_name(doc.job.hosts, host.host)
                told = (
                    f"{name} began up to {format_duration(late)} late in repetition {number}, the "
                    f"error of its clock included: {format_percent(worst)} of an epoch"
                )
    if not told:
        return None
    return RuleOutcome(
        told, "make epochs longer (a larger dataset), or leave a core of that host free"
    )


MIN_STILL = 0.01
"""A rank that stood still for this share of a repetition, or for longer, is named."""


def stood_still(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no rank stood still: in a wait, or for longer than emulated steps make up for.

    If all ranks of one of several hosts did, it was the host.
    """
    told = []
    for number, each in enumerate(doc.job.repetitions):
        for who, still_s in _still(doc, each):
            told.append(
                f"{who} stood still for more than {format_duration(still_s)} in repetition {number}"
            )
    if not told:
        return None
    more = f", and {len(told) - 3} more" if len(told) > 3 else ""
    return RuleOutcome(
        f"{'. '.join(told[:3])}{more}. That time counts, and says nothing about the storage",
        "find out what stopped the processes there, and measure again. It may be a signal, "
        "swapping, a paused virtual machine or container, or a host with too much to do",
    )


def _still(doc: TrainingRecord, repetition: Repetition) -> list[tuple[str, float]]:
    """Who stood still in a repetition, and for how many seconds."""
    still = {
        each.rank: each.lost_s
        for each in repetition.ranks
        if each.lost_s > MIN_STILL * each.wall_s > 0
    }
    found = []
    for number, host in enumerate(doc.job.hosts):
        ranks = range(host.first_rank, host.first_rank + host.ranks)
        if len(doc.job.hosts) > 1 and ranks and all(rank in still for rank in ranks):
            found.append((host_name(doc.job.hosts, number), max(still.pop(rank) for rank in ranks)))
    return found + [(rank_name(doc.job.hosts, rank), still_s) for rank, still_s in still.items()]


def uneven(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no rank holds up the others by more than 5 % of the time.

    It must be the same rank in more than half of the repetitions: one that is slow once, or ranks
    that are slow in turn, are jitter.
    """
    slow = usual_slow_rank(
        [each for each in complete(doc) if each.ranks and each.sync != INDEPENDENT]
    )
    if slow is None:
        return None
    return RuleOutcome(
        f"{rank_name(doc.job.hosts, slow.rank)} waited {format_duration(slow.wait_s)} for its "
        f"batches, and the others {format_duration(slow.others_wait_s)} on average. They "
        f"wait for it, which costs {format_percent(slow.share)} of the time",
        "find out what this rank does differently: the shards that it reads, its path to the "
        "storage, or what its workers use. With accelerator.sync=none no rank waits for another",
    )


MIN_OTHERS = 3
"""Repetitions after the first one that are needed to know how much they differ."""


class Found(NamedTuple):
    """The fall in one repetition, by its number."""

    repetition: int
    fall: Fall


def measured_rates(doc: TrainingRecord) -> Iterator[tuple[int, Rates]]:
    """(number, rates) of each complete repetition for which they are recorded."""
    for number, repetition in enumerate(doc.job.repetitions):
        if repetition.complete and repetition.rates is not None:
            yield number, repetition.rates


def falls(doc: TrainingRecord) -> list[Found]:
    """The lasting falls of the rate within repetitions, in the order of the repetitions."""
    found = ((number, lasting_fall(rates)) for number, rates in measured_rates(doc))
    return [Found(number, fall) for number, fall in found if fall is not None]


def rate_falls(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that no repetition becomes slower, and stays slow until its end."""
    long = [
        one
        for one in doc.job.repetitions
        if one.complete and (one.wall_s or 0) >= MIN_BINS * MIN_BIN_S
    ]
    if any(one.rates is None for one in long):
        return unknown(
            "how the rate changes within a repetition was not recorded",
            "compute it from the events, with iobench report and the run's directory",
        )
    found = falls(doc)
    if not found:
        return None
    number, fall = max(found, key=lambda each: 1 - each.fall.share)
    others = len(found) - 1
    more = f". {counted(others, 'other repetition')} fell, too" if others else ""
    return RuleOutcome(
        f"the rate of repetition {number} falls after {format_duration(fall.at_s)}, "
        f"from {format_count(fall.before)} to {format_count(fall.after)} samples/s "
        f"({format_percent(1 - fall.share)} less), and stays there{more}",
        "measure for longer, since a training gets the rate after the fall. Spent burst credits, a "
        "hot drive or a full cache does this",
    )


class FirstTouch(NamedTuple):
    """Rates of the first repetition, and of the later ones, in samples/s."""

    first: float
    others: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.others)

    @property
    def differs(self) -> bool:
        """Whether the first rate is outside the 99 % prediction interval of the others.

        It must also differ from their mean by more than the noise threshold. Source: G. J. Hahn and
        W. Q. Meeker, "Statistical intervals", 1991 (one future value of a normal distribution).
        """
        count = len(self.others)
        reach = t_quantile(count - 1, 0.01) * stdev(self.others) * math.sqrt(1 + 1 / count)
        return abs(self.first - self.mean) > max(reach, NOISE * self.mean)


def first_touch(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the first repetition is as fast as the later ones, which read the same bytes.

    A cache that is below this host's page cache serves what was read before, and neither residency
    nor the bytes that the host fetched show it.
    """
    done = doc.job.repetitions
    if doc.job.workload.cache == "warm" or not done or not done[0].complete:
        return None
    rates = [one.samples_per_s for one in done if one.complete]
    if len(rates) < 1 + MIN_OTHERS:
        return None
    known = tuple(rate for rate in rates if rate is not None)
    if len(known) < len(rates):
        return unknown("the rate of each repetition was not measured")
    touch = FirstTouch(known[0], known[1:])
    if not touch.differs:
        return None
    slower = touch.first < touch.mean
    others = counted(len(touch.others), "later repetition")
    evidence = (
        f"the first repetition reached {format_count(touch.first)} samples/s, and the {others} "
        f"{format_count(touch.mean)} on average, [{format_count(min(touch.others))}, "
        f"{format_count(max(touch.others))}]"
    )
    if not slower:
        return RuleOutcome(
            f"{evidence}. The storage became slower",
            "burst credits, heat, a cache that is full, or other users do this: measure for "
            "longer, and report the rate of the later repetitions",
        )
    if is_cold(doc) or uncached(doc):
        return RuleOutcome(
            f"{evidence}. A cache that this host cannot see may have served what was read before",
            "use a dataset larger than the caches of the server, the controller and the drive. "
            "Until then, report the first repetition as the cold rate, with --calibration 0",
        )
    return RuleOutcome(
        f"{evidence}. A cache may have served what was read before",
        "set cache: cold, which empties this host's page cache before each epoch. If that changes "
        "nothing, the cache is the server's, and the dataset must be larger than it",
    )
