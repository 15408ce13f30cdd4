"""Observers of a run's progress. The terminal's version is in ``cli``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from ..schema.record import TrainingRecord
from .counters import Counters

log = logging.getLogger(__name__)


class Progress(Protocol):
    def phase(self, title: str) -> None:
        """A new part of the run begins."""

    def steps(self, done: int) -> None:
        """``done``: steps of each rank so far in this part, on average: plans count as well."""


@runtime_checkable
class Informed(Protocol):
    """A ``Progress`` that also hears what tells how long the rest of the run takes."""

    def rate(self, samples_per_s: float) -> None:
        """The ceilings are measured, and this is the lowest: what all stages may reach together."""

    def finished(self, part: str, seconds: float) -> None:
        """A turn of a part has ended; ``part`` is its key in the record's ``timings``."""


@runtime_checkable
class Watching(Protocol):
    """A ``Progress`` that also reads the counters of the ranks."""

    def watch(self, counters: Counters) -> None:
        """A phase begins, and its ranks count here what they do."""


@runtime_checkable
class Expecting(Protocol):
    """A ``Progress`` that is told how long all that is left should take."""

    def expect(self, seconds: float | None, *, more: bool = False) -> None:
        """``seconds`` from now on; None: not known. ``more``: it may be more than that."""


def watcher(progress: Progress) -> Callable[[Counters], None] | None:
    """The function of ``progress`` that gets the counters of a phase, if it wants them."""
    return progress.watch if isinstance(progress, Watching) else None


def expect(progress: Progress, seconds: float | None, *, more: bool = False) -> None:
    """Tell ``progress`` how long the rest should take, if it wants to know; see Expecting."""
    if isinstance(progress, Expecting):
        progress.expect(seconds, more=more)


@contextmanager
def timed(doc: TrainingRecord, name: str, progress: Progress, title: str) -> Iterator[None]:
    """Run the body as a part of the run, and add its time to ``doc.timings``."""
    started = time.monotonic()
    progress.phase(title)
    log.info("%s: %s", name, title)
    try:
        yield
    finally:
        took = time.monotonic() - started
        doc.timings[name] = doc.timings.get(name, 0.0) + took
        if isinstance(progress, Informed):
            progress.finished(name, took)
        log.info("%s: %s took %.3f s", name, title, took)


class Silent:
    def phase(self, title: str) -> None:
        return

    def steps(self, done: int) -> None:
        return
