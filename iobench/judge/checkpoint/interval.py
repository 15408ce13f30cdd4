"""How often to save a checkpoint, and what that costs: closed forms, and the exact waste.

Failures are random with an exponential distribution. All times are in seconds. ``blocked_s`` is
the time for which one save stops training. ``mtbf_s`` is the mean time between interruptions of
the whole job. ``restart_s`` is the time from an interruption until training goes on, including the
restore. An interval is the time from the end of one stop to the begin of the next. An asynchronous
save goes on during it, and may slow its steps down: ``slowed_s`` is the part of the interval that
this costs.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9),
1974. J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
FGCS 22(3), 2006 (equations 20 and 37). N. R. Saxena et al. (NVIDIA), "Optimal checkpoint interval
with availability as an objective function", arXiv 2410.18124, 2024. Rate of interruptions:
Grattafiori et al., "The Llama 3 Herd of Models", 2024 (419 unexpected ones in 54 days on 16,384
accelerators).
"""

from __future__ import annotations

import math

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
