"""The rounds of a run: each repetition, the same without one stage each, and the ceilings again.

They take turns, so that what changes during a run changes all of them. A budget decides how many
rounds there are, and what is left out of the later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from ..base.errors import IobenchError
from ..record.run import TrainingRecord
from ..record.training import Repetition
from ..record.verdict import AblatedStage
from .ablations import PART, Ablations
from .cache import Others
from .calibration.bench import Bench
from .calibration.ceilings import ENTRIES, CeilingEntry, measure_again, plan_windows, worth_again
from .checkpoint import Saver
from .doubles import DOUBLES
from .estimate import CeilingTimes
from .fit import MAX_REPETITIONS, MIN_REPETITIONS, STAGES, repetitions_again
from .options import Options, timed
from .repetition import measure, repetition_phase
from .results import add_loader_facts, add_work
from .trials import take_turns

log = logging.getLogger(__name__)

SWITCHED_OFF = "ablations were switched off (--no-ablations)"

_REPETITION = "repetition"
"""Its name in the budget."""


@dataclass(frozen=True, kw_only=True)
class RoundVariant:
    """What is measured once a round. ``part``: its key in the record's timings.

    ``title``: what is told of it, for the number of a round. ``stage``: which stage it leaves out.
    """

    part: str
    title: Callable[[int], str]
    measure: Callable[[int], None]
    stage: AblatedStage | None = None


@dataclass(kw_only=True)
class Rounds:
    """All rounds of a run, which fill in its record ``doc``."""

    bench: Bench
    doc: TrainingRecord
    options: Options
    others: Others
    saver: Saver | None

    def __post_init__(self) -> None:
        job, self.budget = self.doc.job, self.options.budget
        self.windows = plan_windows(self.options.calibration_s, self.bench.plan.repetitions)
        self.ablations: Ablations | None = None
        job.no_ablations = SWITCHED_OFF
        if self.options.ablations:
            self.ablations = Ablations(
                bench=self.bench,
                job=job,
                saver=self.saver,
                budget=self.budget,
                budget_s=self.options.ablations_s,
                for_them_s=self._for_ablations_s,
            )
        self.repetition = RoundVariant(part="measure", title=self._title, measure=self._repeat)
        self.without = {double.stage: self._without(double.stage) for double in DOUBLES}
        self.quiet = RoundVariant(
            part="measure",
            title=lambda number: "a repetition without checkpoints",
            measure=self._without_checkpoints,
        )
        self.left_out: Sequence[AblatedStage] = ()

    def run(self) -> None:
        """Make all rounds."""
        take_turns(
            [self.repetition, *self.without.values(), self.quiet],
            self._measure,
            lambda number, active: not self._has_repetition(number),
            order=self._order,
            fail=self._fail,
        )
        made, planned = len(self.doc.job.repetitions), self.bench.plan.repetitions
        if made < planned:
            log.info("there was time for %d of %d repetitions", made, planned)

    def _order(self, number: int, active: Sequence[RoundVariant]) -> Iterable[RoundVariant]:
        """The repetition is the first of each round: what follows depends on how long it took."""
        yield self.repetition
        for stage in self.left_out:
            if self.ablations is not None and self.ablations.has_time(stage, number):
                yield self.without[stage]
        if number in self.windows.after and self._has_windows(number):
            for entry in [each for each in ENTRIES if worth_again(self.bench, each)]:
                yield self._again(entry)
        saves_left_out = self.ablations is not None and self.ablations.leaves_saves_out
        has_time = self.budget.fits(self._repetition_s)
        if self.saver and number == 0 and not saves_left_out and has_time:
            yield self.quiet

    def _measure(self, variant: RoundVariant, number: int) -> None:
        with timed(self.doc, variant.part, self.bench.observer, variant.title(number)):
            variant.measure(number)

    def _fail(self, variant: RoundVariant, error: IobenchError) -> None:
        """A stage that can't be left out is not measured; without the others there is no run."""
        if variant.stage is None or self.ablations is None:
            raise error
        self.ablations.fail(variant.stage, error)
        self.others.look()

    def _title(self, number: int) -> str:
        return f"repetition {number + 1} of {max(number + 1, self.bench.plan.repetitions)}"

    def _repeat(self, number: int) -> None:
        job, plan = self.doc.job, self.bench.plan
        with (
            self.budget.trial(_REPETITION),
            self.saver.during() if self.saver else nullcontext() as saving,
        ):
            phase = repetition_phase(plan, number, saving=saving)
            outcome = measure(self.bench, phase, job.repetitions.append)
            add_loader_facts(self.doc, outcome.loader)
            job.trained = outcome.steps
            add_work(self.doc, plan.workload.accelerator)
            self.others.look()
        took_s = self.budget.last_s(_REPETITION)
        if number == 0:
            self._plan_again(took_s)
        if self.ablations is not None:
            self.left_out = self.ablations.begin(number, outcome, took_s)

    def _without(self, stage: AblatedStage) -> RoundVariant:
        def leave_out(number: int) -> None:
            assert self.ablations is not None
            self.ablations.run(stage, number)
            self.others.look()

        return RoundVariant(
            part=PART,
            title=lambda number: f"{self._title(number)}, without {stage}",
            measure=leave_out,
            stage=stage,
        )

    def _again(self, entry: CeilingEntry) -> RoundVariant:
        return RoundVariant(
            part="calibrate",
            title=lambda number: f"ceiling: {entry.title}, again",
            measure=lambda number: measure_again(self.bench, entry, self.windows.later_s),
        )

    def _without_checkpoints(self, number: int) -> None:
        """Measure a repetition without checkpoints, with which the others are compared."""
        job = self.doc.job

        def keep(repetition: Repetition) -> None:
            job.quiet = repetition

        phase = repetition_phase(self.bench.plan, 0, name="quiet")
        measure(self.bench, phase, keep, keep_interrupted=False)

    # What a budget still has time for

    @property
    def _repetition_s(self) -> float:
        return self.budget.longest_s(_REPETITION)

    def _plan_again(self, took_s: float) -> None:
        """Plan the number of repetitions anew, now that it is known what one takes."""
        if not self.budget.fitted("repetitions"):
            return
        plan = self.bench.plan
        count = repetitions_again(
            plan.repetitions,
            1,
            left_s=self.budget.left_s,
            repetition_s=took_s,
            round_s=STAGES * self.options.ablations * took_s,
        )
        self.bench.plan = replace(plan, repetitions=count)

    def _has_repetition(self, number: int) -> bool:
        """Whether repetition ``number`` is made."""
        planned = self.bench.plan.repetitions
        if not self.budget.fitted("repetitions"):
            return number < planned
        filled = self.budget.fitted("ablations") and not self.budget.usual
        more = filled and not self.options.later
        if number >= planned and not more:
            return False
        # More than planned are made where time is left for a whole one.
        needed = (0.95 if number < planned else 1.05) * self._repetition_s
        return not number or (number < MAX_REPETITIONS and self.budget.fits(needed))

    def _has_windows(self, number: int) -> bool:
        """Whether there is time for the ceilings' windows after repetition ``number``."""
        if not self.budget.fitted("repetitions"):
            return True
        fewest = min(self.bench.plan.repetitions, MIN_REPETITIONS) - 1 - number
        rest_s = max(0, fewest) * self._repetition_s
        return self.budget.fits(self._windows_s(number), keeping_s=rest_s)

    def _windows_s(self, number: int) -> float:
        """Seconds of all windows of the ceilings from repetition ``number`` on."""
        if self.options.calibration_s <= 0:
            return 0.0
        plan = self.bench.plan
        times = CeilingTimes(plan=plan)
        return times.later_s(self.options.calibration_s, plan.repetitions, since=number)

    def _for_ablations_s(self, number: int) -> float:
        """Seconds for ablations after repetition ``number``, while others are kept for the rest.

        The trial of advice, and the search for the largest number, get as much as is left then.
        """
        later = max(0, self.bench.plan.repetitions - 1 - number)
        rest_s = later * self._repetition_s + self._windows_s(number)
        left_s = max(0.0, self.budget.left_s - rest_s)
        return left_s / (1 + self.options.later)
