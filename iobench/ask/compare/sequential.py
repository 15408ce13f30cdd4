"""A sequential test of two variants, measured in turns: go on until the difference is told.

A round measures each variant once and gives one logarithm of a ratio, B over A. The order
alternates (A B, B A, A B, ...), so that a linear drift cancels over each two rounds, and the looks
are after even numbers of rounds. The method is the significance level approach for group sequential
t-tests with Pocock's constant level: at each look Student's t interval at the same nominal level,
which is chosen so that all looks together keep the error rate. Those intervals are repeated
confidence intervals: together they cover the true ratio with the stated probability, whenever one
stops.

Sources: C. Jennison and B. W. Turnbull, "Group Sequential Methods with Applications to Clinical
Trials", 1999, 2.2, 4.4, 9 and 11.2; S. J. Pocock, "Group sequential methods in the design and
analysis of clinical trials", 1977.

``_LEVELS`` was computed for this schedule of looks and for t at its exact degrees of freedom (with
500,000 series of independent normal values), at 3 % for all looks together instead of 5 %. The
difference pays for storage whose rates are not independent. Simulated errors and power in per cent,
for a threshold of 5 % and rates with a standard deviation of ``cv`` within each variant (100,000
series; ``ar``: the rates in the order of time follow an AR(1) process with 0.5; ``t3``: Student's
t with 3 degrees of freedom, scaled to that deviation)::

    most rounds  noise   false different  wrong equal  told at 10 %, cv  2 %   5 %  10 %
             4  normal              3.1          1.6                     95    33    10
             4  t3                  2.4          1.2                     94    48    15
             4  ar                  3.9          2.0                    100    59    20
             8  normal              3.0          1.2                    100    71    21
             8  t3                  2.2          0.8                    100    82    32
             8  ar                  4.2          1.7                    100    95    43
            20  normal              3.0          0.9                    100   100    57
            20  t3                  2.2          0.9                    100    99    71
            20  ar                  4.7          2.0                    100   100    89
            42  normal              3.0          1.0                    100   100    93
            42  t3                  2.2          0.9                    100   100    95
            42  ar                  5.1          1.8                    100   100   100

Each error is the largest over a cv of 1, 2, 5 and 10 %. ``wrong equal``: equal is told although the
true ratio is one threshold above 1. What the test can't bear are ratios of rounds that depend on
one another: if they follow an AR(1) process with 0.5, it is wrong in up to 28 % of cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Literal

from ...base.units import format_share
from ...judge.statistics import factor_of, t_quantile
from ...record.ab import MAX_ROUNDS, AbRecord, AbRound, Answer, Claim
from ...record.metrics import BY_NAME, COMPARED, Metric
from ...record.run import TrainingRecord
from ...record.training import Repetition
from ...record.verdict import Estimate
from .claims import answer_of
from .identity import differences, role_of
from .runs import figure_of

MIN_ROUNDS = 4
"""Rounds before the first look: with fewer the spread is hardly known (3 degrees of freedom)."""

_GROWTH = 1.1
"""Each look has at least this many times the rounds of the one before it."""

_LEVELS = (
    *(0.03038, 0.01732, 0.01279, 0.01038, 0.00893, 0.00791, 0.00716, 0.00664, 0.00620, 0.00584),
    *(0.00542, 0.00507, 0.00478, 0.00458, 0.00438, 0.00417, 0.00396, 0.00380, 0.00367, 0.00351),
    *(0.00340, 0.00327, 0.00318, 0.00307, 0.00297, 0.00288, 0.00280, 0.00273, 0.00266, 0.00261),
)
"""The nominal two-sided level of each look, for 1, 2, 3, ... looks at most."""

_POWER_Z = 0.8416
"""Quantile of the normal distribution at 0.8: the planned rounds tell a difference so often."""

_MAX_MORE = 1000
"""Beyond so many rounds their number is not said: it would be a guess."""


def log_ratio(b: float | None, a: float | None) -> float | None:
    """The logarithm of B over A; None if one of them is missing or not above 0."""
    if b is None or a is None or b <= 0 or a <= 0:
        return None
    return math.log(b) - math.log(a)


@dataclass(frozen=True)
class Sequential:
    """A test of at most ``max_rounds`` rounds, which must be known before the first one.

    ``threshold``: 0.05 for 5 %. Raises ValueError outside [MIN_ROUNDS, MAX_ROUNDS].
    """

    max_rounds: int
    threshold: float

    def __post_init__(self) -> None:
        if not MIN_ROUNDS <= self.max_rounds <= MAX_ROUNDS or self.threshold <= 0:
            raise ValueError(f"no test of {self.max_rounds} rounds within {self.threshold}")

    @cached_property
    def looks(self) -> tuple[int, ...]:
        """The numbers of rounds after which the test may end: 4, 6, 8, ..., all even."""
        last = self.max_rounds - self.max_rounds % 2
        looks = [MIN_ROUNDS]
        while looks[-1] < last:
            grown = 2 * math.ceil(_GROWTH * looks[-1] / 2)
            looks.append(min(last, max(looks[-1] + 2, grown)))
        return tuple(looks)

    @property
    def level(self) -> float:
        """The nominal level of each look."""
        return _LEVELS[len(self.looks) - 1]

    @property
    def margin(self) -> float:
        """The logarithm of the largest ratio that counts as equal."""
        return math.log1p(self.threshold)

    def interval(self, logs: Sequence[float]) -> tuple[float, float, float]:
        """(low, estimate, high) of the mean of at least two logarithms of ratios."""
        middle = fmean(logs)
        half = self._half(stdev(logs), len(logs))
        return middle - half, middle, middle + half

    def estimate(self, logs: Sequence[float]) -> Estimate | None:
        """The ratio with its repeated interval; without one for a single round, None for none."""
        if not logs:
            return None
        if len(logs) == 1:
            return Estimate(value=factor_of(logs[0]))
        low, middle, high = self.interval(logs)
        return Estimate(
            value=factor_of(middle), low=factor_of(low), high=factor_of(high), n=len(logs)
        )

    def answer(self, logs: Sequence[float]) -> Answer:
        """What is told after these rounds; fewer than MIN_ROUNDS never tell anything."""
        if len(logs) < MIN_ROUNDS:
            return "inconclusive"
        low, _, high = self.interval(logs)
        return answer_of(factor_of(low), factor_of(high), self.threshold)

    def ends(self, logs: Sequence[float]) -> bool:
        """Whether to stop after these rounds: told at a look, or all rounds were taken."""
        if len(logs) >= self.looks[-1]:
            return True
        return len(logs) in self.looks and self.answer(logs) != "inconclusive"

    def rounds_for_threshold(self, logs: Sequence[float]) -> int | None:
        """Rounds that tell a difference of the threshold in 80 % of cases, at the present spread.

        None: more than can be said, or the spread is not known yet.
        """
        if len(logs) < 2:
            return None
        spread = stdev(logs)
        return _first(MIN_ROUNDS, lambda n: self._needed(spread, n) <= self.margin)

    def more(self, logs: Sequence[float]) -> int | None:
        """Further rounds that would tell in 80 % of cases, if ratio and spread are as they seem.

        None: more than can be said.
        """
        if len(logs) < 2:
            return None
        middle, spread = abs(fmean(logs)), stdev(logs)

        def tells(rounds: int) -> bool:
            needed = self._needed(spread, rounds)
            return needed < middle or needed <= self.margin - middle

        total = _first(max(MIN_ROUNDS, len(logs) + 1), tells)
        return None if total is None else total - len(logs)

    def claim(self, metric: str, logs: Sequence[float], *, higher_is_better: bool) -> Claim:
        """The claim about B over A. ``why`` is empty where it is told."""
        answer = self.answer(logs)
        ratio, more = self.estimate(logs), None
        better = None
        if answer == "different":
            better = (fmean(logs) > 0) == higher_is_better
        elif answer == "inconclusive":
            more = self.more(logs) if logs else None
        return Claim(
            metric=metric,
            answer=answer,
            better=better,
            ratio=ratio,
            threshold=min(1.0, self.threshold),
            basis="rounds",
            method="sequential",
            baseline_runs=len(logs),
            candidate_runs=len(logs),
            more=more,
            why=self._why(len(logs)) if answer == "inconclusive" else "",
        )

    def _why(self, rounds: int) -> str:
        if rounds < MIN_ROUNDS:
            return f"an answer takes at least {MIN_ROUNDS} rounds"
        change = format_share(self.threshold)
        return f"the interval holds no change and one of more than {change}"

    def _half(self, spread: float, rounds: int, max_rounds: int | None = None) -> float:
        test = self if max_rounds is None else Sequential(max_rounds, self.threshold)
        return t_quantile(rounds - 1, test.level) * spread / math.sqrt(rounds)

    def _needed(self, spread: float, rounds: int) -> float:
        """The distance from 1, as a logarithm, that so many rounds tell in 80 % of cases."""
        planned = min(MAX_ROUNDS, max(rounds, self.max_rounds))
        return self._half(spread, rounds, planned) + _POWER_Z * spread / math.sqrt(rounds)


def _first(start: int, holds: Callable[[int], bool]) -> int | None:
    """The first even number of rounds from ``start`` for which ``holds``; None beyond the limit."""
    rounds = range(start + start % 2, _MAX_MORE + 1, 2)
    return next((number for number in rounds if holds(number)), None)


def metrics_like(metric: str) -> tuple[Metric, ...]:
    """The metrics of repetitions of the same kind, by which two variants are compared."""
    return tuple(each for each in COMPARED.values() if each.of == BY_NAME[metric].of)


Verdict = Literal["better", "worse", "equal", "inconclusive"]


def figures_of(repetition: Repetition) -> dict[str, float]:
    """The metrics of a repetition by which variants are compared, without those it has not."""
    metrics = metrics_like(TrainingRecord.headline)
    figures = {metric.name: figure_of(repetition, metric.name) for metric in metrics}
    return {name: figure for name, figure in figures.items() if figure is not None}


def sequential_of(record: AbRecord) -> Sequential:
    """The sequential test of the comparison, with as many rounds as were planned."""
    planned = record.planned_rounds or record.max_rounds
    return Sequential(max(MIN_ROUNDS, planned), record.threshold)


def logs_of(rounds: Sequence[AbRound], metric: str) -> list[float]:
    """The logarithm of B over A in each round in which both are known and above 0."""
    logs = (log_ratio(each.b.figures.get(metric), each.a.figures.get(metric)) for each in rounds)
    return [log for log in logs if log is not None]


def claims_of(record: AbRecord) -> list[Claim]:
    """A claim for each metric that a round has measured, that of the record's metric first.

    A metric that is missing in a round is inconclusive, because the rounds that have it are a
    selection.
    """
    test = sequential_of(record)
    others = (each.name for each in metrics_like(record.metric) if each.name != record.metric)
    names = [record.metric, *others]
    claims = []
    for name in names:
        figures: list[Mapping[str, float]] = [
            trial.figures for one in record.rounds for trial in (one.a, one.b)
        ]
        if name != record.metric and not any(name in each for each in figures):
            continue
        logs = logs_of(record.rounds, name)
        found = test.claim(name, logs, higher_is_better=BY_NAME[name].better == "more")
        if len(logs) < len(record.rounds):
            why = f"it is missing or 0 in {len(record.rounds) - len(logs)} of the rounds"
            found = found.model_copy(
                update={"answer": "inconclusive", "better": None, "more": None, "why": why}
            )
        claims.append(found)
    return claims


def measured(record: AbRecord, claim: Claim) -> bool:
    """Whether every round has a ratio of the claim's metric."""
    return len(logs_of(record.rounds, claim.metric)) == len(record.rounds)


def primary(record: AbRecord) -> Claim:
    """The claim of the metric by which the comparison is decided."""
    return claims_of(record)[0]


def verdict(claim: Claim) -> Verdict:
    """The candidate (B) by the baseline (A), in one word."""
    if claim.answer == "different":
        return "better" if claim.better else "worse"
    return claim.answer


def differs(record: AbRecord) -> tuple[str, ...]:
    """What differs between the two, as ``key: A -> B``; what they are asked for comes first."""
    lines = differences(record.a.identity, record.b.identity)
    return tuple(sorted(lines, key=lambda line: role_of(line.partition(":")[0]) != "asked"))


def other_work(record: AbRecord) -> tuple[str, ...]:
    """Settings by which the two do different work; how the same samples are stored is none."""
    keys = (line.partition(":")[0] for line in differs(record))
    return tuple(key for key in keys if role_of(key) == "asked" and not key.startswith("dataset."))
