"""The observer of a verb: it is told how far the work is. The terminal's observer is in ``cli``."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the terminal's observer is imported with the help of a verb
    from ..record.ab import AbRecord
    from ..record.run import RunRecord
    from .counters import Counters
    from .options import Options
    from .plan import Plan

log = logging.getLogger(__name__)


class Observer:
    """Hears how far the work is, and does nothing: override what is to be shown."""

    def phase(self, title: str) -> None:
        """A new part of the work begins."""

    def detail(self, text: str) -> None:
        """How far this part is."""

    def note(self, line: str) -> None:
        """Something has happened that stays worth knowing."""

    def steps(self, done: int) -> None:
        """``done``: steps of each rank so far in this part, on average: plans count as well."""

    def watch(self, counters: Counters) -> None:
        """A phase begins, and its ranks count here what they do."""

    def expect(self, seconds: float | None, *, more: bool = False) -> None:
        """All that is left should take so long from now on. ``more``: or longer; None: unknown."""

    def rate(self, samples_per_s: float) -> None:
        """The ceilings are measured, and this is the lowest: what all stages may reach together."""

    def fitted(self, plan: Plan, options: Options) -> None:
        """These are the plan and the options of a run with a budget, whose pilot has ended."""

    def finished(self, part: str, seconds: float) -> None:
        """A trial of a part has ended; ``part`` is its key in the record's ``timings``."""

    def planned(self, record: AbRecord, round_s: float) -> None:
        """Both variants are warm, and a round of the two takes about ``round_s``."""

    def round_taken(self, record: AbRecord) -> None:
        """A round of two variants is complete; it is the last one of ``record``."""


@contextmanager
def timed(doc: RunRecord, name: str, observer: Observer, title: str) -> Iterator[None]:
    """Run the body as a part of the run, and add its time to ``doc.timings``."""
    started = time.monotonic()
    observer.phase(title)
    log.info("%s: %s", name, title)
    try:
        yield
    finally:
        took = time.monotonic() - started
        doc.timings[name] = doc.timings.get(name, 0.0) + took
        observer.finished(name, took)
        log.info("%s: %s took %.3f s", name, title, took)
