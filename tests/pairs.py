"""Fewer cases than a cross product, and fewer in the fast tier than in all."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def pairs(*parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Cases for ``pytest.mark.parametrize``: one value of each parameter, in every two of them.

    For any two parameters, each value of the one comes with each value of the other in at least one
    case. Found greedily, always the same: the next case is the one of the whole product with the
    most couples that no case has yet.
    """
    whole = list(itertools.product(*(range(len(values)) for values in parameters)))
    missing = set().union(*map(_couples, whole))
    cases = []
    while missing:
        best = max(whole, key=lambda case: len(_couples(case) & missing))
        missing -= _couples(best)
        cases.append(best)
    return [
        tuple(values[index] for values, index in zip(parameters, case, strict=True))
        for case in sorted(cases)
    ]


def one_of(number: int, cases: Iterable[Any]) -> list[Any]:
    """Cases for ``pytest.mark.parametrize``: of so many one is fast, and the others are slow."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.slow] if place % number else [],
        )
        for place, case in enumerate(cases)
    ]


def _couples(case: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    """Two values each, or the only one."""
    return set(itertools.combinations(enumerate(case), min(2, len(case))))
