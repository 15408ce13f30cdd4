"""How long a run should take, part by part, before the time is spent and while it is."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ..base.units import counted
from ..judge.evidence import needed_steps
from ..record.plan import PartTime
from ..settings.workload import Workload
from .ablations import MIN_S, USUAL_ROUNDS
from .budget import USUAL_S, Budget
from .calibration.ceilings import ENTRIES, CeilingEntry, plan_windows
from .calibration.curve import budget_s, storage_curve, why_no_curve
from .calibration.findmax import least_tries
from .checkpoint import ALONE
from .confirm import MAX_TRIED, MIN_ROUNDS
from .options import Confirm, Options
from .phase import FEW_ROUNDS
from .plan import Plan, steps_per_repetition

START_S = 0.5
"""Start and end of a phase: ranks and workers begin, the page cache is emptied."""

_ACCELERATOR_S = 2.0
"""Longest window of the accelerator, which needs no storage to settle."""

_USUAL_STAGES = 3
"""Stages that a run usually leaves out in phases of their own."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What a short run of all stages together told. ``samples_per_s`` None: no batch was ready.

    ``start_s``: of a phase, what it takes besides its steps. ``round_steps``: batches that a rank's
    workers make at the same time; None: as many as it has workers. ``loads_per_s``: samples that
    they make, which the accelerators need not take as fast; None: as many as all together.
    ``told``: the storage's curve explains that rate, which is far below the demand. ``save_s``: of
    a checkpoint, of which the ranks stand still for ``blocked_s`` (an asynchronous writer goes on
    beside the steps), and ``every``: steps between two of them; 0: there are none. ``saves``: of a
    repetition that can tell what they cost.
    """

    samples_per_s: float | None = None
    start_s: float = START_S
    round_steps: int | None = None
    loads_per_s: float | None = None
    told: bool = False
    save_s: float = 0.0
    blocked_s: float = 0.0
    every: int = 0
    saves: int = 1


def demand(plan: Plan) -> float | None:
    """Samples/s of accelerators that are fed; None if they take as many as they get."""
    each = plan.workload.samples_per_s_per_accelerator
    return None if each is None else each * plan.accelerators


@dataclass(frozen=True, kw_only=True)
class Work:
    """What the parts of a run take, by what its pilot told.

    ``whole``: steps of a repetition as they were asked for; ``needed``: the fewest that can tell
    the bottleneck; ``together``: steps of a round of the workers, who make it in ``load_s``.
    """

    whole: int
    needed: int
    together: int
    epoch_steps: int
    step_s: float
    load_s: float
    start_s: float
    every: int = 0  # steps between two checkpoints
    fed_s: float = 0.0  # of a step of fed accelerators, where a pilot told the time to fill
    last_save_s: float = 0.0  # of the last save, after which there is none that waits for it

    @classmethod
    def of(cls, plan: Plan, pilot: Pilot, *, steps_given: bool = True) -> Work:
        """The work of a plan; without a pilot, as fed accelerators do it."""
        workload, samples = plan.workload, plan.manifest.sample_count
        once = workload.model_copy(update={"epochs": 1, "max_steps": None})
        whole = steps_per_repetition(workload, samples=samples, accelerators=plan.accelerators)
        together = pilot.round_steps or max(1, workload.loader.workers)
        rate = pilot.samples_per_s or demand(plan) or 0.0
        size = workload.batch_size * plan.accelerators
        loads = max(pilot.loads_per_s or 0.0, rate)
        every, step_s = max(1, pilot.every), size / rate if rate else 0.0
        behind_s = pilot.save_s - pilot.blocked_s
        return cls(
            whole=whole,
            needed=whole if steps_given else min(whole, needed_of(workload, together)),
            together=together,
            epoch_steps=steps_per_repetition(once, samples=samples, accelerators=plan.accelerators),
            step_s=max(step_s + pilot.blocked_s / every, pilot.save_s / every),
            load_s=together * size / loads if loads else 0.0,
            start_s=pilot.start_s,
            every=min(whole, pilot.every),
            fed_s=size / fed if pilot.loads_per_s and (fed := demand(plan)) else 0.0,
            last_save_s=min(behind_s, every * step_s),
        )

    @property
    def round_s(self) -> float:
        return self.together * self.step_s

    def repetition_s(self, steps: int) -> float:
        """Seconds of a repetition. Each epoch after the first begins anew.

        In an epoch that ends early, workers read whole rounds, as far as the epoch has batches.
        """
        whole, rest = divmod(steps, max(1, self.epoch_steps))
        begun = min(-(-rest // self.together) * self.together, self.epoch_steps)
        rest_s = max(self._epoch_s(rest), begun * self.load_s / self.together)
        again = max(0, whole + (rest > 0) - 1)
        saved_s = self.last_save_s if 0 < self.every <= steps else 0.0
        steps_s = whole * self._epoch_s(self.epoch_steps) + rest_s
        return self.start_s + steps_s + again * START_S + saved_s

    def _epoch_s(self, steps: int) -> float:
        """The steps of an epoch: at the pace of all stages, or fed once the pipeline is filled."""
        filled_s = min(self.together, steps) * self.load_s / self.together
        return max(steps * self.step_s, filled_s + steps * self.fed_s)

    def steps_in(self, seconds: float) -> int:
        """The most steps that take so long, in whole rounds; at least 1."""
        if not self.step_s:
            return 1
        left = max(0.0, seconds - self.start_s)
        steps = int(left / self.step_s)
        if steps > self.epoch_steps:
            steps = int((left + START_S) / (self.step_s + START_S / self.epoch_steps))
            steps = max(steps, self.epoch_steps)
        if steps >= self.needed > self.together:
            steps = max(self.needed, steps - steps % self.together)
        while steps > 1 and self.repetition_s(steps) > seconds:
            steps -= 1
        return max(1, steps)

    def ablations_s(self, stages: int, min_rounds: int) -> float:
        """Seconds of one round of ablations that are as short as possible.

        The last stage is the accelerator: without it, batches are taken as fast as they are made.
        """
        fed_s = max(1.0, self.load_s + (min_rounds - 1) * self.round_s)
        return stages * self.start_s + (stages - 1) * fed_s + max(1.0, min_rounds * self.load_s)


def needed_of(workload: Workload, together: int) -> int:
    """The fewest steps of a rank in a repetition that can tell the bottleneck.

    ``together``: that its workers make at the same time.
    """
    return max(needed_steps(workload.loader.workers), FEW_ROUNDS * together)


def estimate(
    plan: Plan,
    options: Options,
    *,
    hosts: int = 1,
    samples_per_s: float | None = None,
    repetition_s: float | None = None,
) -> list[PartTime]:
    """The parts of a run in their order, each with its time as far as it is known.

    ``samples_per_s``: what all stages may reach together, once the ceilings are measured.
    ``repetition_s``: how long a repetition takes, once there was one.
    """
    found: list[PartTime] = []
    if plan.subject.reads_itself:
        what = f"check of what loader '{plan.workload.loader.kind}' delivers"
        found.append(
            PartTime(
                part="prepare", what=what, seconds=None, not_known="it reads an epoch of the data"
            )
        )
    if options.calibration_s > 0:
        found.append(
            PartTime(
                part="calibrate",
                what="the storage's curve, and each stage alone",
                seconds=CeilingTimes(plan=plan).all_s(options.calibration_s, plan.repetitions),
            )
        )
    each = expected_repetition_s(plan, samples_per_s) if repetition_s is None else repetition_s
    at_least = samples_per_s is None and repetition_s is None
    if options.mixed is not None:
        why = "the storage's write bandwidth is not known"
        what = f"{counted(ALONE, 'checkpoint')} alone, and those during the repetitions"
        found.append(PartTime(part="checkpoint", what=what, seconds=None, not_known=why))
    # A repetition without checkpoints is otherwise one of the ablations.
    number = plan.repetitions + (options.mixed is not None and not options.ablations)
    steps = Work.of(plan, Pilot()).whole
    found.append(
        PartTime(
            part="measure",
            what=f"{counted(number, 'repetition')} of {counted(steps, 'step')}",
            seconds=None if each is None else number * each,
            at_least=at_least,
            not_known="" if each is not None else "the accelerator has no step time",
        )
    )
    if options.ablations:
        found.append(_ablations(plan, options, found[-1], each))
    if options.confirm is not None:
        found.append(_confirm(options.confirm, each))
    if options.find_max:
        tries, try_s = least_tries(plan, hosts)
        found.append(
            PartTime(
                part="find_max",
                what="search for the largest number of accelerators",
                seconds=tries * (try_s + START_S),
                at_least=True,
            )
        )
    return found


def _ablations(plan: Plan, options: Options, repetitions: PartTime, each: float | None) -> PartTime:
    """The ablations: their budget, or as long as the repetitions and a few rounds at least."""
    seconds, least = repetitions.seconds, repetitions.at_least
    if options.ablations_s is not None:
        seconds, least = options.ablations_s, False
    elif seconds is not None and each is not None:
        rounds = min(plan.repetitions, USUAL_ROUNDS)
        seconds = max(seconds, rounds * _USUAL_STAGES * (min(MIN_S, each) + START_S))
    return PartTime(
        part="ablations",
        what="the same without one stage each, in turns",
        seconds=seconds,
        at_least=least,
        not_known="" if seconds is not None else repetitions.not_known,
    )


def _confirm(confirm: Confirm, repetition_s: float | None) -> PartTime:
    """The advice: its budget, or the first rounds of all changes, which may end it."""
    variants = 1 + MAX_TRIED
    seconds = None if repetition_s is None else MIN_ROUNDS * variants * repetition_s
    if confirm.budget_s is not None:
        seconds = confirm.budget_s
    return PartTime(
        part="confirm",
        what=f"the advice in {counted(MIN_ROUNDS, 'round')} of up to {variants} repetitions",
        seconds=seconds,
        not_known="" if seconds is not None else "the time of a repetition is not known",
    )


@dataclass(frozen=True, kw_only=True)
class CeilingTimes:
    """What the ceilings of a plan take, the storage's curve among them.

    Some windows are divided, and the later parts follow the repetitions: each starts anew.
    ``least_s``: of a window in which samples are read or prepared, if it is known. ``start_s``: of
    a window's start and end. ``without``: names of ceilings that are not measured.
    """

    plan: Plan
    least_s: float = 0.0
    start_s: float = START_S
    without: frozenset[str] = frozenset()

    def all_s(self, seconds: float, repetitions: int) -> float:
        """All windows, of ``seconds`` for each ceiling."""
        first_s = plan_windows(seconds, repetitions).first_s
        return self._once_s(seconds, first_s) + self.later_s(seconds, repetitions)

    def later_s(self, seconds: float, repetitions: int, *, since: int = 0) -> float:
        """The windows that follow the repetition number ``since`` and those after it."""
        windows = plan_windows(seconds, repetitions)
        times = sum(number >= since for number in windows.after)
        return times * self._once_s(seconds, windows.later_s, again=True)

    def _once_s(self, seconds: float, window_s: float, *, again: bool = False) -> float:
        """One window of each ceiling. ``again``: of those alone that are measured several times."""
        return sum(
            self.start_s + _window_s(entry, seconds, window_s, self.least_s)
            for entry in ENTRIES
            if entry.applies(self.plan) and entry.name not in self.without
            if entry.again or not again
            if entry.measure is not storage_curve or not why_no_curve(self.plan)
        )


def _window_s(entry: CeilingEntry, seconds: float, window_s: float, least_s: float) -> float:
    if entry.measure is storage_curve:
        return budget_s(seconds)
    if entry.name == "accelerator":
        return min(window_s, _ACCELERATOR_S)
    return max(window_s, least_s) if entry.name in ("fetch", "prep") else window_s


def expected_repetition_s(plan: Plan, samples_per_s: float | None = None) -> float | None:
    """Seconds of a repetition: the accelerators' steps, or what the stages need for the samples.

    None if neither is known.
    """
    rates = [rate for rate in (samples_per_s, demand(plan)) if rate]
    if not rates:
        return None
    work = Work.of(plan, Pilot(samples_per_s=min(rates), start_s=2 * START_S))
    return work.repetition_s(work.whole)


def total(parts: list[PartTime]) -> tuple[float, bool]:
    """(seconds of all parts that are known, whether it may be more than that)."""
    known = [part.seconds for part in parts if part.seconds is not None]
    return sum(known), len(known) < len(parts) or any(part.at_least for part in parts)


def shorter(plan: Plan, parts: list[PartTime]) -> list[str]:
    """Flags that bring a long run near USUAL_S, each alone: fewer steps, epochs or repetitions.

    Where no such number of steps could tell the bottleneck, a budget shortens all parts.
    """
    spent, _ = total(parts)
    known = {part.part: part.seconds for part in parts}
    measure = known.get("measure")
    if measure is None or not spent > USUAL_S:
        return []
    measure += known.get("ablations") or 0.0
    share = max(0.0, USUAL_S - (spent - measure)) / measure
    work = Work.of(plan, Pilot(), steps_given=False)
    steps = int(work.whole * share)
    if steps < work.needed:
        return [f"--budget {USUAL_S / 60:g}min"]
    found = [f"--set max_steps={steps}"] if work.whole > 1 else []
    if work.whole > work.epoch_steps:
        found.append("--set epochs=1")
    fewer = max(3, int(plan.repetitions * share))
    if fewer < plan.repetitions:
        found.append(f"--repeat {fewer}")
    return found


class TimeLeft:
    """The time that is left of a run, as far as it is known."""

    def __init__(self, plan: Plan, options: Options, hosts: int = 1) -> None:
        self.plan, self.options, self.hosts = plan, options, hosts
        self.samples_per_s: float | None = None
        self._done, self._trial_began = Budget(), time.monotonic()

    def parts(self) -> list[PartTime]:
        """The parts as they are expected by what has been measured so far."""
        return estimate(
            self.plan,
            self.options,
            hosts=self.hosts,
            samples_per_s=self.samples_per_s,
            repetition_s=self._done.mean_s("measure"),
        )

    def finished(self, part: str, seconds: float) -> None:
        """A trial of a part has ended."""
        self._done.took(part, seconds)
        self._trial_began = time.monotonic()

    def seconds(self) -> tuple[float, bool]:
        """(seconds that are left, whether it may be more than that)."""
        parts = self.parts()
        _, more = total(parts)
        left = sum(
            max(0.0, part.seconds - self._done.spent_s(part.part))
            for part in parts
            if part.seconds is not None
        )
        left = max(0.0, left - (time.monotonic() - self._trial_began))
        most = self.options.budget.left_s
        return (most, False) if left > most else (left, more)
