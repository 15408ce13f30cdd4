"""How the time for knock-outs is divided: which ones, after which repetitions, and how long.

A knock-out takes turns with the repetitions, so each of them should follow as many repetitions as
possible. It needs a time that is long enough for a rate, and is never longer than a repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..schema.verdict import KnockedOut
from ..units import format_duration

MIN_S = 1.0
"""A rate over a shorter time says little, unless a whole repetition is shorter."""

MIN_ROUNDS = 3
"""Rounds that the default budget has time for: an interval from fewer of them is far too wide."""

OVERRUN, OVERRUN_OF_BUDGET = 2.0, 1.25
"""How much longer than planned the knock-outs may take; where a budget was given, it is less."""

NONE = (
    "the time of {budget} for knock-outs is too short for any of them: raise --knockouts or "
    "--budget"
)
LEFT_OUT = "the time of {budget} for knock-outs is too short for it: raise --knockouts or --budget"


@dataclass(frozen=True, kw_only=True)
class Length:
    """What a repetition took, in seconds.

    ``loading_s``: its epochs. ``fixed_s``: all the rest, such as processes that start and a page
    cache that is emptied. ``least_s``: what a rate needs: some rounds of all workers, and a
    checkpoint where there are some.
    """

    loading_s: float
    fixed_s: float
    least_s: float

    @property
    def shortest_s(self) -> float:
        """The least time of loading for a knock-out."""
        return min(self.loading_s, max(MIN_S, self.least_s))


@dataclass(frozen=True, kw_only=True)
class Turns:
    """After each of the repetitions ``rounds``, all ``stages`` are left out once each.

    Each takes ``seconds`` of loading. ``left_out``: why other stages are not measured. No round
    begins that would end after ``limit_s`` seconds of knock-outs: those with slow batches take
    longer than planned.
    """

    rounds: tuple[int, ...] = ()
    stages: tuple[KnockedOut, ...] = ()
    seconds: float = 0.0
    limit_s: float = 0.0
    left_out: dict[KnockedOut, str] = field(default_factory=dict)

    def order(self, number: int, *, further: bool = False) -> tuple[KnockedOut, ...]:
        """The stages after repetition ``number``; the first one moves on from round to round.

        ``further``: also after repetitions that were not planned, which follow the last round.
        """
        beyond = further and self.rounds and number > self.rounds[-1]
        if not self.stages or not (number in self.rounds or beyond):
            return ()
        first = (number if beyond else self.rounds.index(number)) % len(self.stages)
        return self.stages[first:] + self.stages[:first]


def plan_turns(
    stages: Sequence[KnockedOut], *, repetitions: int, length: Length, budget_s: float | None
) -> Turns:
    """Divide the time; ``stages`` are in the order of importance.

    Without a budget, all knock-outs together take as long as the repetitions together, or for
    MIN_ROUNDS rounds of the shortest ones if that is more. With one that is too small, fewer rounds
    are taken, and then the least important stages are left out.
    """
    if not stages or length.loading_s <= 0:
        return Turns()
    given = budget_s
    if budget_s is None:
        together = repetitions * (length.loading_s + length.fixed_s)
        shortest = len(stages) * (length.shortest_s + length.fixed_s)
        budget_s = max(together, min(repetitions, MIN_ROUNDS) * shortest)
    for count in range(len(stages), 0, -1):
        for rounds in range(repetitions, 0, -1):
            seconds = budget_s / (rounds * count) - length.fixed_s
            if seconds < length.shortest_s - 1e-9:
                continue
            why = LEFT_OUT.format(budget=format_duration(budget_s))
            return Turns(
                rounds=spread(rounds, repetitions),
                stages=tuple(stages[:count]),
                seconds=min(seconds, length.loading_s),
                limit_s=budget_s * (OVERRUN if given is None else OVERRUN_OF_BUDGET),
                left_out=dict.fromkeys(stages[count:], why),
            )
    why = NONE.format(budget=format_duration(given or 0.0))
    return Turns(left_out=dict.fromkeys(stages, why))


def spread(count: int, repetitions: int) -> tuple[int, ...]:
    """Numbers of ``count`` repetitions, evenly spread; the first one is always among them."""
    if count == 1:
        return (0,)
    return tuple(round(turn * (repetitions - 1) / (count - 1)) for turn in range(count))
