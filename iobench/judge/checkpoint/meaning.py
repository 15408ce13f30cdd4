"""What a checkpoint study means for a training of a given size.

It computes the interval at which to save, the cost of saving, and the bandwidth that is needed, for
the whole model and all hosts of the training (see ``whole``). Each figure goes by the statistic
that it needs: the interval and a notice by the p95 of the saves, what is lost over many saves by
their mean. All functions are pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...base.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from ...record.checkpoint import AskedTraining, Meaning, Spread, Study, Today, Training
from .study import slowdown, spread
from .whole import (
    availability_s,
    best_s,
    condition,
    daly_s,
    hosts_of,
    needed_write_bytes_per_s,
    overhead,
    published_mtbf_s,
    restoring,
    waste,
    whole_restores,
    whole_saves,
    writing,
    young_s,
)

DAY_S = 86_400
MAX_RATE = 1e30
CURVE_POINTS = 13
CURVE_SPAN = 8
"""The curve of waste runs from 1/8 of the best interval to 8 times the best interval."""


def with_meaning(study: Study) -> Study:
    """Return ``study`` with what its figures mean for the training that was asked about."""
    asked = study.meaning.asked
    return study.model_copy(update={"meaning": meaning(study, asked) or AskedTraining(asked=asked)})


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
    times = {
        name: spread([getattr(save, name) for save in saves])
        for name in ("blocked_s", "durable_s", "committed_s", "behind_s")
    }
    if restores := whole_restores(study, readers):
        times["restore_s"] = spread(restores)
    accelerators = training.accelerators or study.ranks
    mtbf = training.mtbf_s or published_mtbf_s(accelerators)
    slower = slowdown(study)
    drag = 0.0 if slower is None or slower <= 1 else 1 - 1 / slower
    restore = times.get("restore_s")

    def cost(statistic: str) -> SaveCost:
        """The cost by one statistic of the times, a name in ``Spread``."""
        return SaveCost(
            blocked_s=getattr(times["blocked_s"], statistic),
            behind_s=getattr(times["behind_s"], statistic),
            drag=drag,
            mtbf_s=mtbf,
            restart_s=training.restart_s
            + (0.0 if restore is None else getattr(restore, statistic)),
        )

    plan, mean, middle = cost("upper"), cost("mean"), cost("median")
    interval = plan.best_s
    lost = mean.waste(interval) * DAY_S
    price = training.usd_per_accelerator_hour
    asynchronous = any(save.staged_s is not None for save in study.saves)
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
        condition=condition(writers, written, stated=stated),
        restore_condition=condition(
            readers, read, stated=stated or training.hosts_restoring is not None
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
        asynchronous=asynchronous,
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
            copy_s=mean.blocked_s if asynchronous else 0.0,
            drag=1.0 if slower is None else drag,
        ),
        within_budget=mean.overhead(interval) <= training.stall_budget,
        notice_s=training.notice_s,
        fits_notice=committed.upper <= training.notice_s,
        over_notice=sum(save.committed_s > training.notice_s for save in saves),
        curve=[(at, mean.waste(at)) for at in _around(interval)],
    )
    return found.model_copy(update={"sentence": _sentence(study, found)})


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
