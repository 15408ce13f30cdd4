"""One line on how the rate changes within repetitions."""

from __future__ import annotations

from ..analyse.figures.rates import long_enough, steady_from
from ..analyse.verdict.rules_ranks import falls, measured_rates
from ..schema.record import TrainingRecord
from ..units import counted, format_duration, format_percent

BURST = (
    "measured in times that end before the rate of a repetition falls: they are those of a burst, "
    "and a training gets the rate after the fall"
)
"""Of figures of the storage, in a report whose verdict rests on the rate after a fall."""


def is_burst(doc: TrainingRecord) -> bool:
    """Whether the storage's ceilings and its curve are not what lasts."""
    fed = doc.job.verdict.fed if doc.job.verdict else None
    return fed is not None and fed.basis == "run"


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
