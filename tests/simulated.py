"""Runs that are made of random numbers, with a known truth: what claims about runs are tested with.

A run has a level, and its repetitions lie around it. The levels of equal runs differ (drift:
another hour, another neighbour), and so do the repetitions within a run (noise). Both are relative:
the logarithms are normal, or heavy-tailed. All arrays have one row for each trial, so that many
comparisons are simulated at once. A seeded generator makes each figure the same on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from iobench.record.run import TrainingRecord

from .unit.conftest import build_run

Floats = npt.NDArray[np.float64]

RATE = 1000.0
"""Samples/s of the baseline."""

FIRST = datetime(2026, 1, 1, tzinfo=UTC)

Z_999 = 3.0902
"""Quantile of the normal distribution that is passed with a probability of 0.1 %."""


@dataclass(frozen=True)
class World:
    """How equal runs differ.

    ``cv``: standard deviation of the logarithm of a repetition within its run. ``correlation``:
    of neighbouring repetitions (AR(1)). ``drift``: standard deviation of the logarithm of a run's
    level, or of its step from one run to the next where it is a ``walk``. ``tails``: degrees of
    freedom of Student's t for the noise within a run; 0: normal.
    """

    cv: float
    drift: float = 0.0
    correlation: float = 0.0
    walk: bool = False
    tails: int = 0
    repetitions: int = 5

    def __str__(self) -> str:
        return f"{self.of_turns}, {self.repetitions} repetitions"

    @property
    def of_turns(self) -> str:
        """The same in words, where a run is one repetition."""
        words = [f"noise {100 * self.cv:g} %"]
        if self.correlation:
            words.append(f"AR(1) {self.correlation:g}")
        if self.tails:
            words.append(f"tails t({self.tails})")
        if self.drift:
            words.append(f"{'random walk' if self.walk else 'drift'} {100 * self.drift:g} %")
        return ", ".join(words)


def noise(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    *,
    sd: float,
    correlation: float = 0.0,
    tails: int = 0,
) -> Floats:
    """Logarithms with the standard deviation ``sd``; neighbours of the last axis are correlated."""
    if tails:
        fresh = rng.standard_t(tails, shape) / np.sqrt(tails / (tails - 2))
    else:
        fresh = rng.standard_normal(shape)
    if correlation:
        fresh[..., 1:] *= np.sqrt(1 - correlation**2)
        for at in range(1, shape[-1]):
            fresh[..., at] += correlation * fresh[..., at - 1]
    return sd * fresh


def levels(rng: np.random.Generator, world: World, trials: int, runs: int) -> Floats:
    """(trials, runs): the logarithm of each run's level, in the order of time."""
    drawn = world.drift * rng.standard_normal((trials, runs))
    return np.cumsum(drawn, axis=1) if world.walk else drawn


def repetitions(rng: np.random.Generator, world: World, trials: int, runs: int) -> Floats:
    """(trials, runs, repetitions): the rate of each repetition, in samples/s."""
    shape = (trials, runs, world.repetitions)
    within = noise(rng, shape, sd=world.cv, correlation=world.correlation, tails=world.tails)
    return RATE * np.exp(levels(rng, world, trials, runs)[..., None] + within)


def medians(rng: np.random.Generator, world: World, trials: int, runs: int) -> Floats:
    """(trials, runs): the median rate of each run, in samples/s."""
    return np.median(repetitions(rng, world, trials, runs), axis=2)


def block_ratios(
    rng: np.random.Generator, world: World, trials: int, blocks: int, ratio: float = 1.0
) -> Floats:
    """(trials, blocks): the logarithm of B over A, whose true value is log(``ratio``).

    Turns of one repetition are taken as A B B A A B B A ...; each two are a block. Here ``drift``
    is that of one turn to the next.
    """
    turns = 2 * blocks
    rates = levels(rng, world, trials, turns) + noise(
        rng, (trials, turns), sd=world.cv, correlation=world.correlation, tails=world.tails
    )
    later = rates[:, 1::2] - rates[:, ::2]
    later[:, 1::2] *= -1  # B comes first in every second block
    return later + np.log(ratio)


def record(values: Sequence[float], number: int = 0, **document: Any) -> TrainingRecord:
    """A run with these repetitions (samples/s), made ``number`` hours after the first one."""
    created = (FIRST + timedelta(hours=number)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return build_run(
        measured=[float(value) for value in values],
        repetitions=len(values),
        concluded=False,
        **{"run_id": f"run-{number:03d}", "created": created} | document,
    )


def at_most(bound: float, trials: int) -> float:
    """The largest share of ``trials`` that a true rate of ``bound`` exceeds by chance in at most
    0.1 % of simulations (normal approximation of the binomial, with its correction for steps).
    """
    return bound + Z_999 * float(np.sqrt(bound * (1 - bound) / trials)) + 0.5 / trials


def at_least(bound: float, trials: int) -> float:
    """The smallest share of ``trials`` below which a true rate of ``bound`` falls as rarely."""
    return 1 - at_most(1 - bound, trials)
