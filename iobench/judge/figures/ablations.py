"""What a stage costs: the rate without it over the rate with it, in rounds.

All rates are steady: what happens until the pipeline is full is left out on both sides, and is a
stage of its own, ``fill``. Phases that are too short for that are compared over the same number of
first steps. A gain is the geometric mean of the rounds' ratios, and its interval is
that of Student's t for their logarithms, so that a drift from round to round cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...record.training import Epoch, TrainingRun
from ...record.verdict import AblatedStage, Ablation, AblationRound, Estimate
from ...settings.workload import AcceleratorSpec
from ..statistics import NOISE, ratio_estimate
from .events import Events, RankEpoch, rank_epochs, select
from .ranktime import starts_left_out

Mask = npt.NDArray[np.bool_]

FEW_ROUNDS = 0.15
"""A gain of one or two rounds has to be larger than this.

One round has no interval. That of two rounds (Student's t, one degree of freedom) is far too wide
to decide anything, although both may agree.
"""

MIN_ROUNDS = 3
"""Rounds from which on the interval of a gain decides."""

FILL = "the rate of each repetition with the first batches of its epochs left out"


class How(NamedTuple):
    """How the ranks of a run step: batches that arrive together, and whether ranks step in step.

    ``round_steps``: of one rank, a batch of each of its workers or as many as these read ahead.
    ``in_flight``: batches of a rank that may be made before its first one arrives; 0: not known.
    ``queued``: a save may wait for the one before it, as those of an asynchronous writer.
    """

    round_steps: int
    together: bool = False
    in_flight: int = 0
    queued: bool = False


def in_step(accelerator: AcceleratorSpec, ranks: int) -> bool:
    """Whether ranks with this accelerator wait for each other at each step."""
    return ranks > 1 and accelerator.sync == "step"


def how_of(job: TrainingRun) -> How:
    """How the ranks of a run step."""
    workload = job.workload
    steps = job.loader.round_batches or workload.loader.workers
    return How(
        steps,
        in_step(workload.accelerator, job.accelerators),
        int(job.loader.in_flight_batches or 0),
        job.saves is not None and any(each.waited_s is not None for each in job.saves.saves),
    )


def how_without(stage: AblatedStage, job: TrainingRun) -> How:
    """How they step without a stage: without ``sync``, each of them counts by itself."""
    how = how_of(job)
    return how._replace(together=False) if stage == "sync" else how


def phase_of(stage: AblatedStage) -> str:
    """The phase of an ablation in the events."""
    return f"without-{stage}"


def round_rates(
    base: Events, without: Events, how: How, how_without: How
) -> tuple[float | None, float | None, int]:
    """Samples/s of a phase without a stage and of its repetition, and the batches left out of both.

    The first batch is often late, and those of other workers are ready when it arrives. In a short
    phase they are a larger part of all batches than in a long one, so that it seems to be faster.
    So the batches in flight at the start are left out where each rank has made a whole round after
    them. Otherwise both rates are those of the same first steps, with the fill: a stage that costs
    nothing makes no difference to these. Where it is not known how many batches are in flight, the
    first round is left out.
    """
    steps = min(_fewest_steps(base), _fewest_steps(without))
    rounds = how.in_flight + max(1, how.round_steps)
    if not how.in_flight or steps >= rounds or not steps:
        left_out = how.in_flight if steps >= rounds else 0
        return (
            steady_rate(without, how_without, in_flight=left_out),
            steady_rate(base, how, in_flight=left_out),
            left_out,
        )
    return (_rate_of_first(without, steps, how_without), _rate_of_first(base, steps, how), 0)


def _fewest_steps(events: Events) -> int:
    """The steps of the longest epoch of the rank that made the fewest; 0 without events."""
    longest: dict[int, int] = {}
    for part in rank_epochs(events) if len(events["step"]) else ():
        steps = int(part.rows["steps"].sum())
        longest[part.rank] = max(longest.get(part.rank, 0), steps)
    return min(longest.values(), default=0)


def _rate_of_first(events: Events, steps: int, how: How) -> float | None:
    """Samples/s of the first steps of each epoch that has so many, with its fill."""

    def first(part: RankEpoch) -> Mask:
        whole = int(part.rows["steps"].sum()) >= steps
        return part.rows["step"] < (steps if whole else 0)

    return _rate(events, first, {}, how)


def steady_rate(events: Events, how: How, *, in_flight: int = 0) -> float | None:
    """Samples/s over all ranks, with the fill of each epoch left out.

    ``events`` are the rows of one phase and repetition. Workers start together, so the first round
    of a rank is left out; an epoch with fewer than two rounds counts from its second step on, and
    one with a single step does not count. Checkpoints count with their share of all steps, since
    the steady part may have one save more or fewer. Of ranks that step in step, the slowest one's
    time counts. Where saves are queued, the first one, which waits for none, costs as much as those
    after it. ``in_flight``: so many batches are left out instead of a round, and epochs without a
    round after them. None if nothing is left.
    """
    first = max(1, how.round_steps)

    def steady(part: RankEpoch) -> Mask:
        steps = part.rows["step"]
        later: Mask = steps >= max(first, in_flight)
        if int(part.rows["steps"][later].sum()) >= first:
            return later
        return steps < 0 if in_flight else steps > 0

    return _rate(events, steady, {}, how)


def whole_rate(events: Events, epochs: Sequence[Epoch], how: How) -> float | None:
    """Samples/s over all ranks, as ``steady_rate``, but with the fill of each of ``epochs``.

    The start-up of each is left out (``starts_left_out``).
    """
    startups = {epoch.epoch: epoch.startup_s or 0.0 for epoch in epochs}
    return _rate(events, lambda part: part.rows["step"] >= 0, startups, how)


def _rate(
    events: Events, chosen: Callable[[RankEpoch], Mask], startups: Mapping[int, float], how: How
) -> float | None:
    """Samples/s in the ``chosen`` rows of each rank and epoch, which follow each other.

    An epoch in ``startups`` counts from this time in seconds on, any other from the chosen rows'
    begin.
    """
    ranks: dict[int, _Counted] = {}
    for part in rank_epochs(events) if len(events["step"]) else ():
        counted = ranks.setdefault(part.rank, _Counted(how.queued))
        counted.add(part, chosen(part), startups.get(part.epoch))
    spans = {rank: counted.seconds() for rank, counted in ranks.items()}
    if not spans or min(spans.values()) <= 0:
        return None
    if how.together:
        return sum(counted.samples for counted in ranks.values()) / max(spans.values())
    return sum(counted.samples / spans[rank] for rank, counted in ranks.items())


class _Counted:
    """What a rank did in the rows that count, and its checkpoints in all rows."""

    def __init__(self, queued: bool) -> None:
        self.samples = self.all_samples = 0
        self.loading_s = 0.0
        self.saves_s: list[float] = []
        self.queued = queued

    def add(self, part: RankEpoch, rows: Mask, startup_s: float | None) -> None:
        nothing = np.zeros(len(rows))
        saves_s = part.rows.get("checkpoint_ns", nothing) / 1e9
        self.saves_s += saves_s[saves_s > 0].tolist()
        self.all_samples += int(part.rows["samples"].sum())
        if not rows.any():
            return
        begin_s = float(part.rows["start_ns"][rows][0]) / 1e9 if startup_s is None else startup_s
        end = int(np.flatnonzero(rows)[-1]) + 1
        end_ns = part.rows["start_ns"][end] if end < len(rows) else part.end_ns
        self.loading_s += float(end_ns) / 1e9 - begin_s - float(saves_s[rows].sum())
        self.samples += int(part.rows["samples"][rows].sum())

    def seconds(self) -> float:
        """Time for the samples, with their share of the checkpoints."""
        if not self.samples:
            return 0.0
        saves = self.saves_s
        if self.queued and len(saves) > 1:
            saves = [fmean(saves[1:])] * len(saves)
        return self.loading_s + sum(saves) * self.samples / self.all_samples


def gain(rounds: Sequence[AblationRound]) -> Estimate | None:
    """The gain over all complete rounds; without an interval if there is only one."""
    return ratio_estimate(
        [
            (one.samples_per_s or 0.0, one.base_samples_per_s or 0.0)
            for one in rounds
            if one.complete
        ]
    )


def with_gain(ablation: Ablation, without_storage: Sequence[AblationRound] = ()) -> Ablation:
    """The ablation with its gain, or with the reason why there is none.

    ``without_storage``: rounds whose gain is no part of this one's (``without_prep_alone``).
    """
    rounds = without_prep_alone(ablation.rounds, without_storage)
    found = gain(rounds)
    why = ablation.not_measured
    if found is not None:
        why = ""
    elif not why:
        why = "no round was completed" if ablation.rounds else "no round was made"
    return ablation.model_copy(update={"gain": found, "not_measured": why})


def with_gains(ablations: Sequence[Ablation], *, in_one: bool) -> list[Ablation]:
    """All ablations with their gains.

    ``in_one``: the loader reads and prepares in one, so that ``prep`` left out both.
    """
    storage = next((each.rounds for each in ablations if each.stage == "storage"), [])
    return [
        with_gain(each, storage if in_one and each.stage == "prep" else ()) for each in ablations
    ]


def without_prep_alone(
    rounds: Sequence[AblationRound], without_storage: Sequence[AblationRound]
) -> list[AblationRound]:
    """The rounds that left out storage and preparation, as if they had left out the latter only.

    A worker reads and prepares one after the other, so the time that leaving out the storage saves
    for a sample is added again. If no round left out the storage, they are returned as they are; if
    some did, those without such a twin are left out.
    """
    twins = {
        one.repetition: (one.samples_per_s, one.base_samples_per_s)
        for one in without_storage
        if one.complete and one.samples_per_s and one.base_samples_per_s
    }
    if not twins:
        return list(rounds)
    found = []
    for one in rounds:
        if one.repetition not in twins or not one.samples_per_s:
            continue
        warm, base = twins[one.repetition]
        reading_s = max(0.0, 1 / (base or 1.0) - 1 / (warm or 1.0))
        rate = 1 / (1 / one.samples_per_s + reading_s)
        found.append(one.model_copy(update={"samples_per_s": rate}))
    return found


def without_fill(number: int, events: Events, epochs: Sequence[Epoch], how: How) -> AblationRound:
    """The round of ``fill``: it needs no phase of its own.

    ``events`` and ``epochs`` are those of repetition ``number``.
    """
    return AblationRound(
        repetition=number,
        samples_per_s=steady_rate(events, how),
        base_samples_per_s=whole_rate(events, epochs, how),
        seconds=0.0,
    )


def ablations_again(job: TrainingRun, events: Events) -> list[Ablation]:
    """The ablations of ``job`` computed again; what has no events stays as recorded."""
    how = how_of(job)
    again = [
        ablation.model_copy(
            update={
                "rounds": [_again(ablation.stage, one, job, events, how) for one in ablation.rounds]
            }
        )
        for ablation in job.ablations
    ]
    return with_gains(again, in_one=job.subject.users)


def _again(
    stage: AblatedStage, one: AblationRound, job: TrainingRun, events: Events, how: How
) -> AblationRound:
    base, rows = (select(events, name, one.repetition) for name in ("measure", phase_of(stage)))
    if stage == "fill":
        if one.repetition >= len(job.repetitions) or not len(base["step"]):
            return one
        epochs = starts_left_out(job.repetitions[one.repetition].epochs, job.subject)
        again = without_fill(one.repetition, base, epochs, how)
        return again.model_copy(update={"complete": one.complete})
    if not one.complete or not len(base["step"]) or not len(rows["step"]):
        return one
    without, with_it, in_flight = round_rates(base, rows, how, how_without(stage, job))
    update = {"samples_per_s": without, "base_samples_per_s": with_it, "in_flight": in_flight}
    return one.model_copy(update=update)


def interval(gain: Estimate) -> tuple[float, float]:
    """The interval of a gain; one of a few rounds is taken as known to within ``FEW_ROUNDS``."""
    low, high = gain.value / (1 + FEW_ROUNDS), gain.value * (1 + FEW_ROUNDS)
    if gain.low is None or gain.high is None:
        return low, high
    if gain.n < MIN_ROUNDS:
        return max(low, gain.low), min(high, gain.high)
    return gain.low, gain.high


def is_told(gain: Estimate | None, unsteady: float = 0.0) -> bool:
    """Whether a gain is significant: it excludes 1 by the noise threshold.

    ``unsteady``: by how much the fastest repetition was faster than the slowest one. A gain of one
    or two rounds that is not larger may be no more than that.
    """
    if gain is None:
        return False
    if gain.low is not None and gain.low > 1 + NOISE:
        return True
    few = gain.low is None or gain.n < MIN_ROUNDS
    return few and gain.value > 1 + max(FEW_ROUNDS, unsteady)
