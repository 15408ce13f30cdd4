"""Observers that tests give to what they watch."""

from __future__ import annotations

from collections.abc import Callable

from iobench.runner.progress import Observer


class OnSteps(Observer):
    """Calls a function a few times a second with the steps that are done."""

    def __init__(self, call: Callable[[int], object]) -> None:
        self._call = call

    def steps(self, done: int) -> None:
        self._call(done)
