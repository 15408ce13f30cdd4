"""Observers for the tests."""

from __future__ import annotations

from collections.abc import Callable

from iobench.runner.loading import PhaseContext
from iobench.runner.options import Observer


class OnSteps(Observer):
    """Calls a function a few times a second with the steps that are done."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self._call = call

    def steps(self, done: int) -> None:
        self._call(done)


def on_steps(call: Callable[[int], object]) -> PhaseContext:
    """The context of a phase whose observer is ``OnSteps``."""
    return PhaseContext(observer=OnSteps(call))
