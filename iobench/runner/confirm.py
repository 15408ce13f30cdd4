"""Try advice: repetitions with the advised settings, in turns with today's.

A turn is one repetition with today's settings and one for each change, all with the same seed. The
order rotates from turn to turn, so that drift of the storage affects all alike. A change takes part
until the interval of its gain tells whether the promise was kept, and is narrow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from ..analyse.verdict.confirmed import told_again
from ..analyse.verdict.metrics import repetition_metrics
from ..analyse.verdict.model import WORTH
from ..errors import IobenchError, TargetLostError
from ..interrupts import defer_interrupts
from ..schema.base import apply_overrides, build
from ..schema.training import Repetition
from ..schema.verdict import Advice, Confirmation, Estimate, Turn
from ..schema.workload import Workload
from ..units import format_duration
from .calibration.bench import Bench
from .phase import Saving
from .plan import Plan, make_plan
from .progress import Progress
from .repetition import repetition_phase

log = logging.getLogger(__name__)

MAX_TRIED = 2
"""Changes that are tried: the first ones of the advice."""

MIN_TURNS = 3
"""Turns before an interval is used; fewer are far too wide (t is 12.7 for two values)."""

MAX_TURNS = 12

NARROW = 1.25
"""Ratio of the ends of an interval that is narrow enough to end the turns."""

_TODAY = "confirm.0"

_SEED_STEP = 1_299_709
"""Distance of a turn's seed from the run's, so that no repetition uses the same order."""

NOTHING = "no advice of this run has settings that apply it and a predicted gain above 5 %"


@dataclass(frozen=True, kw_only=True)
class Confirm:
    """What to try, and for how long.

    ``advice``: of an earlier run, whose id is ``by``; None: this run's own. ``budget_s``: no turn
    begins that would end later; None: ``usual_s`` (None: as long as the repetitions took), and at
    least ``MIN_TURNS``.
    """

    advice: tuple[Advice, ...] | None = None
    by: str = ""
    usual_s: float | None = None
    budget_s: float | None = None


SavingAt = Callable[[], AbstractContextManager[Saving | None]]
"""The checkpoints to save during a repetition with this number."""


def applicable(advice: Sequence[Advice]) -> list[Advice]:
    """The first changes of the advice that settings can apply, and that promise a gain."""
    worth = [each for each in advice if each.settings and (each.predicted_gain or 0) >= WORTH]
    return worth[:MAX_TRIED]


def with_settings(plan: Plan, settings: Sequence[str]) -> Plan:
    """The plan with other settings of its workload, as by ``--set``.

    Raises SpecError for settings that the workload can't have, and as ``make_plan`` does.
    """
    workload = build(
        Workload,
        apply_overrides(plan.workload.model_dump(mode="json"), settings),
        where="the workload with " + ", ".join(settings),
    )
    return make_plan(
        workload,
        plan.data,
        origin=plan.origin,
        accelerators=plan.accelerators,
        repetitions=plan.repetitions,
        seed=plan.seed,
    )


@dataclass
class _Side:
    """Today's settings (``confirmation`` None), or a change that is tried."""

    name: str  # of its phases
    bench: Bench
    confirmation: Confirmation | None = None
    seconds: list[float] = field(default_factory=list)  # of each of its repetitions

    @property
    def open(self) -> bool:
        """Whether another turn may tell more."""
        tried = self.confirmation
        if tried is None:
            return True
        if tried.not_measured:
            return False
        if len(tried.turns) < MIN_TURNS or tried.answer == "not told":
            return True
        found = tried.found
        wide = found is None or not found.low or (found.high or 0.0) / found.low > NARROW
        return tried.answer == "kept" and wide


@dataclass(kw_only=True)
class Turns:
    """The turns of one run. ``repetition_s``: how long a repetition took until now."""

    bench: Bench
    into: list[Confirmation]
    repetition_s: float
    budget_s: float
    strict: bool  # the budget also holds for the first turns
    look: Callable[[], None]
    progress: Progress
    saving: SavingAt = nullcontext

    def run(self, chosen: Sequence[Advice], by: str = "") -> None:
        """Try the changes. A complete turn is in ``into`` at once, so that an interrupt keeps it.

        A change that fails is left out with its reason. Raises what today's settings raise,
        TargetLostError, and KeyboardInterrupt.
        """
        sides = [_Side(_TODAY, self.bench)]
        for number, advice in enumerate(chosen, start=1):
            tried = Confirmation(
                id=advice.id,
                change=advice.change,
                settings=advice.settings,
                promised=Estimate(
                    value=advice.predicted_gain or 0.0, low=advice.low, high=advice.high
                ),
                promised_by=by,
            )
            self.into.append(tried)
            try:
                plan = with_settings(self.bench.plan, advice.settings)
            except IobenchError as error:
                tried.not_measured = str(error)
                continue
            if plan.workload == self.bench.plan.workload:
                tried.not_measured = "the run had these settings already"
                continue
            bench = replace(self.bench, plan=plan, agent=self.bench.agent.of(plan))
            sides.append(_Side(f"confirm.{number}", bench, tried))
        began = time.monotonic()
        for turn in range(MAX_TURNS):
            active = [side for side in sides if side.open]
            if len(active) < 2 or self._over(active, turn, time.monotonic() - began):
                break
            shift = turn % len(active)
            self._turn(turn, active[shift:] + active[:shift])

    def _over(self, active: Sequence[_Side], turn: int, used_s: float) -> bool:
        """Whether the budget leaves no time for this turn."""
        if turn < MIN_TURNS and not self.strict:
            return False
        needed = sum(side.seconds[-1] if side.seconds else self.repetition_s for side in active)
        if used_s + needed <= self.budget_s:
            return False
        for side in active:
            if side.confirmation is not None and side.confirmation.answer == "not told":
                side.confirmation.not_measured = (
                    f"the time limit of {format_duration(self.budget_s)} has room for "
                    f"{turn} turns: the next one takes about {format_duration(needed)}"
                )
        return True

    def _turn(self, turn: int, order: Sequence[_Side]) -> None:
        """Measure each side once, and add the turn to those for which both rates are known."""
        rates: dict[str, tuple[float, float]] = {}  # samples/s and seconds, by the side's name
        for side in order:
            settings = side.confirmation.settings if side.confirmation else ["today's settings"]
            self.progress.phase(f"turn {turn + 1} of the advice: {', '.join(settings)}")
            began = time.monotonic()
            try:
                rate = self._measure(side, turn)
            except TargetLostError:
                raise
            except IobenchError as error:
                if side.confirmation is None:
                    raise
                side.confirmation.not_measured = str(error)
                log.warning("%s: %s", side.name, error)
                continue
            side.seconds.append(time.monotonic() - began)
            rates[side.name] = (rate, side.seconds[-1])
            if _TODAY in rates:
                _add(turn, order, rates)

    def _measure(self, side: _Side, turn: int) -> float:
        """Return the samples/s of a repetition. Raises IobenchError if it has no rate."""
        plan = side.bench.plan
        with self.saving() as saving:
            phase = replace(
                repetition_phase(plan, _SEED_STEP + turn, name=side.name, saving=saving),
                repetition=turn,
            )
            outcome = side.bench.run(phase, stored=True, look=self.look)
        with defer_interrupts():
            side.bench.keep(phase, outcome)
            context = Repetition(
                seed=phase.seed,
                accelerators=phase.accelerators,
                sync=phase.accelerator.sync,
                epochs=outcome.epochs,
            )
            figures = repetition_metrics(outcome.events(), context)
            self.look()
        if not figures.samples_per_s or not outcome.complete:
            raise IobenchError("the repetition delivered no complete epoch")
        return figures.samples_per_s


def _add(turn: int, order: Sequence[_Side], rates: dict[str, tuple[float, float]]) -> None:
    """Add the turn to each change whose rate is known, unless it has been added."""
    base, base_s = rates[_TODAY]
    for side in order:
        tried = side.confirmation
        if tried is None or side.name not in rates or turn in [each.turn for each in tried.turns]:
            continue
        rate, seconds = rates[side.name]
        tried.turns.append(
            Turn(turn=turn, samples_per_s=rate, base_samples_per_s=base, seconds=seconds + base_s)
        )
        again = told_again(tried)
        tried.found, tried.answer = again.found, again.answer
