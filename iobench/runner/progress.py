"""Observers of a run's progress. The terminal's version is in ``cli``."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def phase(self, title: str) -> None:
        """A new part of the run begins."""

    def steps(self, done: int) -> None:
        """``done``: steps of all ranks so far in this part."""


class Silent:
    def phase(self, title: str) -> None:
        return

    def steps(self, done: int) -> None:
        return
