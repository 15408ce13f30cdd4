"""Observers of a run's progress. The terminal's version is in ``cli``."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


class Progress(Protocol):
    def phase(self, title: str) -> None:
        """A new part of the run begins."""

    def steps(self, done: int) -> None:
        """``done``: steps of all ranks so far in this part."""


@runtime_checkable
class Informed(Protocol):
    """A ``Progress`` that also hears what tells how long the rest of the run takes."""

    def rate(self, samples_per_s: float) -> None:
        """The ceilings are measured, and this is the lowest: what all stages may reach together."""

    def finished(self, part: str, seconds: float) -> None:
        """A turn of a part has ended; ``part`` is its key in the record's ``timings``."""


class Silent:
    def phase(self, title: str) -> None:
        return

    def steps(self, done: int) -> None:
        return
