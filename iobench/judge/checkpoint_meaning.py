"""What a checkpoint study means for a training of a given size.

It computes the interval at which to save, the cost of saving, and the bandwidth that is needed, for
the whole model and all hosts of the training. Each figure goes by the statistic that it needs: the
interval and a notice by the p95 of the saves, what is lost over many saves by their mean. All
functions are pure.

Saves and restores of the whole model by all hosts follow from those of one host. The ranks of a
host share its memory, its network and its path to the storage. Where a study has measured several
hosts, one host got its share of what all of them got together. Of N hosts each saves 1/N of the
model, at the rate that a measured host got, as long as the storage gives all of them together so
much. Where its own limit is stated, no save of the whole model is faster than it. That the storage
gives many hosts what it gave one is a condition that a study can't test; without a number of hosts,
the condition is that the whole job gets what one host got.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ..record.checkpoint import AskedTraining, Meaning, Save, Spread, Study, Today, Training
from .checkpoint import asynchronous, duration_s, end_s, slowdown, spread


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
    count = training.hosts_writing or hosts_of(study)
    return _together(study, training, count, study.full_bytes, training.storage_write_bytes_per_s)


def _together(
    study: Study, training: Training, count: int, size: float, limit: float | None
) -> HostsTogether:
    """So many hosts, which move ``size`` bytes together, at the stated ``limit`` at most."""
    measured = hosts_of(study)
    writers = training.hosts_writing or measured
    return HostsTogether(
        count=count,
        growth=study.full_bytes / study.bytes * measured / writers if study.bytes else 1.0,
        least_s=size / limit if limit else 0.0,
        limit=limit,
    )


def restored_bytes(size: float, training: Training, measured: int = 1) -> float:
    """Bytes that all hosts together read after an interruption, of a checkpoint of ``size``.

    ``measured``: the hosts that write, where their number was not stated.
    """
    writers = training.hosts_writing or measured
    return size / writers * (training.hosts_restoring or writers)


def full_restore_bytes(study: Study) -> float:
    """Bytes that a restore of the whole model reads: the base, too, where saves have one."""
    if study.state_bytes is None or not study.bytes:
        return study.full_bytes
    return study.full_bytes * (1 + study.state_bytes / study.bytes)


def restoring(study: Study, training: Training) -> HostsTogether:
    """The hosts that read at the same time after an interruption: as many as write, or as stated.

    Each reads as much as one host writes: hosts beyond those that write are replicas, which read
    the same bytes again.
    """
    measured = hosts_of(study)
    count = training.hosts_restoring or training.hosts_writing or measured
    size = restored_bytes(full_restore_bytes(study), training, measured)
    return _together(study, training, count, size, training.storage_read_bytes_per_s)


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


def condition(hosts: HostsTogether, of_one: float | None, *, measured: int, stated: bool) -> str:
    """On what the times of ``hosts`` rest, as part of a sentence.

    ``of_one``: bytes/s that each of the ``measured`` hosts got. ``stated``: whether the user stated
    a number of hosts.
    """
    got = "" if of_one is None else f" ({format_rate(of_one)})"
    if hosts.limit is not None and hosts.limits(of_one):
        return (
            f"if {counted(hosts.count, 'host')} together get the storage's stated limit of "
            f"{format_rate(hosts.limit)}"
        )
    if not stated or hosts.count == 1:
        return f"if the whole job gets what one host got{got}"
    total = hosts.rate(of_one)
    if hosts.count == measured > 1:
        together = "" if total is None else f" ({format_rate(total)})"
        return f"if the whole job gets what {format_count(measured)} hosts got together{together}"
    return f"if each of {format_count(hosts.count)} hosts gets what one host got{got}" + (
        "" if total is None else f", {format_rate(total)} together"
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
    """Longest save for which the overhead at Daly's interval is at most ``budget``.

    With r = sqrt(save / (2 mtbf)) that overhead is r / (1 + r / 3 + r² / 9), up to a save of
    2 x ``mtbf_s``; a longer one has the interval ``mtbf_s``.
    """
    if budget >= overhead(mtbf_s, 2 * mtbf_s):
        return longest_save_s(budget, mtbf_s)
    rest = 1 - budget / 3
    ratio = 2 * budget / (rest + math.sqrt(rest * rest - (2 * budget / 3) ** 2))
    return 2 * mtbf_s * ratio * ratio


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


DAY_S = 86_400
MAX_RATE = 1e30
CURVE_POINTS = 13
CURVE_SPAN = 8
"""The curve of waste runs from 1/8 of the best interval to 8 times the best interval."""


def with_meaning(study: Study) -> Study:
    """Return ``study`` with what its figures mean for the training that was asked about."""
    asked = study.meaning.asked
    return study.model_copy(update={"meaning": meaning(study, asked) or AskedTraining(asked=asked)})


def drag_of(slower: float | None) -> float:
    """The share of its progress that a step loses which takes so many times as long."""
    return 0.0 if slower is None or slower <= 1 else 1 - 1 / slower


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveCost:
    """What saves cost a training.

    A save stops it for ``blocked_s`` and then goes on behind it for ``behind_s``, in which a step
    makes ``drag`` less progress (0 to 1).
    """

    blocked_s: float
    behind_s: float
    drag: float
    mtbf_s: float
    restart_s: float

    @classmethod
    def by(
        cls,
        statistic: str,
        times: Mapping[str, Spread],
        training: Training,
        *,
        mtbf_s: float,
        slower: float | None,
    ) -> SaveCost:
        """By one statistic of the times, a name in ``Spread``. ``slower``: as ``slowdown``."""
        restore = times.get("restore_s")
        return cls(
            blocked_s=getattr(times["blocked_s"], statistic),
            behind_s=getattr(times["behind_s"], statistic),
            drag=drag_of(slower),
            mtbf_s=mtbf_s,
            restart_s=training.restart_s
            + (0.0 if restore is None else getattr(restore, statistic)),
        )

    def slowed_s(self, interval_s: float) -> float:
        """The part of an interval that slower steps cost."""
        return self.drag * min(self.behind_s, interval_s) if self.drag else 0.0

    def stopped_s(self, interval_s: float) -> float:
        """For how long a save stops training; one that is not over when the next is due blocks."""
        return self.blocked_s + max(0.0, self.behind_s - interval_s)

    def waste(self, interval_s: float) -> float:
        """Share of the time for saves, slower steps, lost work and restarts."""
        return waste(
            interval_s,
            self.stopped_s(interval_s),
            self.mtbf_s,
            self.restart_s,
            self.behind_s,
            self.slowed_s(interval_s),
        )

    def overhead(self, interval_s: float) -> float:
        """Share of the time for saves and slower steps, without interruptions."""
        return overhead(interval_s, self.stopped_s(interval_s), self.slowed_s(interval_s))

    @property
    def each_s(self) -> float:
        """What one save costs, if there is no interruption."""
        return self.blocked_s + self.slowed_s(math.inf)

    @property
    def best_s(self) -> float:
        """The best interval; the save before must have ended by then."""
        best = best_s(self.blocked_s, self.mtbf_s, self.slowed_s(math.inf))
        return max(best, self.behind_s)


def meaning(study: Study, training: Training) -> Meaning | None:
    """What the figures mean for ``training``.

    It is None if no save was finished, or if the end of none was recorded.
    """
    writers, readers = writing(study, training), restoring(study, training)
    saves = whole_saves(study, writers)
    if not saves:
        return None
    times = _times(saves, whole_restores(study, readers))
    accelerators = training.accelerators or study.ranks
    mtbf = training.mtbf_s or published_mtbf_s(accelerators)
    slower = slowdown(study)
    plan, mean, middle = (
        SaveCost.by(statistic, times, training, mtbf_s=mtbf, slower=slower)
        for statistic in ("upper", "mean", "median")
    )
    interval, restore = plan.best_s, times.get("restore_s")
    lost = mean.waste(interval) * DAY_S
    price = training.usd_per_accelerator_hour
    today = None
    if (at := training.interval_s) is not None:
        today = Today(interval_s=at, overhead=mean.overhead(at), waste=mean.waste(at))
    measured = hosts_of(study)
    written, read = (
        None if rate is None else rate / measured
        for rate in (_known(study.write_bytes_per_s), _known(study.restore_bytes_per_s))
    )
    stated = training.hosts_writing is not None or measured > 1
    committed = times["committed_s"]
    found = Meaning(
        asked=training,
        accelerators=accelerators,
        mtbf_s=mtbf,
        mtbf_how="as given"
        if training.mtbf_s
        else (
            "at the rate of Llama 3's pre-training: 50,700 accelerator hours for each interruption"
        ),
        bytes=study.full_bytes,
        condition=condition(writers, written, measured=measured, stated=stated),
        restore_condition=condition(
            readers, read, measured=measured, stated=stated or training.hosts_restoring is not None
        ),
        host_write_bytes_per_s=written,
        job_write_bytes_per_s=writers.rate(written),
        at_write_limit=writers.limits(written),
        at_read_limit=readers.limits(read),
        times=times,
        blocked_s=times["blocked_s"].median,
        durable_s=times["durable_s"].median,
        committed_s=committed.median,
        restore_s=None if restore is None else restore.median,
        restart_s=middle.restart_s,
        asynchronous=asynchronous(study),
        slowdown=slower,
        slowed_s=None if slower is None else mean.slowed_s(interval),
        young_s=young_s(plan.each_s, mtbf),
        daly_s=daly_s(plan.each_s, mtbf),
        availability_s=availability_s(plan.each_s, mtbf, plan.restart_s),
        interval_s=interval,
        interval_median_s=middle.best_s,
        overhead=mean.overhead(interval),
        waste=mean.waste(interval),
        today=today,
        lost_s_per_day=lost,
        lost_samples_per_day=None
        if training.samples_per_s is None
        else lost * training.samples_per_s,
        lost_usd_per_day=None if price is None else lost / 3600 * price * accelerators,
        stall_budget=training.stall_budget,
        needed_write_bytes_per_s=needed_write_bytes_per_s(
            study.full_bytes,
            training.stall_budget,
            mtbf,
            copy_s=mean.blocked_s if asynchronous(study) else 0.0,
            drag=1.0 if slower is None else mean.drag,
        ),
        within_budget=mean.overhead(interval) <= training.stall_budget,
        notice_s=training.notice_s,
        fits_notice=committed.upper <= training.notice_s,
        over_notice=sum(save.committed_s > training.notice_s for save in saves),
        curve=[(at, mean.waste(at)) for at in _around(interval)],
    )
    return found.model_copy(update={"sentence": _sentence(study, found)})


def _times(saves: Sequence[WholeSave], restores: Sequence[float]) -> dict[str, Spread]:
    """The times of whole saves and, if there were any, of whole restores."""
    times = {
        name: spread([getattr(save, name) for save in saves])
        for name in ("blocked_s", "durable_s", "committed_s", "behind_s")
    }
    if restores:
        times["restore_s"] = spread(restores)
    return times


def _known(rate: float | None) -> float | None:
    """The rate; None if it is infinite, which a record of somebody else may claim."""
    return rate if rate is not None and rate <= MAX_RATE else None


def _around(interval: float) -> list[float]:
    half = CURVE_POINTS // 2
    return [
        interval * math.exp(math.log(CURVE_SPAN) * step / half) for step in range(-half, half + 1)
    ]


def upper_word(found: Spread) -> str:
    """The name of ``found.upper``, with the number of values: ``the longest of 10``."""
    return f"the p95 of {found.n}" if found.p95 is not None else f"the longest of {found.n}"


def not_told(found: Spread) -> float | None:
    """The largest share of saves that may be longer than all ``found.n``, with 95 % certainty.

    If the share were p, all of n independent saves would be shorter with probability (1 - p)^n,
    which is 5 % for this share. None if the p95 is known.
    """
    return None if found.p95 is not None else 1 - 0.05 ** (1 / found.n)


def _sentence(study: Study, found: Meaning) -> str:
    whole = (
        ""
        if study.bytes >= study.full_bytes
        else f" (computed from {format_bytes(study.bytes)} at the measured bandwidth)"
    )
    loss = f"Then {format_share(found.waste)} of the time is lost to saves and interruptions"
    if found.lost_usd_per_day is not None:
        loss += f", {format_count(found.lost_usd_per_day)} USD a day"
    at = f"on {counted(found.accelerators, 'accelerator')}"
    return (
        f"A save of {format_bytes(study.full_bytes)} with writer {study.writer} stops training for "
        f"{format_duration(found.blocked_s)}{whole}. That holds {found.condition}. "
        f"With an interruption every {format_duration(found.mtbf_s)} {at}, save every "
        f"{format_duration(found.interval_s)}. {loss}. {_needed(found)}"
    )


def _needed(found: Meaning) -> str:
    """What the storage must write, and whether the measured rate is enough on that condition."""
    share = format_share(found.stall_budget)
    rate = found.needed_write_bytes_per_s
    if rate is None:
        more = (
            "however fast the storage is"
            if found.asked.hosts_writing
            else "but more hosts copy their parts at the same time"
        )
        return f"The copies alone take more than {share} of the time, {more}."
    most = "at most " if found.asynchronous and found.slowdown is None else ""
    needed = f"To save within {share} of the time, the storage must write {most}{format_rate(rate)}"
    one, limit = found.host_write_bytes_per_s, found.asked.storage_write_bytes_per_s
    if limit is not None and rate > limit:
        return f"{needed} durably, more than its stated limit of {format_rate(limit)}."
    if found.within_budget or not one or rate <= one:
        return f"{needed} durably."
    return (
        f"{needed} durably. {counted(math.ceil(rate / one), 'host')} at the rate of the measured "
        "one would, if the storage gives each of them as much."
    )
