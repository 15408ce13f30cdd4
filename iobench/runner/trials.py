"""Variants that are measured in turns: the one loop for all that is compared, and all seeds.

Beside it is the one search for the largest load that passes.

A variant is a setting, one of ``ab``'s two, a point of a sweep, a repetition or the same without
one stage. Storage and machines drift, so nothing is measured several times in a row: each round has
a trial of every variant, and the order rotates from round to round (A B C, B C A, ...), so that a
drift affects all alike. What a trial measures, and when to stop, is the caller's. An interrupt
passes: what was measured before it has been kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

from ..base.errors import HostLostError, InterruptedRun, IobenchError, TargetLostError
from ..judge.figures.search import edge
from ..record.ab import MAX_ROUNDS

V = TypeVar("V")

Kind = Literal[
    "repetition", "pilot", "window", "ablation", "confirm", "find-max", "engine", "recall"
]

_SEEDS: dict[Kind, tuple[int, int, int]] = {
    "repetition": (0, 1, 0),
    "engine": (4_021, 0, 0),
    "find-max": (1_000, 1, 1_000_003),
    "window": (104_729, 104_729, 0),
    "confirm": (1_299_709, 1, 0),
    "pilot": (32_452_843, 0, 0),
    "recall": (49_979_687, 1, 0),
    "ablation": (15_485_863, 1, 15_485_863),
}
"""Distance of a trial's seed from the run's: of the first one, of the next number, and of the next
series. They are so far apart that no two trials of a run read in the same order."""

WARM_UP = MAX_ROUNDS
"""The number of the repetition that is not counted: none that is counted reads in its order."""


def seed_of(run_seed: int, kind: Kind, number: int = 0, *, series: int = 0) -> int:
    """The seed of a trial."""
    first, each, apart = _SEEDS[kind]
    return run_seed + first + each * number + apart * series


def rounds(count: int) -> Callable[[int, Sequence[object]], bool]:
    """Return a ``stop`` after so many rounds."""
    return lambda number, active: number >= count


def spread(count: int, repetitions: int) -> tuple[int, ...]:
    """Numbers of ``count`` repetitions, evenly spread; the first one is always among them."""
    if count == 1:
        return (0,)
    return tuple(round(place * (repetitions - 1) / (count - 1)) for place in range(count))


def rotated(number: int, variants: Sequence[V]) -> Sequence[V]:
    """The variants in the order of this round: each is as often the first one."""
    first = number % len(variants) if variants else 0
    return [*variants[first:], *variants[:first]]


def take_turns(
    variants: Sequence[V],
    measure: Callable[[V, int], None],
    stop: Callable[[int, Sequence[V]], bool],
    *,
    order: Callable[[int, Sequence[V]], Iterable[V]] = rotated,
    is_active: Callable[[V], bool] = lambda variant: True,
    fail: Callable[[V, IobenchError], None] | None = None,
    completed: Callable[[int], None] = lambda number: None,
) -> None:
    """Measure every active variant once a round, until ``stop`` says so or none is active.

    ``measure(variant, number)``: one trial, which keeps what it found; rounds are numbered from 0.
    ``stop(number, active)``: whether this round is not taken any more.
    ``order(number, active)``: who is measured in this round; it may decide on each variant when the
    ones before it have been measured.
    ``is_active``: whether a variant has neither failed nor been dropped.
    ``fail``: keeps why a variant's trial failed, after which the variant is not active, or raises
    the error again; without it, the first failure ends all.
    ``completed``: called with the number of each complete round.

    InterruptedRun, TargetLostError (another process has what was measured) and HostLostError (no
    host goes on alone) are always raised.
    """
    number = 0
    while (active := [each for each in variants if is_active(each)]) and not stop(number, active):
        for variant in order(number, active):
            if not is_active(variant):
                continue
            try:
                measure(variant, number)
            except IobenchError as error:
                if fail is None or isinstance(error, _ALWAYS):
                    raise
                fail(variant, error)
        completed(number)
        number += 1


_ALWAYS = (InterruptedRun, TargetLostError, HostLostError)


STEP = 2
"""Loads are doubled until one fails."""

TRIALS = 3
"""Trials of each load at the edge; the most of them decide."""


class LoadSearch:
    """Loads from ``least`` to ``most``: doubled, then bisected, then tried again in turns.

    One trial may be disturbed, so the loads at the edge, the largest that passes and the smallest
    that fails, are tried several times. Where most of their trials disagree with the first one, the
    search goes on. ``refused``: why a load can't be tried; what is below it can.
    """

    def __init__(self, *, least: float, most: float, first: float) -> None:
        self.least, self.most, self._first = least, most, min(max(first, least), most)
        self.trials: dict[float, list[bool]] = {}
        self.refused: dict[float, str] = {}

    def between(self, low: float | None, high: float) -> float | None:
        """A load between one that passes, or none, and one that fails; None: they are close."""
        raise NotImplementedError

    def tried(self, load: float, *, passed: bool) -> None:
        """Hear what became of a trial."""
        self.trials.setdefault(load, []).append(passed)

    def next_load(self) -> float | None:
        """The load of the next trial; None: the search has ended."""
        low, high = self.edge()
        if high is not None:
            load = self.between(low, high)
        elif low is not None:
            load = min(self.most, STEP * low) if low < self.most else None
        else:
            load = self._first
        if load is not None:
            return load
        edge = [each for each in (low, high) if each is not None and each not in self.refused]
        few = min(edge, key=lambda each: len(self.trials[each]), default=None)
        return few if few is not None and len(self.trials[few]) < TRIALS else None

    def edge(self) -> tuple[float | None, float | None]:
        """The largest load that passes below every one that fails, and the smallest that fails."""
        return edge(self.trials, self.refused)
