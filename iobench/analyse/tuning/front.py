"""The Pareto front: what no other point beats in everything at once."""

from __future__ import annotations

from collections.abc import Sequence

Costs = Sequence[float | None]
"""What a point costs in each respect: less is better. None: not known."""


def front(costs: Sequence[Costs]) -> list[bool]:
    """For each point whether it is on the front: no other is nowhere worse and somewhere better.

    A cost that is unknown for both of two points is left out between them. Where it is unknown for
    one of them only, neither beats the other.
    """
    return [not any(_beats(other, mine) for other in costs) for mine in costs]


def _beats(one: Costs, other: Costs) -> bool:
    better = False
    for mine, theirs in zip(one, other, strict=True):
        if mine is None and theirs is None:
            continue
        if mine is None or theirs is None or mine > theirs:
            return False
        better = better or mine < theirs
    return better
