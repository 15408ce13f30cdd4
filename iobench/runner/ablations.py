"""Ablations: a repetition with one stage replaced by a double that costs nothing.

They take turns with the repetitions (see ``rounds``), so that a drift of the machine or the storage
hits all alike. What a stage costs is then the ratio of two rates of the same round. Each ablation
should follow as many repetitions as possible; it needs a time that is long enough for a rate, and
is never longer than a repetition.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from ..base.interrupts import defer_interrupts
from ..base.units import format_duration
from ..judge.figures.ablations import (
    FILL,
    how_of,
    how_without,
    phase_of,
    round_rates,
    steady_rate,
    with_gains,
    without_fill,
)
from ..judge.figures.events import Events
from ..judge.figures.ranktime import starts_left_out
from ..record.training import Repetition, TrainingRun
from ..record.verdict import AblatedStage, Ablation, AblationRound
from .budget import Budget
from .calibration.bench import Bench
from .checkpoint import Saver
from .doubles import DOUBLES, Double, by_likelihood, how_left_out, likely
from .phase import FEW_ROUNDS, MIN_ROUNDS, Outcome, Phase, PhaseInterrupted, Saving
from .repetition import measure, repetition_phase
from .trials import rotated, seed_of, spread

log = logging.getLogger(__name__)

TOO_EARLY = "the run ended before the first ablation"

PART = "ablations"
"""Their key in a record's timings, and in the budget."""

MIN_S = 1.0
"""A rate over a shorter time says little, unless a whole repetition is shorter."""

USUAL_ROUNDS = 3
"""Rounds that the default budget has time for: an interval from fewer of them is far too wide."""

_ROUNDS_OF_WORKERS = 4
"""Rounds of all workers that an ablation needs: one of them is the fill."""

_EPOCHS = 4
"""Fewer epochs may end before the time does, if an epoch is short."""

_OVERRUN, _OVERRUN_OF_BUDGET = 2.0, 1.25
"""How much longer than planned the ablations may take; where a budget was given, it is less."""

_TOO_SHORT = (
    "the time of {budget} for ablations is too short for {what}: raise --ablations or --budget"
)


@dataclass(frozen=True, kw_only=True)
class AblationLength:
    """What a repetition took, in seconds.

    ``loading_s``: its epochs. ``fixed_s``: all the rest, such as processes that start and a page
    cache that is emptied. ``least_s``: what a rate needs: some rounds of all workers, and a
    checkpoint where there are some.
    """

    loading_s: float
    fixed_s: float
    least_s: float

    @property
    def shortest_s(self) -> float:
        """The least time of loading for an ablation."""
        return min(self.loading_s, max(MIN_S, self.least_s))


@dataclass(frozen=True, kw_only=True)
class AblationPlan:
    """After each of the repetitions ``rounds``, all ``stages`` are left out once each.

    Each takes ``seconds`` of loading. ``left_out``: why other stages are not measured. No round
    begins that would end after ``limit_s`` seconds of ablations: those with slow batches take
    longer than planned. ``one_by_one``: the time is too short for all that may limit the run, so
    each of them is left out only if there is time, the likeliest first.
    """

    rounds: tuple[int, ...] = ()
    stages: tuple[AblatedStage, ...] = ()
    seconds: float = 0.0
    each_s: float = 0.0  # with its start, where they are left out one by one
    limit_s: float = 0.0
    left_out: dict[AblatedStage, str] = field(default_factory=dict)
    one_by_one: bool = False

    def order(self, number: int, *, further: bool = False) -> Sequence[AblatedStage]:
        """The stages after repetition ``number``; the first one moves on from round to round.

        ``further``: also after repetitions that were not planned, which follow the last round.
        """
        if self.one_by_one:
            return self.stages
        if number in self.rounds:
            return rotated(self.rounds.index(number), self.stages)
        beyond = further and self.rounds and number > self.rounds[-1]
        return rotated(number, self.stages) if beyond else ()


def plan_ablations(
    stages: Sequence[AblatedStage],
    *,
    repetitions: int,
    length: AblationLength,
    budget_s: float | None,
    most_s: float = math.inf,
) -> AblationPlan:
    """Divide the time; ``stages`` are in the order of importance.

    Without a budget, all ablations together take as long as the repetitions together, or for
    USUAL_ROUNDS rounds of the shortest ones if that is more, but at most ``most_s``. With one
    that is too small, fewer rounds are taken, and then the least important stages are left out.
    """
    if not stages or length.loading_s <= 0:
        return AblationPlan()
    overrun = _OVERRUN_OF_BUDGET
    if budget_s is None:
        overrun = _OVERRUN
        together = repetitions * (length.loading_s + length.fixed_s)
        shortest = len(stages) * (length.shortest_s + length.fixed_s)
        budget_s = min(max(together, min(repetitions, USUAL_ROUNDS) * shortest), most_s)
    budget = format_duration(budget_s)
    for count in range(len(stages), 0, -1):
        for rounds in range(repetitions, 0, -1):
            seconds = budget_s / (rounds * count) - length.fixed_s
            if seconds < length.shortest_s - 1e-9:
                continue
            why = _TOO_SHORT.format(budget=budget, what="it")
            return AblationPlan(
                rounds=spread(rounds, repetitions),
                stages=tuple(stages[:count]),
                seconds=min(seconds, length.loading_s),
                limit_s=budget_s * overrun,
                left_out=dict.fromkeys(stages[count:], why),
            )
    return AblationPlan(
        left_out=dict.fromkeys(stages, _TOO_SHORT.format(budget=budget, what="any of them"))
    )


@dataclass(kw_only=True)
class Ablations:
    """The ablations of a run.

    Call ``begin`` after each repetition, and ``run`` for each stage that it names. Both keep the
    job's record up to date. ``budget_s``: the time that was asked for, if it is not fitted to the
    budget. ``for_them_s``: what a budget has for them after a repetition.
    """

    bench: Bench
    job: TrainingRun
    saver: Saver | None
    budget: Budget
    budget_s: float | None
    for_them_s: Callable[[int], float]
    plan: AblationPlan | None = None

    def __post_init__(self) -> None:
        self.fitted = self.budget.fitted("ablations")
        self.doubles = {double.stage: double for double in DOUBLES}
        self._base: Events | None = None
        self._failed: set[AblatedStage] = set()
        self.job.no_ablations = TOO_EARLY

    def begin(self, number: int, outcome: Outcome, took_s: float) -> Sequence[AblatedStage]:
        """Return the stages to leave out after repetition ``number``.

        ``outcome`` is that of the repetition, which took ``took_s`` seconds.
        """
        if self.plan is None:
            self.plan = self._planned(number, took_s)
        self._base = outcome.events()
        epochs = starts_left_out(outcome.epochs, self.job.subject)
        self._add("fill", without_fill(number, self._base, epochs, how_of(self.job)))
        stages = self.plan.order(number, further=self.fitted and not self.budget.usual)
        if stages and not self.plan.one_by_one and not self._has_time(number):
            log.info("no round after repetition %d: the time for ablations is over", number)
            return ()
        return [stage for stage in stages if stage not in self._failed]

    def has_time(self, stage: AblatedStage, number: int) -> bool:
        """Whether a stage that is named is left out: one by one, it has to end in time."""
        assert self.plan is not None
        slack_s = 0.0 if self.budget.trials(PART) else self.budget.slack_s
        return not self.plan.one_by_one or self.plan.each_s <= self.for_them_s(number) + slack_s

    def _has_time(self, number: int) -> bool:
        """Whether a round as long as those before ends in time; the first one always begins."""
        rounds = max(len(each.rounds) for each in self.job.ablations if each.stage != "fill")
        if not rounds:
            return True
        round_s = self.budget.spent_s(PART) / rounds
        if self.fitted:
            return round_s <= self.for_them_s(number)
        return self.budget.fits(round_s, PART)

    def _planned(self, number: int, took_s: float) -> AblationPlan:
        """Plan the ablations by the first repetition, and begin their records."""
        bench, first = self.bench, self.job.repetitions[0]
        why = {
            stage: double.why_not(bench, self.saver is not None)
            for stage, double in self.doubles.items()
        }
        stages = [stage for stage, reason in why.items() if not reason]
        plan = self._divided(stages, first, took_s, number)
        why |= plan.left_out
        self.job.ablations = [
            *(
                Ablation(
                    stage=stage,
                    how=how_left_out(double, bench.plan),
                    not_measured=why[stage],
                )
                for stage, double in self.doubles.items()
            ),
            Ablation(stage="fill", how=FILL),
        ]
        self.job.no_ablations = ""
        if not plan.stages or plan.one_by_one:
            self.job.no_ablations = next(iter(plan.left_out.values()), "") or (
                "no stage of this run can be left out"
            )
        if not self.fitted:
            self.budget.limits[PART] = plan.limit_s
        log.info("ablations: %s", plan)
        return plan

    def _divided(
        self, stages: list[AblatedStage], first: Repetition, took_s: float, number: int
    ) -> AblationPlan:
        """Divide the time. In a short one, each may have the fewest rounds of workers.

        Where it is too short for one round of all that may limit the run, these come before all
        further repetitions, the likeliest first.
        """
        bench = self.bench

        def divided(rounds: int) -> AblationPlan:
            bench.min_rounds = rounds
            left_s = self.for_them_s(number) if self.fitted else math.inf
            asked = self.fitted and not self.budget.usual
            return plan_ablations(
                stages,
                repetitions=bench.plan.repetitions,
                length=self._length(first, took_s),
                budget_s=left_s if asked else self.budget_s,
                most_s=left_s,
            )

        if not self.fitted:
            return divided(bench.min_rounds)
        ceilings = dict(bench.ceilings)
        if bench.plan.subject.users:  # how fast others read says nothing about the user's reads
            ceilings = {name: ceilings[name] for name in ceilings if name == "prep"}
        stages = by_likelihood(stages, ceilings, first.samples_per_s)
        rivals = likely(stages, ceilings, first.samples_per_s)
        plan = AblationPlan(left_out=dict.fromkeys(stages, ""))
        if bench.min_rounds > FEW_ROUNDS and not self._is_longer(first):
            plan = divided(bench.min_rounds)
        if plan.left_out:
            plan = divided(FEW_ROUNDS)
        if any(stage in rivals for stage in plan.left_out) and self.budget.fitted("repetitions"):
            bench.plan = replace(bench.plan, repetitions=1)
            plan = divided(FEW_ROUNDS)
        if not any(stage in rivals for stage in plan.left_out):
            return plan
        length = self._length(first, took_s)
        return AblationPlan(
            stages=tuple(rivals),
            seconds=length.shortest_s,
            each_s=length.shortest_s + length.fixed_s,
            left_out=dict.fromkeys(stages, next(iter(plan.left_out.values()))),
            one_by_one=True,
        )

    def _is_longer(self, first: Repetition) -> bool:
        """Whether the rounds of an ablation are more than those of the repetition."""
        steps = first.steps / max(1, first.accelerators)
        return steps < self.bench.min_rounds * max(1, how_of(self.job).round_steps)

    def _length(self, first: Repetition, took_s: float) -> AblationLength:
        """What the repetition took, and how long an ablation has to be for a rate."""
        loading_s = first.wall_s or 0.0
        step_s = loading_s * first.accelerators / max(1, first.steps)
        few = self.bench.min_rounds < MIN_ROUNDS
        rounds = self.bench.min_rounds if few else max(_ROUNDS_OF_WORKERS, self._rounds_of(first))
        steps = rounds * max(1, how_of(self.job).round_steps)
        if self.saver is not None and self._has_saves(first):
            steps = max(steps, self.saver.every)
        return AblationLength(
            loading_s=loading_s,
            fixed_s=max(0.0, took_s - loading_s),
            least_s=step_s * steps,
        )

    def _has_saves(self, repetition: Repetition) -> bool:
        """Whether the repetition was long enough for a checkpoint."""
        every = self.saver.every if self.saver is not None else 0
        return 0 < every <= repetition.steps // max(1, repetition.accelerators)

    def _rounds_of(self, repetition: Repetition) -> int:
        """Rounds of the workers after which a whole one is left beside the batches in flight.

        The fewest that are usual, where the repetition itself has not so many.
        """
        how = how_of(self.job)
        needed = 1 + -(-how.in_flight // max(1, how.round_steps))
        made = repetition.steps // max(1, repetition.accelerators * how.round_steps)
        few = self.bench.min_rounds
        return few if few < MIN_ROUNDS or made < needed else max(few, needed)

    @property
    def leaves_saves_out(self) -> bool:
        """Whether a repetition without checkpoints is among the ablations."""
        return self.plan is not None and "checkpoint" in self.plan.stages

    def run(self, stage: AblatedStage, number: int) -> None:
        """Measure repetition ``number`` again without a stage, and add the round.

        Raises PhaseInterrupted after the round was added as not complete, and what fails.
        """
        assert self._base is not None
        how = how_of(self.job)
        one = AblationRound(
            repetition=number,
            samples_per_s=None,
            base_samples_per_s=steady_rate(self._base, how),
            seconds=0.0,
        )
        try:
            with self.budget.trial(PART), self._saving(stage) as saving:
                outcome = self._measure(self.doubles[stage], number, saving)
        except PhaseInterrupted:
            with defer_interrupts(discard=True):
                took_s = self.budget.last_s(PART)
                self._add(stage, one.model_copy(update={"seconds": took_s, "complete": False}))
            raise
        without, base, in_flight = round_rates(
            self._base, outcome.events(), how, how_without(stage, self.job)
        )
        found = {
            "seconds": self.budget.last_s(PART),
            "samples_per_s": without,
            "base_samples_per_s": base,
            "in_flight": in_flight,
        }
        self._add(stage, one.model_copy(update=found))
        self.job.no_ablations = ""

    def fail(self, stage: AblatedStage, error: Exception) -> None:
        """Leave a stage out from now on: its failure is the reason why it is not measured."""
        log.warning("the ablation of %s failed: %s", stage, error)
        self._failed.add(stage)
        self._replace(self._of(stage).model_copy(update={"not_measured": str(error)}))

    def _measure(self, double: Double, number: int, saving: Saving | None) -> Outcome:
        """Run the phase of an ablation, and keep its events."""
        bench, stage = self.bench, double.stage
        assert self.plan is not None
        base = repetition_phase(bench.plan, number, name=phase_of(stage), saving=saving)
        phase = double.without(bench, base, self.job.repetitions[number])
        if stage == "checkpoint" and self.job.quiet is None:
            # The report compares the repetitions with a whole one without checkpoints.
            return measure(bench, phase, self._keep_quiet, keep_interrupted=False)
        phase = self._shortened(phase, number, stage)
        stored = double.stored and phase.loading.replay == "none"
        outcome = bench.run(phase, stored=stored)
        with defer_interrupts():
            bench.keep(phase, outcome)
        return outcome

    def _shortened(self, phase: Phase, number: int, stage: AblatedStage) -> Phase:
        """The phase of whole rounds of the workers, with batches of its own."""
        assert self.plan is not None
        series = list(self.doubles).index(stage)
        return replace(
            phase,
            seed=seed_of(self.bench.plan.seed, "ablation", number, series=series),
            epochs=None if phase.epochs is None else max(phase.epochs, _EPOCHS),
            max_steps=None,
            limit_s=self.plan.seconds,
            whole_rounds=True,
            min_rounds=self._rounds_of(self.job.repetitions[number]),
            saving=phase.saving if self._has_saves(self.job.repetitions[number]) else None,
        )

    def _keep_quiet(self, repetition: Repetition) -> None:
        self.job.quiet = repetition

    def _saving(self, stage: AblatedStage) -> AbstractContextManager[Saving | None]:
        """Checkpoints as in a repetition; they are not among those that the run records."""
        if self.saver is None or stage == "checkpoint":
            return nullcontext()
        return self.saver.during(recorded=False)

    def _of(self, stage: AblatedStage) -> Ablation:
        return next(each for each in self.job.ablations if each.stage == stage)

    def _add(self, stage: AblatedStage, one: AblationRound) -> None:
        found = self._of(stage)
        self._replace(found.model_copy(update={"rounds": [*found.rounds, one]}))
        in_one = self.bench.plan.subject.users
        self.job.ablations = with_gains(self.job.ablations, in_one=in_one)

    def _replace(self, ablation: Ablation) -> None:
        stages = [each.stage for each in self.job.ablations]
        self.job.ablations[stages.index(ablation.stage)] = ablation
