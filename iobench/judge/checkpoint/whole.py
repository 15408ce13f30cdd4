"""Saves and restores of the whole model by all hosts of a training, from those of one host.

The ranks of a host share its memory, its network and its path to the storage. Where a study has
measured several hosts, one host got its share of what all of them got together. Of N hosts each
saves 1/N of the model, at the rate that a measured host got, as long as the storage gives all of
them together so much. Where its own limit is stated, no save of the whole model is faster than it.
That the storage gives many hosts what it gave one is a condition that a study can't test; without a
number of hosts, the condition is that the whole job gets what one host got. All functions are pure.

How often to save, and what that costs: closed forms, and the exact waste. Failures are random with
an exponential distribution. All times are in seconds. ``blocked_s`` is the time for which one save
stops training. ``mtbf_s`` is the mean time between interruptions of the whole job. ``restart_s`` is
the time from an interruption until training goes on, including the restore. An interval is the time
from the end of one stop to the begin of the next. An asynchronous save goes on during it, and may
slow its steps down: ``slowed_s`` is the part of the interval that this costs.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22(3), 2006 (equations 20 and 37). N. R. Saxena et al. (NVIDIA), "Optimal checkpoint interval
with availability as an objective function", arXiv 2410.18124, 2024. Rate of interruptions:
Grattafiori et al., "The Llama 3 Herd of Models", 2024 (419 unexpected ones in 54 days on 16,384
accelerators).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from ...base.units import counted, format_count, format_rate
from ...record.checkpoint import Save, Study, Training
from .study import duration_s, end_s


class WholeSave(NamedTuple):
    """Seconds of a save of the whole model, from the common start of all hosts."""

    blocked_s: float
    durable_s: float
    committed_s: float  # a restore finds it

    @property
    def behind_s(self) -> float:
        """From when training goes on until a restore finds the save."""
        return max(0.0, self.committed_s - self.blocked_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostsTogether:
    """How many hosts work at the same time, and what the storage gives them.

    ``growth``: the bytes of one of them over those that were measured. ``least_s``: no faster than
    that at the stated limit of the storage, which is 0 without one.
    """

    count: int
    growth: float
    least_s: float
    limit: float | None

    def rate(self, of_one: float | None) -> float | None:
        """What all hosts together get, in bytes/s, if each gets ``of_one``."""
        if of_one is None:
            return None
        together = of_one * self.count
        return together if self.limit is None else min(together, self.limit)

    def limits(self, of_one: float | None) -> bool:
        """Whether the stated limit is below what all hosts would get together."""
        return self.limit is not None and of_one is not None and of_one * self.count > self.limit


def hosts_of(study: Study) -> int:
    """The hosts that were measured."""
    return max(1, len(study.hosts))


def writing(study: Study, training: Training) -> HostsTogether:
    """The hosts that save at the same time: those that were measured, unless others were stated."""
    measured = hosts_of(study)
    count = training.hosts_writing or measured
    limit = training.storage_write_bytes_per_s
    return HostsTogether(
        count=count,
        growth=study.full_bytes / study.bytes * measured / count if study.bytes else 1.0,
        least_s=study.full_bytes / limit if limit else 0.0,
        limit=limit,
    )


def restored_bytes(size: int, training: Training, measured: int = 1) -> float:
    """Bytes that all hosts together read after an interruption, of a checkpoint of ``size``.

    ``measured``: the hosts that write, where their number was not stated.
    """
    writers = training.hosts_writing or measured
    return size / writers * (training.hosts_restoring or writers)


def restoring(study: Study, training: Training) -> HostsTogether:
    """The hosts that read at the same time after an interruption: as many as write, or as stated.

    Each reads as much as one host writes: hosts beyond those that write are replicas, which read
    the same bytes again.
    """
    measured = hosts_of(study)
    writers = training.hosts_writing or measured
    count = training.hosts_restoring or writers
    limit = training.storage_read_bytes_per_s
    return HostsTogether(
        count=count,
        growth=study.full_bytes / study.bytes * measured / writers if study.bytes else 1.0,
        least_s=restored_bytes(study.full_bytes, training, measured) / limit if limit else 0.0,
        limit=limit,
    )


def whole_saves(study: Study, hosts: HostsTogether) -> list[WholeSave]:
    """The study's saves as those of the whole model by ``hosts``; only those with a recorded end.

    The wait for the previous save is left out, since a training that saves at the advised interval
    has none. The copy of an asynchronous save is made by each host for itself, so that the limit of
    the storage does not concern it.
    """
    return [_whole_save(save, hosts) for save in study.saves if end_s(save) is not None]


def _whole_save(save: Save, hosts: HostsTogether) -> WholeSave:
    end, waited = end_s(save) or 0.0, save.waited_s or 0.0
    blocked = max(0.0, save.blocked_s - waited) * hosts.growth
    writing_s = max(max(0.0, duration_s(save)) * hosts.growth, hosts.least_s)
    if save.staged_s is None:
        blocked = max(blocked, hosts.least_s)
        durable = writing_s
    else:
        durable = save.staged_s * hosts.growth + writing_s
    # The manifest of a job is small, however large the model is.
    commit = 0.0 if save.committed_s is None else max(0.0, save.committed_s - end)
    return WholeSave(blocked, durable, durable + commit)


def whole_restores(study: Study, hosts: HostsTogether) -> list[float]:
    """Seconds of the study's restores, for the whole model and ``hosts``."""
    return [max(restore.wall_s * hosts.growth, hosts.least_s) for restore in study.restores]


def condition(hosts: HostsTogether, of_one: float | None, *, stated: bool) -> str:
    """On what the times of ``hosts`` rest, as part of a sentence.

    ``of_one``: bytes/s that the measured host got. ``stated``: whether the user stated a number of
    hosts.
    """
    got = "" if of_one is None else f" ({format_rate(of_one)})"
    if hosts.limit is not None and hosts.limits(of_one):
        return (
            f"if {counted(hosts.count, 'host')} together get the storage's stated limit of "
            f"{format_rate(hosts.limit)}"
        )
    if not stated:
        return f"if the whole job gets what one host got{got}"
    total = hosts.rate(of_one)
    return f"if each of {format_count(hosts.count)} hosts gets what one host got{got}" + (
        "" if total is None or hosts.count == 1 else f", {format_rate(total)} together"
    )


LLAMA3_INTERRUPTIONS = 419
LLAMA3_ACCELERATOR_HOURS = 54 * 24 * 16_384


def published_mtbf_s(accelerators: int) -> float:
    """Mean time between unexpected interruptions of a job on ``accelerators`` accelerators.

    The rate is that of Llama 3's pre-training.
    """
    return LLAMA3_ACCELERATOR_HOURS / LLAMA3_INTERRUPTIONS / accelerators * 3600


def young_s(blocked_s: float, mtbf_s: float) -> float:
    """Young's interval: a first-order formula that needs ``blocked_s`` much below ``mtbf_s``."""
    return math.sqrt(2 * blocked_s * mtbf_s)


def daly_s(blocked_s: float, mtbf_s: float) -> float:
    """Daly's interval (his equation 37).

    If a save takes longer than 2 x ``mtbf_s``, the interval is ``mtbf_s``.
    """
    if blocked_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(blocked_s / (2 * mtbf_s))
    return math.sqrt(2 * blocked_s * mtbf_s) * (1 + ratio / 3 + ratio * ratio / 9) - blocked_s


def availability_s(blocked_s: float, mtbf_s: float, restart_s: float) -> float:
    """The interval of highest availability, including the restart (Saxena et al.).

    Their interval is measured from save to save, and so is longer by one save. It is optimal if
    failures are counted per time of operation, and lost work and restarts come in addition.
    Availability is then
    interval / (interval + save) x mtbf / (mtbf + restart + (interval + save) / 2).
    """
    return math.sqrt(2 * (mtbf_s + restart_s) * blocked_s + blocked_s * blocked_s)


def waste(
    interval_s: float,
    blocked_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    exposed_s: float = 0.0,
    slowed_s: float = 0.0,
) -> float:
    """Share of the time for saves, slower steps, lost work and restarts, 0 to 1.

    It is exact for exponentially distributed failures (Daly's equation 20): of each interval,
    ``slowed_s`` is no progress. ``exposed_s`` is the time after training went on in which a save
    is not yet durable. An interruption in that time also loses the interval before the save.
    """
    try:
        spent = (
            mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + blocked_s) / mtbf_s)
        )
    except OverflowError:
        return 1.0
    if spent == 0:  # a save takes no time, and saving is continuous
        return min(1.0, exposed_s / mtbf_s)
    lost = 1 - max(0.0, interval_s - slowed_s) / spent + exposed_s / mtbf_s
    return min(1.0, max(0.0, lost))  # rounding may take it below 0


def best_s(blocked_s: float, mtbf_s: float, slowed_s: float = 0.0) -> float:
    """The interval of least waste, by Daly's formula.

    Of an interval T, T - ``slowed_s`` is progress. In these terms ``waste`` is that of saves that
    stop training for ``blocked_s`` + ``slowed_s``, so the interval is theirs, longer by
    ``slowed_s``.
    """
    return daly_s(blocked_s + slowed_s, mtbf_s) + slowed_s


def overhead(interval_s: float, blocked_s: float, slowed_s: float = 0.0) -> float:
    """Share of the time that saves cost, if there are no failures: stops, and slower steps."""
    lost = blocked_s + slowed_s
    return min(1.0, lost / (interval_s + blocked_s)) if lost else 0.0


def longest_save_s(budget: float, interval_s: float) -> float:
    """Longest time for which a save may stop training, if saves may use the share ``budget``."""
    return budget * interval_s / (1 - budget)


def longest_save_at_best_s(budget: float, mtbf_s: float) -> float:
    """Longest save for which the overhead at Young's interval is at most ``budget``.

    That overhead is sqrt(save / (2 mtbf)), so save = 2 mtbf budget².
    """
    return 2 * mtbf_s * budget * budget


def needed_write_bytes_per_s(
    size: float, budget: float, mtbf_s: float, *, copy_s: float = 0.0, drag: float = 1.0
) -> float | None:
    """Rate of durable writes at which saves of ``size`` bytes take the share ``budget`` at best.

    ``copy_s``: for which an asynchronous save stops training. ``drag``: share of the time of
    writing that training loses, which is 1 for a synchronous save. An asynchronous save must also
    end before the next one begins. None: ``copy_s`` alone takes more than ``budget``.
    """
    longest = longest_save_at_best_s(budget, mtbf_s)
    if copy_s >= longest:
        return None
    return max(size * drag / (longest - copy_s), size * budget / longest)
