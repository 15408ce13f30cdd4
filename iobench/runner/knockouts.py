"""Knock-outs: a repetition with one stage replaced by a double that costs nothing.

They take turns with the repetitions (see ``turns``), so that a drift of the machine or the storage
hits all alike. What a stage costs is then the ratio of two rates of the same round.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np

from ..analyse.figures.knockouts import (
    FILL,
    how_of,
    how_without,
    in_step,
    phase_of,
    steady_rate,
    with_gains,
    without_fill,
)
from ..errors import HostLostError, IobenchError, TargetLostError, UsageError
from ..interrupts import defer_interrupts
from ..load import make_reader
from ..load.null import ReadyReader
from ..schema.training import Ceiling, Repetition, TrainingRun
from ..schema.verdict import KnockedOut, KnockOut, KnockOutRound
from .cache import fill_cache, why_not_warm
from .calibration.bench import Bench
from .mixed import Saver
from .phase import FEW_ROUNDS, MIN_ROUNDS, Outcome, Phase, PhaseInterrupted, Saving
from .repetition import measure, repetition_phase
from .third_party import is_library
from .turns import Length, Turns, plan_turns
from .user_loader import is_user

log = logging.getLogger(__name__)

SWITCHED_OFF = "knock-outs were switched off (--no-knockouts)"
TOO_EARLY = "the run ended before the first knock-out"

_ROUNDS = 4
"""Rounds of all workers that a knock-out needs: one of them is the fill."""

_EPOCHS = 4
"""Fewer epochs may end before the time does, if an epoch is short."""

_SEED_STEP = 15_485_863
"""Distance of the seeds of a round's phases: they read other batches than the repetition did."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A stage that a phase of its own leaves out.

    ``why_not``: why it can't be left out of this run, or empty. ``without``: the phase of a
    repetition without it. ``stored``: that phase reads the plan's storage.
    """

    stage: KnockedOut
    how: str
    why_not: Callable[[Bench, bool], str]
    without: Callable[[Bench, Phase, Repetition], Phase]
    stored: bool = True


def _storage(bench: Bench, saves: bool) -> str:
    return why_not_warm(bench.plan) if is_user(bench.plan.workload) else ""


def _without_storage(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    """Read a copy in memory; one that is smaller than the dataset is read repeatedly by each rank.

    The slower the storage is, the less is copied. A loader of the user's own gets the dataset in
    the page cache, since it opens the files itself.
    """
    if is_user(bench.plan.workload):
        if why := fill_cache(bench.plan, bench.agent):
            raise UsageError(why)
        return replace(phase, evicts=False)
    copy = bench.copy(base.read_bytes_per_s)
    reading = phase.reading
    if is_library(bench.plan):
        reading = reading.model_copy(update={"direct": False})
    reader = make_reader(copy.manifest, copy.storage, reading)
    phase = replace(phase, reader=reader, reading=reading, evicts=False)
    if copy.whole:
        return phase
    return replace(phase, shards=copy.shards, share=False, epochs=0)


def _nothing_to_prepare(bench: Bench, saves: bool) -> str:
    plan = bench.plan
    kind = plan.workload.loader.kind
    if is_user(plan.workload):
        why = plan.tried[0].not_cached if plan.tried else ""
        return f"your loader can't run without its dataset: {why}" if why else ""
    if is_library(plan):
        return f"the loader '{kind}' reads and prepares in one, so prep can't be left out"
    if not make_reader(plan.manifest, plan.storage, plan.workload.reader).prepares:
        return "there is nothing to prepare: the bytes are handed over as they are stored"
    return ""


def _without_prep(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    """Hand ready samples over.

    A dataset of the user's own reads and prepares in one. So both are left out, and the gain is
    what is left after that of the storage.
    """
    plan, reading = bench.plan, phase.reading
    if is_user(plan.workload):
        return replace(
            phase, loading=phase.loading.model_copy(update={"replay": "samples"}), evicts=False
        )
    delivered = np.minimum(
        bench.delivered, make_reader(plan.manifest, plan.storage, reading).room()
    )
    fetching = make_reader(plan.manifest, plan.storage, reading, bytes_only=True)
    return replace(phase, reader=ReadyReader(fetching, delivered))


def _no_accelerator(bench: Bench, saves: bool) -> str:
    null = bench.plan.workload.accelerator.kind == "null"
    return "the accelerator of this workload takes no time" if null else ""


def _without_accelerator(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    nothing = {"kind": "null", "name": "null", "step_time": None, "gradient_sync": "none"}
    return replace(phase, accelerator=phase.accelerator.model_copy(update=nothing))


def _no_sync(bench: Bench, saves: bool) -> str:
    if bench.plan.accelerators == 1:
        return "there is one rank, which waits for no other"
    if in_step(bench.plan.workload.accelerator, bench.plan.accelerators):
        return ""
    return "the ranks do not wait for each other at each step"


def _without_sync(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    alone = {"sync": "none", "gradient_sync": "none"}
    return replace(phase, accelerator=phase.accelerator.model_copy(update=alone))


def _no_saves(bench: Bench, saves: bool) -> str:
    return "" if saves else "no checkpoints are saved during the run"


def _without_saves(bench: Bench, phase: Phase, base: Repetition) -> Phase:
    return replace(phase, saving=None)


ENTRIES = (
    Entry(
        stage="storage",
        how="the bytes come from a copy in memory",
        why_not=_storage,
        without=_without_storage,
        stored=False,
    ),
    Entry(
        stage="saves",
        how="no checkpoints are saved",
        why_not=_no_saves,
        without=_without_saves,
    ),
    Entry(
        stage="sync",
        how="no rank waits for another one",
        why_not=_no_sync,
        without=_without_sync,
    ),
    Entry(
        stage="prep",
        how="bytes are read, and ready samples of the same size are handed over",
        why_not=_nothing_to_prepare,
        without=_without_prep,
    ),
    Entry(
        stage="accelerator",
        how="steps take no time",
        why_not=_no_accelerator,
        without=_without_accelerator,
    ),
)
"""All stages that a phase of its own leaves out, the most important first: where the time is too
short for all of them, the last ones are not measured.
"""

_OF_USER: dict[KnockedOut, str] = {
    "storage": "the dataset is in the page cache",
    "prep": "the samples of one batch are kept: what the page cache brings is taken off",
}
"""How a stage is left out of a loader of the user's own, which opens the files itself."""


_OF_CEILING: dict[KnockedOut, tuple[str, ...]] = {
    "storage": ("storage_raw", "fetch"),
    "prep": ("prep",),
}
"""The ceilings that tell what a stage can do at most; the lowest of them counts."""

UNLIKELY = 4.0
"""A stage that alone is so many times as fast as all together does not limit them."""


def _headroom(
    stage: KnockedOut, ceilings: Mapping[str, Ceiling], measured: float | None
) -> float | None:
    """The stage's rate alone over that of all together; None if it is not known."""
    names = _OF_CEILING.get(stage, ())
    known = [rate for name in names if name in ceilings and (rate := ceilings[name].samples_per_s)]
    return min(known) / measured if known and measured else None


def likely(
    stages: Sequence[KnockedOut], ceilings: Mapping[str, Ceiling], measured: float | None
) -> list[KnockedOut]:
    """The stages that may limit a run, by their ceilings; the accelerator is what they feed."""
    found: list[KnockedOut] = []
    for stage in stages:
        headroom = _headroom(stage, ceilings, measured)
        if stage != "accelerator" and (headroom is None or headroom < UNLIKELY):
            found.append(stage)
    return found


def by_likelihood(
    stages: Sequence[KnockedOut], ceilings: Mapping[str, Ceiling], measured: float | None
) -> list[KnockedOut]:
    """The stages, the likeliest limit first: where the time is short, the last are left out."""
    first = likely(stages, ceilings, measured)
    first.sort(key=lambda stage: _headroom(stage, ceilings, measured) or 1.0)
    return [*first, *(stage for stage in stages if stage not in first)]


class KnockOuts:
    """The knock-outs of a run.

    Call ``begin`` after each repetition, and ``run`` for each stage that it names. Both keep the
    job's record up to date.
    """

    def __init__(
        self,
        bench: Bench,
        job: TrainingRun,
        saver: Saver | None,
        look: Callable[[], None],
        *,
        budget_s: float | None = None,
        left_s: Callable[[int], float] | None = None,
    ) -> None:
        """``left_s``: the time that a whole run's budget has for knock-outs after a repetition."""
        self.bench, self.job, self.saver, self.look = bench, job, saver, look
        self.budget_s, self.left_s = budget_s, left_s
        self.turns: Turns | None = None
        self.entries = {entry.stage: entry for entry in ENTRIES}
        self._user = is_user(bench.plan.workload)
        self._base: float | None = None
        self._failed: set[KnockedOut] = set()
        job.no_knock_outs = TOO_EARLY

    def begin(self, number: int, outcome: Outcome, took_s: float) -> tuple[KnockedOut, ...]:
        """Return the stages to leave out after repetition ``number``.

        ``outcome`` is that of the repetition, which took ``took_s`` seconds.
        """
        if self.turns is None:
            if self.left_s is not None:
                self.budget_s = self.left_s(number)
            self.turns = self._plan(took_s)
        how, events = how_of(self.job), outcome.events()
        fill = without_fill(number, events, outcome.epochs, how)
        self._add("fill", fill)
        self._base = steady_rate(events, round_steps=how.round_steps, together=how.together)
        stages = self.turns.order(number, further=self.left_s is not None)
        if stages and not self._has_time(number):
            log.info("no round after repetition %d: the time for knock-outs is over", number)
            return ()
        return tuple(stage for stage in stages if stage not in self._failed)

    def _has_time(self, number: int) -> bool:
        """Whether a round as long as those before ends in time; the first one always begins."""
        assert self.turns is not None
        spent = [one.seconds for each in self.job.knock_outs for one in each.rounds]
        rounds = max(len(each.rounds) for each in self.job.knock_outs if each.stage != "fill")
        if rounds and self.left_s is not None:
            return sum(spent) / rounds <= self.left_s(number)
        return rounds == 0 or sum(spent) * (1 + 1 / rounds) <= self.turns.limit_s

    def _plan(self, took_s: float) -> Turns:
        bench, first = self.bench, self.job.repetitions[0]
        why = {
            entry.stage: entry.why_not(bench, self.saver is not None)
            for entry in self.entries.values()
        }
        stages = [stage for stage, reason in why.items() if not reason]
        fitted = self.left_s is not None
        if fitted:
            stages = by_likelihood(stages, bench.ceilings, first.samples_per_s)
        rivals = likely(stages, bench.ceilings, first.samples_per_s)
        choices = dict.fromkeys((bench.min_rounds, FEW_ROUNDS)) if fitted else (bench.min_rounds,)
        for rounds in choices:
            bench.min_rounds = rounds
            if rounds > FEW_ROUNDS and fitted and self._is_longer(first):
                continue
            turns = plan_turns(
                stages,
                repetitions=bench.plan.repetitions,
                length=self._length(first, took_s),
                budget_s=self.budget_s,
            )
            if not turns.left_out:
                break
        if fitted and any(stage in rivals for stage in turns.left_out):
            # With a single round of some stages, a slow repetition makes one of them the cause.
            reason = next(iter(turns.left_out.values()))
            turns = Turns(left_out=dict.fromkeys(stages, reason))
        why |= turns.left_out
        self.job.knock_outs = [
            *(
                KnockOut(stage=stage, how=self._how(entry), not_measured=why[stage])
                for stage, entry in self.entries.items()
            ),
            KnockOut(stage="fill", how=FILL),
        ]
        self.job.no_knock_outs = ""
        if not turns.stages:
            self.job.no_knock_outs = next(iter(turns.left_out.values()), "") or (
                "no stage of this run can be left out"
            )
        log.info("knock-outs: %s", turns)
        return turns

    def _how(self, entry: Entry) -> str:
        if self._user:
            return _OF_USER.get(entry.stage, entry.how)
        accelerator = self.bench.plan.workload.accelerator
        if entry.stage == "sync" and accelerator.gradient_sync == "ddp":
            return f"{entry.how}, and no gradients are exchanged"
        return entry.how

    def _is_longer(self, first: Repetition) -> bool:
        """Whether the rounds of a knock-out are more than those of the repetition."""
        steps = first.steps / max(1, first.accelerators)
        return steps < self.bench.min_rounds * max(1, how_of(self.job).round_steps)

    def _length(self, first: Repetition, took_s: float) -> Length:
        """What the repetition took, and how long a knock-out has to be for a rate."""
        loading_s = first.wall_s or 0.0
        step_s = loading_s * first.accelerators / max(1, first.steps)
        rounds = self.bench.min_rounds if self.bench.min_rounds < MIN_ROUNDS else _ROUNDS
        steps = rounds * max(1, how_of(self.job).round_steps)
        if self.saver is not None:
            steps = max(steps, self.saver.every)
        return Length(
            loading_s=loading_s,
            fixed_s=max(0.0, took_s - loading_s),
            least_s=step_s * steps,
        )

    @property
    def leaves_saves_out(self) -> bool:
        """Whether a repetition without checkpoints is among the knock-outs."""
        return self.turns is not None and "saves" in self.turns.stages

    def run(self, stage: KnockedOut, number: int) -> None:
        """Measure repetition ``number`` again without a stage, and add the round.

        If that fails, the failure is the reason why the stage is not measured. Raises
        PhaseInterrupted after the round was added as not complete, TargetLostError if another
        process has taken the place of the checkpoints over: nothing more may be written there, and
        HostLostError: no run goes on with fewer hosts.
        """
        entry, began = self.entries[stage], time.monotonic()
        one = KnockOutRound(
            repetition=number, samples_per_s=None, base_samples_per_s=self._base, seconds=0.0
        )
        try:
            with self._saving(stage) as saving:
                outcome = self._measure(entry, number, saving)
        except PhaseInterrupted:
            with defer_interrupts(discard=True):
                took_s = time.monotonic() - began
                self._add(stage, one.model_copy(update={"seconds": took_s, "complete": False}))
            raise
        except (TargetLostError, HostLostError):
            raise
        except IobenchError as error:
            log.warning("the knock-out of %s failed: %s", stage, error)
            self._failed.add(stage)
            self._replace(self._of(stage).model_copy(update={"not_measured": str(error)}))
            return
        how = how_without(stage, self.job)
        rate = steady_rate(outcome.events(), round_steps=how.round_steps, together=how.together)
        took_s = time.monotonic() - began
        self._add(stage, one.model_copy(update={"seconds": took_s, "samples_per_s": rate}))

    def _measure(self, entry: Entry, number: int, saving: Saving | None) -> Outcome:
        """Run the phase of a knock-out, and keep its events."""
        bench, turns = self.bench, self.turns
        assert turns is not None
        name = phase_of(entry.stage)
        base = repetition_phase(bench.plan, number, name=name, saving=saving)
        phase = entry.without(bench, base, self.job.repetitions[number])
        if entry.stage == "saves" and self.job.quiet is None:
            # The report compares the repetitions with a whole one without checkpoints.
            return measure(bench, phase, self._keep_quiet, self.look, keep_interrupted=False)
        phase = replace(
            phase,
            seed=phase.seed + _SEED_STEP * (1 + list(self.entries).index(entry.stage)),
            epochs=max(phase.epochs, _EPOCHS) if phase.epochs else 0,
            max_steps=None,
            limit_s=turns.seconds,
            whole_rounds=True,
            min_rounds=bench.min_rounds,
        )
        stored = entry.stored and phase.loading.replay == "none"
        outcome = bench.run(phase, stored=stored, look=self.look)
        with defer_interrupts():
            bench.keep(phase, outcome)
        return outcome

    def _keep_quiet(self, repetition: Repetition) -> None:
        self.job.quiet = repetition

    def _saving(self, stage: KnockedOut) -> AbstractContextManager[Saving | None]:
        """Checkpoints as in a repetition; they are not among those that the run records."""
        if self.saver is None or stage == "saves":
            return nullcontext()
        return self.saver.during(recorded=False)

    def _of(self, stage: KnockedOut) -> KnockOut:
        return next(each for each in self.job.knock_outs if each.stage == stage)

    def _add(self, stage: KnockedOut, one: KnockOutRound) -> None:
        found = self._of(stage)
        self._replace(found.model_copy(update={"rounds": [*found.rounds, one]}))
        self.job.knock_outs = with_gains(self.job.knock_outs, in_one=self._user)

    def _replace(self, knock_out: KnockOut) -> None:
        stages = [each.stage for each in self.job.knock_outs]
        self.job.knock_outs[stages.index(knock_out.stage)] = knock_out
