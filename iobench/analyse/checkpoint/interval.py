"""How often to save, and what it costs: closed forms and the exact waste, for failures that come at random (exponentially distributed).

Times in seconds. ``blocked_s``: training stands still for one save. ``mtbf_s``: mean time between interruptions of the whole job.
``restart_s``: from an interruption to training again, the restore included. An interval is training time between two saves.

Sources: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. J. T. Daly, "A higher order
estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006 (equations 20 and 37). N. R. Saxena et al. (NVIDIA),
"Optimal checkpoint interval with availability as an objective function", arXiv 2410.18124, 2024. Interruptions: Grattafiori et al., "The
Llama 3 Herd of Models", 2024: 419 unexpected ones in 54 days on 16,384 accelerators.
"""

from __future__ import annotations

import math

LLAMA3_INTERRUPTIONS = 419
LLAMA3_ACCELERATOR_HOURS = 54 * 24 * 16_384


def published_mtbf_s(accelerators: int) -> float:
    """Mean time between unexpected interruptions of a job on so many accelerators, at the rate of Llama 3's pre-training."""
    return LLAMA3_ACCELERATOR_HOURS / LLAMA3_INTERRUPTIONS / accelerators * 3600


def young_s(blocked_s: float, mtbf_s: float) -> float:
    """Young's interval, right to first order where ``blocked_s`` is small beside ``mtbf_s``."""
    return math.sqrt(2 * blocked_s * mtbf_s)


def daly_s(blocked_s: float, mtbf_s: float) -> float:
    """Daly's interval (his equation 37): the mean time between interruptions itself where saving takes longer than twice that."""
    if blocked_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = math.sqrt(blocked_s / (2 * mtbf_s))
    return math.sqrt(2 * blocked_s * mtbf_s) * (1 + ratio / 3 + ratio * ratio / 9) - blocked_s


def availability_s(blocked_s: float, mtbf_s: float, restart_s: float) -> float:
    """The interval of largest availability (Saxena et al.), with the restart in it; theirs runs from save to save and is longer by a save.

    It is the best one where failures are counted in time up, and lost work and restarts come on top of that: availability is then
    interval / (interval + save) x mtbf / (mtbf + restart + (interval + save) / 2).
    """
    return math.sqrt(2 * (mtbf_s + restart_s) * blocked_s + blocked_s * blocked_s)


def waste(
    interval_s: float,
    blocked_s: float,
    mtbf_s: float,
    restart_s: float = 0.0,
    exposed_s: float = 0.0,
) -> float:
    """The share of the time that saves, lost work and restarts take, 0 to 1; exact for exponential failures (Daly's equation 20).

    ``exposed_s``: how long after training went on a save is not yet durable, so that an interruption costs the interval before, too.
    """
    try:
        spent = (
            mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + blocked_s) / mtbf_s)
        )
    except OverflowError:
        return 1.0
    if spent == 0:  # saving takes no time at all, and is done without pause
        return min(1.0, exposed_s / mtbf_s)
    return min(1.0, 1 - interval_s / spent + exposed_s / mtbf_s)


def overhead(interval_s: float, blocked_s: float) -> float:
    """The share of the time in which training stands still for saves, if nothing ever fails."""
    return blocked_s / (interval_s + blocked_s) if blocked_s else 0.0


def longest_save_s(budget: float, interval_s: float) -> float:
    """How long a save may block for at most ``budget`` of the time, at this interval."""
    return budget * interval_s / (1 - budget)


def longest_save_at_best_s(budget: float, mtbf_s: float) -> float:
    """The same at the interval that Young's formula gives for it: overhead is then sqrt(save / (2 mtbf)), so save = 2 mtbf budget²."""
    return 2 * mtbf_s * budget * budget
