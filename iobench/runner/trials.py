"""Variants that are measured in turns: the one loop for all that is compared.

A variant is a setting, a side of ``ab``, a point of a sweep. Storage and machines drift, so nothing
is measured several times in a row: each turn measures every variant once, and the order rotates
from turn to turn (A B C, B C A, ...), so that a drift affects all alike. What a trial measures, and
when to stop, is the caller's. An interrupt passes: what was measured before it has been kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ..errors import HostLostError, InterruptedRun, IobenchError, TargetLostError

V = TypeVar("V")


def rounds(count: int) -> Callable[[int, Sequence[object]], bool]:
    """Return a ``stop`` after so many turns."""
    return lambda turn, active: turn >= count


def take_turns(
    variants: Sequence[V],
    measure: Callable[[V, int], None],
    stop: Callable[[int, Sequence[V]], bool],
    *,
    is_active: Callable[[V], bool] = lambda variant: True,
    fail: Callable[[V, IobenchError], None] | None = None,
    turned: Callable[[int], None] = lambda turn: None,
) -> None:
    """Measure every active variant once a turn, until ``stop`` says so or none is active.

    ``measure(variant, turn)``: one trial, which keeps what it found; turns are numbered from 0.
    ``stop(turn, active)``: whether this turn is not taken any more.
    ``is_active``: whether a variant has neither failed nor been dropped.
    ``fail``: keeps why a variant's trial failed, after which the variant is not active, or raises
    the error again; without it, the first failure ends all.
    ``turned``: called with the number of each complete turn.

    InterruptedRun, TargetLostError (another process has what was measured) and HostLostError (no
    host goes on alone) are always raised.
    """
    turn = 0
    while (active := [each for each in variants if is_active(each)]) and not stop(turn, active):
        first = turn % len(active)
        for variant in active[first:] + active[:first]:
            if not is_active(variant):
                continue
            try:
                measure(variant, turn)
            except IobenchError as error:
                if fail is None or isinstance(error, _ALWAYS):
                    raise
                fail(variant, error)
        turned(turn)
        turn += 1


_ALWAYS = (InterruptedRun, TargetLostError, HostLostError)
