"""What a verb that measures is given beside its plan: its options, and an observer.

Some options all verbs share, and each has its own. The observer is told how far the work is; the
terminal's is in ``cli``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ..judge.statistics import NOISE
from ..record.verdict import Advice
from .budget import Budget
from .checkpoint_plan import StudyPlan

if TYPE_CHECKING:
    from ..record.ab import AbRecord
    from ..record.run import RunRecord
    from .counters import Counters
    from .plan import Plan

USUAL_ROUNDS = 20
"""Rounds of ``ab`` at most, unless the user says otherwise: they tell 10 % at a spread of 5 %."""


@dataclass(frozen=True, kw_only=True)
class VerbOptions:
    """What every verb that measures is asked for. ``budget``: for all of it."""

    results: Path = Path("results")
    rules: str = "quick"
    command: tuple[str, ...] = ()
    budget: Budget = field(default_factory=Budget)
    break_lock: bool = False  # take over locks whose holders are on other hosts and dead


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """What to try, and for how long.

    ``advice``: of an earlier run, whose id is ``by``; None: this run's own. ``budget_s``: no round
    begins that would end later; None: ``usual_s`` (None: as long as the repetitions took), and at
    least ``confirm.MIN_ROUNDS``.
    """

    advice: tuple[Advice, ...] | None = None
    by: str = ""
    usual_s: float | None = None
    budget_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a run saves while it loads, and how often.

    ``plan.spec.ranks`` is the run's number of accelerators: each holds its share of the state.
    """

    plan: StudyPlan
    every: int  # steps between two saves


@dataclass(frozen=True, kw_only=True)
class Options(VerbOptions):
    """Options of a run. What is not given is fitted to its budget."""

    calibration_s: float = 3.0  # for each ceiling; 0 leaves calibration out
    find_max: bool = False
    confirm: Confirm | None = None  # try advice in turns with today's settings
    ablations: bool = True
    # Seconds for all ablations together; None: see ``plan_turns``.
    ablations_s: float | None = None
    began_s: float | None = None  # when the process began, by ``time.monotonic()``
    mixed: Mixed | None = None  # save checkpoints while loading
    prove: bool = True  # for a library's loader: check what it delivers before it is measured

    @property
    def confirms(self) -> bool:
        return self.confirm is not None

    @property
    def later(self) -> int:
        """What comes after the repetitions, and shares the time that is left with ablations."""
        return self.confirms + self.find_max


@dataclass(frozen=True, kw_only=True)
class StudyOptions(VerbOptions):
    """Options of a study of checkpoints.

    No save or restore begins for which the budget has no time, but one save is made.
    """

    keep_data: bool = False


@dataclass(frozen=True, kw_only=True)
class AbOptions(VerbOptions):
    """Options of a comparison in turns."""

    metric: str = "samples_per_s"
    threshold: float = NOISE
    max_rounds: int = USUAL_ROUNDS


@dataclass(frozen=True, kw_only=True)
class SweepOptions(VerbOptions):
    """Limits and options of a sweep.

    ``data_bytes``: of the datasets that lie there at a time; None: no limit. ``keep_data`` leaves
    the datasets for another sweep.
    """

    data_bytes: int | None = None
    keep_data: bool = False
    drop: bool = True  # drop points that are clearly dominated


@dataclass(frozen=True, kw_only=True)
class LoadOptions(VerbOptions):
    """Options of loads of a model.

    ``copy_to``: a directory on local disk, to which the files are copied in each round, to learn
    whether that pays. No trial begins for which the budget has no time, but the first one.
    """

    copy_to: str | None = None


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

    def shortened(self, steps: int, whole: int) -> None:
        """Each repetition of two variants has so many steps, for want of time for all."""

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
