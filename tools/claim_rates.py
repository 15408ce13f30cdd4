"""How often claims about runs are right, where the truth is known.

``tests/oracle/test_claims.py`` tests these shares against what is promised, and
``tools.claim_tables`` makes the tables of docs/statistics.md of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from iobench.ask.compare.changes import change_points
from iobench.ask.compare.claims import Sides, claim
from iobench.ask.compare.sequential import MAX_ROUNDS as LARGEST
from iobench.ask.compare.sequential import MIN_ROUNDS, Sequential
from iobench.record.ab import Answer, Claim, Drift
from tests.simulated import Floats, World, at_least, at_most, block_ratios, medians

METRIC = "samples_per_s"
THRESHOLD = 0.05
TRUTHS = (1.0, 0.95, 0.9, 0.8)
"""Candidate over baseline. 0.95 is just outside the threshold: 1/1.05 is 0.952."""

MAX_WRONG = 0.05
MIN_POWER = 0.8
TRIALS = 1000

WORLDS = (
    World(cv=0.01),
    World(cv=0.01, drift=0.02),
    World(cv=0.03, drift=0.05, correlation=0.5),
    World(cv=0.05, tails=3, repetitions=4),
    World(cv=0.1, drift=0.03, correlation=0.5, repetitions=10),
    World(cv=0.1, repetitions=6),
)
"""The order of runs does not matter here: their levels do not depend on one another."""

WALKS = (World(cv=0.01, drift=0.01, walk=True), World(cv=0.01, drift=0.03, walk=True))


@dataclass(frozen=True)
class Situation:
    """Runs on each side: those of one before those of the other, or ``in_turns`` (A B B A).

    ``earlier``: runs of equal settings before them, from which the drift is known.
    """

    runs: int
    earlier: int = 0
    in_turns: bool = False

    def __str__(self) -> str:
        order = " in turns" if self.in_turns else ""
        known = f", {self.earlier} earlier runs" if self.earlier else ""
        return f"{self.runs} and {self.runs}{order}{known}"


SITUATIONS = (
    Situation(1, earlier=10),
    Situation(2, earlier=10),
    Situation(3),
    Situation(4),
    Situation(6),
)

IN_ORDER = (Situation(4), Situation(4, in_turns=True), Situation(6), Situation(6, in_turns=True))


@dataclass(frozen=True)
class Told:
    """Shares of the trials in which each answer was given, by the true ratio."""

    trials: int
    different: dict[float, float] = field(default_factory=dict)  # in the right direction
    wrong_way: dict[float, float] = field(default_factory=dict)
    equal: dict[float, float] = field(default_factory=dict)

    @property
    def false_different(self) -> float:
        """The largest share that is called different where nothing is, or the wrong way round."""
        return max(self.different[1.0], *self.wrong_way.values())

    @property
    def wrong_equal(self) -> float:
        """The largest share that is called equal where the truth is outside the threshold."""
        return max(share for truth, share in self.equal.items() if truth * (1 + THRESHOLD) < 1)

    @property
    def held(self) -> bool:
        return max(self.false_different, self.wrong_equal) <= at_most(MAX_WRONG, self.trials)

    @property
    def cells(self) -> str:
        """The figures as cells of a table."""
        return " | ".join(
            f"{100 * value:.1f}"
            for value in (
                self.false_different,
                self.wrong_equal,
                *(self.different[truth] for truth in TRUTHS[1:]),
                self.equal[1.0],
            )
        )


def told(claims: Mapping[float, Sequence[Claim]]) -> Told:
    """Count the answers. More samples/s are better, so a ratio below 1 is worse."""
    found = Told(len(claims[1.0]))
    for truth, given in claims.items():
        right: tuple[bool | None, ...] = (True, False) if truth == 1 else (False,)
        different = [each for each in given if each.answer == "different"]
        found.different[truth] = sum(each.better in right for each in different) / found.trials
        found.wrong_way[truth] = len(different) / found.trials - found.different[truth]
        found.equal[truth] = _share(given, "equal")
    return found


def _share(claims: Sequence[Claim], answer: Answer) -> float:
    return sum(each.answer == answer for each in claims) / len(claims)


def compared(world: World, situation: Situation, *, trials: int = TRIALS) -> Told:
    """What ``compare`` tells of runs of this world."""
    runs, earlier = situation.runs, situation.earlier
    rng = np.random.default_rng((1, (*WORLDS, *WALKS).index(world), runs, earlier))
    values = medians(rng, world, trials, earlier + 2 * runs)
    known, both = np.split(values, (earlier,), axis=1)
    second = np.arange(2 * runs) >= runs
    if situation.in_turns:  # A B B A A B B A ...
        second = np.isin(np.arange(2 * runs) % 4, (1, 2))
    drifts = [drift(row) for row in known] if earlier else [None] * trials
    return told(
        {
            truth: [
                claim(
                    METRIC,
                    Sides(
                        candidate=(truth * row[second]).tolist(),
                        baseline=row[~second].tolist(),
                        drift=each,
                    ),
                    threshold=THRESHOLD,
                )
                for row, each in zip(both, drifts, strict=True)
            ]
            for truth in TRUTHS
        }
    )


def drift(values: Floats) -> Drift:
    """What is known from the medians of these runs."""
    return Drift(
        metric=METRIC,
        sd=float(np.log(values).std(ddof=1)),
        degrees=len(values) - 1,
        runs=len(values),
    )


MAX_ROUNDS = 20
PROMISES = 300

TURN_WORLDS = (
    World(cv=0.01),
    World(cv=0.03),
    World(cv=0.1),
    World(cv=0.05, correlation=0.5),
    World(cv=0.05, tails=3),
    World(cv=0.02, drift=0.02),
    World(cv=0.02, drift=0.03, walk=True),
)
"""Variants of a round are one repetition each: ``drift`` is that of one repetition to the next."""


@dataclass(frozen=True)
class InTurns:
    """What ``ab`` told, and how often it told a true 10 % within the rounds it had promised."""

    told: Told
    rounds: dict[float, float]  # the median number, by the true ratio
    promised: int  # trials in which the first rounds promised a number of rounds
    kept: int  # of these: told different, in the right direction, by another ``ab`` of so many

    @property
    def power(self) -> float:
        return self.kept / self.promised

    @property
    def held(self) -> bool:
        return self.told.held and self.power >= at_least(MIN_POWER, self.promised)

    @property
    def cells(self) -> str:
        rounds = " | ".join(f"{self.rounds[truth]:g}" for truth in (1.0, 0.9))
        return f"{self.told.cells} | {rounds} | {100 * self.power:.1f} of {self.promised}"


def in_turns(world: World, *, trials: int = TRIALS) -> InTurns:
    """What ``ab`` tells after at most ``MAX_ROUNDS`` rounds, each of which gives one ratio."""
    test = Sequential(MAX_ROUNDS, THRESHOLD)
    claims: dict[float, Sequence[Claim]] = {}
    rounds: dict[float, float] = {}
    for truth in TRUTHS:
        rng = np.random.default_rng((2, TURN_WORLDS.index(world)))
        series = block_ratios(rng, world, trials, MAX_ROUNDS, truth).tolist()
        taken = [next(n for n in test.looks if test.ends(logs[:n])) for logs in series]
        given = [
            test.claim(METRIC, logs[:n], higher_is_better=True)
            for logs, n in zip(series, taken, strict=True)
        ]
        claims[truth], rounds[truth] = given, float(np.median(taken))
    promised, kept = _promises(test, world)
    return InTurns(told(claims), rounds, promised, kept)


def _promises(test: Sequential, world: World) -> tuple[int, int]:
    """How often the first rounds say how many rounds tell a difference of the threshold.

    And how often another ``ab`` with so many rounds tells a true 10 %.
    """
    rng = np.random.default_rng((3, TURN_WORLDS.index(world)))
    first = block_ratios(rng, world, PROMISES, MIN_ROUNDS, 0.9).tolist()
    numbers = [test.rounds_for_threshold(logs) for logs in first]
    again = block_ratios(rng, world, PROMISES, LARGEST, 0.9).tolist()
    kept = 0
    for number, logs in zip(numbers, again, strict=True):
        if number is not None:
            other = Sequential(min(number, LARGEST), THRESHOLD)
            rounds = next(n for n in other.looks if other.ends(logs[:n]))
            found = other.claim(METRIC, logs[:rounds], higher_is_better=True)
            kept += found.better is False
    return sum(number is not None for number in numbers), kept


HISTORIES = 100
LENGTHS = (20, 40)

HISTORY_WORLDS = (
    World(cv=0.01, drift=0.02),
    World(cv=0.01, drift=0.05),
    World(cv=0.1, drift=0.03, correlation=0.5),
)


@dataclass(frozen=True)
class Changes:
    """Shares of histories with a change point.

    ``false``: where no level changed; ``found``: within one run of a step of 10 % in the middle;
    ``besides``: with another one, too.
    """

    trials: int
    false: float
    found: float
    besides: float

    @property
    def held(self) -> bool:
        return self.false <= at_most(MAX_WRONG, self.trials)

    @property
    def cells(self) -> str:
        return " | ".join(f"{100 * part:.1f}" for part in (self.false, self.found, self.besides))


def histories(world: World, runs: int, *, trials: int = HISTORIES) -> Changes:
    """What ``history`` finds in so many runs of this world."""
    rng = np.random.default_rng((4, HISTORY_WORLDS.index(world), runs))
    values = medians(rng, world, trials, runs)
    false = sum(bool(change_points(row)) for row in values.tolist())
    step = runs // 2
    values[:, step:] *= 0.9
    found = [[change.at for change in change_points(row)] for row in values.tolist()]
    right = [any(abs(at - step) <= 1 for at in places) for places in found]
    besides = sum(len(places) > 1 for places in found)
    return Changes(trials, false / trials, sum(right) / trials, besides / trials)
