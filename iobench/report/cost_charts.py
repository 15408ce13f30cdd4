"""The charts of ``iobench cost``: what a sample costs, and what it costs to be early."""

from __future__ import annotations

from ..analyse.compare.cost import Option
from ..analyse.compare.ranking import Ranking
from ..analyse.tuning.front import front
from ..units import format_duration
from .cost_words import plain_usd
from .sections import Axis, Range, Ranges, Scatter, Section, Spot

MILLION = 1e6


def cost_charts(one: Ranking, name: str) -> list[Section]:
    """USD for a million samples of each way to pay, and USD over time. The table follows them."""
    options = [option for option in one.options if option.usd_per_million_samples]
    if not options:
        return []
    rows = tuple(
        Range(
            label=_label(option),
            text=_text(option),
            value=option.usd_per_million_samples or 0.0,
            low=_usd(option.samples_per_usd_high),
            high=_usd(option.samples_per_usd_low),
            mark="best known" if option is one.options[0] and not option.never_interrupted else "",
        )
        for option in options
    )
    axis = Axis(label="USD for a million samples", unit="count")
    found: list[Section] = [
        Ranges(id=f"{name}-usd", title="What a million samples cost", axis=axis, rows=rows)
    ]
    return [*found, *_over_time(options, name)]


def _label(option: Option) -> str:
    return f"{option.kind}, {option.machine}"


def _usd(samples_per_usd: float | None) -> float | None:
    return MILLION / samples_per_usd if samples_per_usd else None


def _text(option: Option) -> str:
    least = "at least " if option.never_interrupted else ""
    low, high = _usd(option.samples_per_usd_high), _usd(option.samples_per_usd_low)
    interval = "" if low is None or high is None else f" [{low:.4g}, {high:.4g}]"
    return f"{least}{option.usd_per_million_samples:.4g}{interval}"


def _million_s(option: Option) -> float | None:
    return MILLION / option.samples_per_s if option.samples_per_s else None


def _over_time(options: list[Option], name: str) -> list[Section]:
    """USD over the time of the job, or of a million samples where no job was stated.

    A figure that is only a bound, since interruptions are not known, beats nothing: it is left out.
    """
    bounds = [option for option in options if option.never_interrupted]
    options = [option for option in options if not option.never_interrupted]
    job = all(option.job_s and option.job_usd for option in options)
    known = [
        (option, seconds, paid)
        for option in options
        if (seconds := option.job_s if job else _million_s(option)) is not None
        and (paid := option.job_usd if job else option.usd_per_million_samples) is not None
    ]
    if len(known) < 2:
        return []
    what = "of the job" if job else "of a million samples"
    left_out = ", without spot: its interruptions are not known" if bounds else ""
    kept = front([(seconds, paid) for _, seconds, paid in known])
    return [
        Scatter(
            id=f"{name}-time",
            title=f"Pareto front of the cost and the time {what}{left_out}",
            x=Axis(label=f"time {what}", unit="s"),
            y=Axis(label=f"USD {what}", unit="count"),
            better="less",
            spots=tuple(
                Spot(
                    label=_label(option),
                    text=f"{plain_usd(paid)} USD, {format_duration(seconds)}",
                    x=seconds,
                    y=paid,
                    front=on,
                )
                for (option, seconds, paid), on in zip(known, kept, strict=True)
            ),
        )
    ]
