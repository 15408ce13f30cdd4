"""What a checkpoint study means for a training of a given size.

It computes the interval at which to save, the cost of saving, and the bandwidth that is needed.
For a study with ``--scale``, times are extrapolated to the whole model in proportion to the bytes,
at the measured bandwidth. All functions are pure.
"""

from __future__ import annotations

import math

from ...schema.checkpoint import Asked, Meaning, Study, Today, Training
from ...units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    format_share,
)
from .interval import (
    availability_s,
    daly_s,
    longest_save_at_best_s,
    overhead,
    published_mtbf_s,
    waste,
    young_s,
)

DAY_S = 86_400
CURVE_POINTS = 13
CURVE_SPAN = 8
"""The curve of waste runs from 1/8 of the best interval to 8 times the best interval."""


def with_meaning(study: Study) -> Study:
    """Return ``study`` with what its figures mean for the training that was asked about."""
    asked = study.meaning.asked
    return study.model_copy(update={"meaning": meaning(study, asked) or Asked(asked=asked)})


def meaning(study: Study, training: Training) -> Meaning | None:
    """What the figures mean for ``training``.

    It is None if no save was finished, or if the end of none was recorded.
    """
    stopped = study.figures.get("blocked_s")
    end = study.figures.get("durable_s") or study.figures.get("accepted_s")
    if stopped is None or end is None:
        return None
    growth = study.full_bytes / study.bytes if study.bytes else 1.0
    blocked, durable = stopped.median * growth, end.median * growth
    restored = study.figures.get("restore_s")
    restore = restored.median * growth if restored else None
    accelerators = training.accelerators or study.ranks
    mtbf = training.mtbf_s or published_mtbf_s(accelerators)
    restart = training.restart_s + (restore or 0.0)
    exposed = max(0.0, durable - blocked)
    interval = max(daly_s(blocked, mtbf), exposed)

    def wasted(at: float) -> float:
        return waste(at, blocked, mtbf, restart, exposed)

    lost = wasted(interval) * DAY_S
    price = training.usd_per_accelerator_hour
    longest = longest_save_at_best_s(training.stall_budget, mtbf)
    today = None
    if (at := training.interval_s) is not None:
        today = Today(interval_s=at, overhead=overhead(at, blocked), waste=wasted(at))
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
        blocked_s=blocked,
        durable_s=durable,
        restore_s=restore,
        restart_s=restart,
        young_s=young_s(blocked, mtbf),
        daly_s=daly_s(blocked, mtbf),
        availability_s=availability_s(blocked, mtbf, restart),
        interval_s=interval,
        overhead=overhead(interval, blocked),
        waste=wasted(interval),
        today=today,
        lost_s_per_day=lost,
        lost_samples_per_day=None
        if training.samples_per_s is None
        else lost * training.samples_per_s,
        lost_usd_per_day=None if price is None else lost / 3600 * price * accelerators,
        stall_budget=training.stall_budget,
        needed_write_bytes_per_s=study.full_bytes / longest,
        within_budget=overhead(interval, blocked) <= training.stall_budget,
        notice_s=training.notice_s,
        fits_notice=durable <= training.notice_s,
        curve=[(at, wasted(at)) for at in _around(interval)],
    )
    return found.model_copy(update={"sentence": _sentence(study, found)})


def _around(interval: float) -> list[float]:
    half = CURVE_POINTS // 2
    return [
        interval * math.exp(math.log(CURVE_SPAN) * step / half) for step in range(-half, half + 1)
    ]


def _sentence(study: Study, found: Meaning) -> str:
    whole = (
        ""
        if study.bytes >= study.full_bytes
        else f" (computed from {format_bytes(study.bytes)} at the measured bandwidth)"
    )
    loss = f"{format_share(found.waste)} of the time is then lost to saves and interruptions"
    if found.lost_usd_per_day is not None:
        loss += f", {format_count(found.lost_usd_per_day)} USD a day"
    at = f"on {counted(found.accelerators, 'accelerator')}"
    return (
        f"A save of {format_bytes(study.full_bytes)} with writer {study.writer} stops training for "
        f"{format_duration(found.blocked_s)}{whole}. "
        f"With an interruption every {format_duration(found.mtbf_s)} {at}, save every "
        f"{format_duration(found.interval_s)}: {loss}. "
        f"To save within {format_share(found.stall_budget)} of the time, the storage must write "
        f"{format_rate(found.needed_write_bytes_per_s)} durably"
        f"{'' if found.within_budget else ', which this storage does not reach'}."
    )
