"""Try advice: repetitions with the advised settings, in turns with today's; and with no loader.

A round is one repetition with today's settings and one for each change, all with the same seed. The
order rotates from round to round, so that drift of the storage affects all alike. How many rounds
there are is decided before the first one, by the time that they may take. Nobody looks at a gain
before they are over: rounds that end as soon as a promise seems kept would keep too many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace

from ..base.errors import IobenchError, SpecError, UsageError
from ..base.interrupts import defer_interrupts
from ..base.units import counted, format_duration
from ..judge.figures.ablations import How, in_step, steady_rate
from ..judge.figures.metrics import repetition_metrics
from ..judge.promise import WORTH, told_again
from ..judge.statistics import ratio_estimate
from ..record.training import Repetition
from ..record.verdict import Advice, Confirmation, ConfirmationRound, Estimate
from ..settings.base import with_overrides
from ..settings.workload import code_in
from ..storage.locks.lock import reading
from .budget import Budget
from .cache import run_cached_phase, with_local_cache
from .calibration.bench import Bench
from .hosts.hosts import Hosts
from .loading import PhaseContext, run_phase
from .options import Observer
from .phase import Saving
from .plan import Plan, make_plan
from .repetition import repetition_phase
from .trials import rounds, take_turns

log = logging.getLogger(__name__)

MAX_TRIED = 2
"""Changes that are tried: the first ones of the advice."""

MIN_ROUNDS = 3
"""Rounds that are planned at least; intervals of fewer are far too wide (t is 12.7 for two)."""

MAX_ROUNDS = 12

WORKER_ROUNDS = 2
"""Batches that each worker makes at least in a trial: the first of them fill the pipeline."""

_TODAY = "confirm.0"

_EPOCHS = 4
"""Epochs that a run may make in a round of ``headspace``, until its time is over."""

NOTHING = "no advice of this run has settings that apply it and a predicted gain above 5 %"


SavingAt = Callable[[], AbstractContextManager[Saving | None]]
"""The checkpoints to save during a repetition with this number."""


def applicable(advice: Sequence[Advice]) -> list[Advice]:
    """The first changes of the advice that settings can apply, and that promise a gain."""
    worth = [each for each in advice if each.settings and (each.predicted_gain or 0) >= WORTH]
    return worth[:MAX_TRIED]


def with_settings(plan: Plan, settings: Sequence[str]) -> Plan:
    """The plan with other settings of its workload, as by ``--set``.

    Raises SpecError for settings that the workload can't have, or that name code; and as
    ``make_plan`` does.
    """
    if named := code_in(settings):
        raise SpecError(f"advice may not change '{min(named)}', which names code")
    where = "the workload with " + ", ".join(settings)
    workload = with_overrides(plan.workload, settings, where=where)
    return make_plan(
        workload,
        plan.data,
        origin=plan.origin,
        accelerators=plan.accelerators,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )


@dataclass
class _Variant:
    """Today's settings (``tried`` None), or a change that is tried."""

    name: str  # of its phases
    bench: Bench
    tried: Confirmation | None = None
    rates: dict[int, tuple[float, float]] = field(default_factory=dict)  # samples/s and seconds


def planned_rounds(budget_s: float, round_s: float) -> int:
    """How many rounds are made in this time, by what is known before the first one."""
    room = budget_s / round_s if round_s > 0 else MAX_ROUNDS
    return int(max(MIN_ROUNDS, min(MAX_ROUNDS, room)))


@dataclass(kw_only=True)
class Trying:
    """The rounds of one run. ``repetition_s``: how long a repetition took until now.

    ``budget``: of these rounds alone; one that is not ``strict`` is exceeded by the first rounds.
    """

    bench: Bench
    into: list[Confirmation]
    repetition_s: float
    budget: Budget
    saving: SavingAt = nullcontext
    # The first batches of the workers are left out, as where promises rest on the time after them
    after_fill: bool = field(default=False, init=False)

    def run(self, chosen: Sequence[Advice], by: str = "") -> None:
        """Try the changes. A complete round is in ``into`` at once, so that an interrupt keeps it.

        A change that fails is left out with its reason. Raises what today's settings raise,
        TargetLostError, and KeyboardInterrupt.
        """
        longer = self._longer(chosen)
        self.after_fill = bool(longer)
        base = self._bench(longer) if longer else self.bench
        variants = [_Variant(_TODAY, base)]
        for number, advice in enumerate(chosen, start=1):
            tried = Confirmation(
                id=advice.id,
                change=advice.change,
                settings=advice.settings,
                promised=Estimate(
                    value=advice.predicted_gain or 0.0, low=advice.low, high=advice.high
                ),
                at_most=advice.at_most,
                promised_by=by,
            )
            self.into.append(tried)
            try:
                bench = self._bench([*advice.settings, *longer])
            except IobenchError as error:
                tried.not_measured = str(error)
                continue
            if bench.plan.workload == base.plan.workload:
                tried.not_measured = "the run had these settings already"
                continue
            variants.append(_Variant(f"confirm.{number}", bench, tried))
        planned = planned_rounds(self.budget.seconds or 0.0, self.repetition_s * len(variants))

        def stop(number: int, active: Sequence[_Variant]) -> bool:
            return number >= planned or len(active) < 2 or self._over(active, number)

        take_turns(
            variants,
            lambda variant, number: self._measure(variants, variant, number),
            stop,
            is_active=lambda variant: variant.tried is None or not variant.tried.not_measured,
            fail=_fail,
        )

    def _bench(self, settings: Sequence[str]) -> Bench:
        """The run with other settings. Raises as ``with_settings``."""
        plan = with_settings(self.bench.plan, settings)
        hosts = self.bench.hosts.of(plan, self.bench.held)
        agent = hosts.agent(plan.storage, plans=True)
        plan = with_local_cache(hosts.whole(plan), self.bench.held)
        return replace(self.bench, plan=plan, hosts=hosts, agent=agent)

    def _longer(self, chosen: Sequence[Advice]) -> list[str]:
        """The setting by which each variant makes whole rounds of its workers; often none.

        A repetition may have been cut to fewer batches than the advised workers make at once.
        """
        plan = self.bench.plan
        steps, workers = plan.workload.max_steps, [plan.workload.loader.workers]
        for advice in chosen:
            with suppress(IobenchError):
                workers.append(with_settings(plan, advice.settings).workload.loader.workers)
        least = WORKER_ROUNDS * max(workers)
        if steps is None or steps >= least:
            return []
        self.repetition_s *= least / steps
        return [f"max_steps={least}"]

    def _over(self, active: Sequence[_Variant], number: int) -> bool:
        """Whether the budget leaves no time for this round."""
        if number < MIN_ROUNDS and not self.budget.strict:
            return False
        needed = sum(self.budget.last_s(variant.name) or self.repetition_s for variant in active)
        if self.budget.fits(needed):
            return False
        for variant in active:
            if variant.tried is not None and variant.tried.answer == "inconclusive":
                variant.tried.not_measured = (
                    f"of the {format_duration(self.budget.seconds or 0.0)} for advice, "
                    f"{format_duration(self.budget.left_s)} are left after "
                    f"{counted(number, 'round')}, and the next one takes about "
                    f"{format_duration(needed)}"
                )
        return True

    def _measure(self, variants: Sequence[_Variant], variant: _Variant, number: int) -> None:
        """Measure a variant, and add the round to those for which both rates are known."""
        settings = variant.tried.settings if variant.tried else ["today's settings"]
        self.bench.observer.phase(f"round {number + 1} of the advice: {', '.join(settings)}")
        with self.budget.trial(variant.name):
            rate = self._rate(variant, number)
        variant.rates[number] = (rate, self.budget.last_s(variant.name))
        today = variants[0]
        for each in variants[1:] if variant is today else [variant]:
            if each.tried is not None and number in today.rates and number in each.rates:
                _add(each.tried, number, each.rates[number], today.rates[number])

    def _rate(self, variant: _Variant, number: int) -> float:
        """Return the samples/s of a repetition. Raises IobenchError if it has no rate."""
        plan = variant.bench.plan
        with self.saving() as saving:
            phase = repetition_phase(plan, number, name=variant.name, kind="confirm", saving=saving)
            outcome = variant.bench.run(phase, stored=True)
        with defer_interrupts():
            variant.bench.keep(phase, outcome)
            context = Repetition(
                seed=phase.seed,
                accelerators=phase.accelerators,
                sync=phase.accelerator.sync,
                epochs=outcome.epochs,
            )
            figures = repetition_metrics(outcome.events(), context)
            self.bench.look()
        rate = figures.samples_per_s
        if self.after_fill:
            workers, ranks = plan.workload.loader.workers, plan.accelerators
            together = in_step(plan.workload.accelerator, ranks)
            rate = steady_rate(outcome.events(), How(workers, together)) or rate
        if not rate or not outcome.complete:
            raise IobenchError("the repetition delivered no complete epoch")
        return rate


def _fail(variant: _Variant, error: IobenchError) -> None:
    """Leave a change out; its complete rounds stay. Nothing can be compared without today's."""
    if variant.tried is None:
        raise error
    variant.tried.not_measured = str(error)
    log.warning("%s: %s", variant.name, error)


def _add(
    tried: Confirmation, number: int, found: tuple[float, float], today: tuple[float, float]
) -> None:
    (rate, seconds), (base, base_s) = found, today
    tried.rounds.append(
        ConfirmationRound(
            round=number, samples_per_s=rate, base_samples_per_s=base, seconds=seconds + base_s
        )
    )
    again = told_again(tried)
    tried.found, tried.answer = again.found, again.answer


# The bound of what any loader could bring: the run and the same run on ten batches that are kept
# take turns. Only the steady part of each counts: an average over the fill, too, is too low.


@dataclass(frozen=True, kw_only=True)
class Headspace:
    """``bound``: the largest gain that a change of the loader can bring, over the rounds.

    ``rounds``: samples/s (with kept batches, as it is) of each.
    """

    bound: Estimate | None
    rounds: list[tuple[float, float]]


def headspace(
    plan: Plan, *, seconds: float, observer: Observer | None = None, hosts: Hosts | None = None
) -> Headspace:
    """Measure ``plan.repetitions`` rounds of ``seconds`` each way, by default on this host alone.

    Raises UsageError for an accelerator without a limit of its own, and as ``run_phase`` does.
    """
    if plan.workload.accelerator.kind == "null":
        raise UsageError(
            "a null accelerator takes no time, so nothing but the loader is there to be bounded",
            remedy="name a workload with a step time",
        )
    observer = observer or Observer()
    kept = plan.workload.loader.model_copy(update={"replay": "batches"})
    hosts = hosts or Hosts()
    agent = hosts.agent(plan.storage, plans=True)
    context = PhaseContext(hosts=hosts)
    rounds_of = max(1, plan.workload.loader.workers)
    together = in_step(plan.workload.accelerator, plan.accelerators)
    rates: dict[str, list[float | None]] = {"kept": [], "as it is": []}

    def measure(variant: str, number: int) -> None:
        observer.note(f"round {number + 1} of {plan.repetitions}, {variant}")
        phase = replace(
            repetition_phase(plan, number),
            epochs=max(plan.workload.epochs, _EPOCHS),
            max_steps=None,
            limit_s=seconds,
            whole_rounds=True,
        )
        if variant == "kept":
            outcome = run_phase(replace(phase, loading=kept, evicts=False), context)
        else:
            outcome = run_cached_phase(plan, agent, phase, context)
        rate = steady_rate(outcome.events(), How(rounds_of, together))
        rates[variant].append(rate)

    with reading(plan.home, plan.manifest, verb="run"), ExitStack() as held:
        plan = with_local_cache(plan, held)
        take_turns(list(rates), measure, rounds(plan.repetitions))
    pairs = [(best, base) for best, base in zip(*rates.values(), strict=True) if best and base]
    return Headspace(bound=ratio_estimate(pairs), rounds=pairs)
