"""One line on how the rate changes within repetitions."""

from __future__ import annotations

from ..analyse.verdict.rates import long_enough, steady_from
from ..analyse.verdict.rules_time import falls, measured_rates
from ..schema.record import TrainingRecord
from ..units import counted, format_duration, format_percent


def rate_over_time(doc: TrainingRecord) -> str:
    """The line; '' if no repetition is long enough to say anything."""
    long = [rates for _, rates in measured_rates(doc) if long_enough(rates)]
    if not long:
        return ""
    repetitions = counted(len(long), "repetition")
    if found := falls(doc):
        number, fall = min(found, key=lambda each: each.fall.share)
        return (
            f"falls to {format_percent(fall.share)} after {format_duration(fall.at_s)} "
            f"(repetition {number}); a lasting fall in {len(found)} of {repetitions}"
        )
    starts = [steady_from(rates) for rates in long]
    known = [start for start in starts if start is not None]
    if len(known) < len(starts):
        return f"no steady state in {len(starts) - len(known)} of {repetitions}"
    begin = max(known)
    when = (
        f"reached after {format_duration(begin)} at the latest" if begin else "from the beginning"
    )
    return f"steady state {when}, in {repetitions}"
