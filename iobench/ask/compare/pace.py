"""How fast one host is, how far its storage can grow, and what saves and interruptions take.

An interruption stops the whole job, so that N hosts are interrupted N times as often as one. What
is lost then is exact for failures at random (``judge.checkpoint_meaning``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from ...base.units import RESTART_S
from ...judge.checkpoint import asynchronous, slowdown
from ...judge.checkpoint_meaning import (
    SaveCost,
    drag_of,
    hosts_of,
    restoring,
    waste,
    whole_restores,
    whole_saves,
    writing,
)
from ...judge.fed import delivered
from ...judge.judged import judge
from ...judge.statistics import t_quantile
from ...record.ab import Drift
from ...record.checkpoint import Training
from ...record.run import PricedRecord, RunRecord, ServingRecord, TrainingRecord
from ...record.serving import ServedTrial
from ...record.training import Repetition
from ...record.verdict import Estimate
from .claims import MIN_DEGREES, spread_of

MAX_INTERRUPTIONS_PER_HOUR = 1e12
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveTimes:
    """What a save and a restore of the whole model take, by ``writers`` hosts at the same time.

    Each of them gets what each of the ``measured`` hosts got in the run ``run_id``. Means of the
    saves and restores; where ``bytes`` is less than ``full_bytes``, they are computed at the
    measured bandwidth.
    """

    run_id: str
    writers: int = 1
    measured: int = 1
    bytes: int = 0
    full_bytes: int = 0
    blocked_s: float  # training stands still
    behind_s: float = 0.0  # then, until a restore finds the save
    drag: float | None = 0.0  # share of its progress that a step loses then; None: not measured
    restore_s: float | None = None  # None: not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When a training saves, and what an interruption costs besides the work since the last save.

    ``saving`` is None if the time of a save is not known: then it is not in the losses.
    """

    every_s: float = 3600.0
    restart_s: float = RESTART_S  # without the restore
    saving: SaveTimes | None = None


def saving_of(doc: RunRecord, hosts: int = 1, *, grows: bool = False) -> SaveTimes | None:
    """The saves that a run measured, as those of the whole model; None if there are none.

    More hosts than were measured get no more together than these, unless the storage ``grows``.
    """
    study = doc.checkpoints
    if study is None:
        return None
    measured = hosts_of(study)
    writers = hosts if grows else min(hosts, measured)
    training = Training(hosts_writing=writers)
    saves = whole_saves(study, writing(study, training))
    if not saves:
        return None
    restores = whole_restores(study, restoring(study, training))
    slower = slowdown(study)
    return SaveTimes(
        run_id=doc.run_id,
        writers=writers,
        measured=measured,
        bytes=study.bytes,
        full_bytes=study.full_bytes,
        blocked_s=fmean(save.blocked_s for save in saves),
        behind_s=fmean(save.behind_s for save in saves),
        drag=drag_of(slower) if slower is not None or not asynchronous(study) else None,
        restore_s=fmean(restores) if restores else None,
    )


def lost_share(schedule: Schedule, interruptions_per_hour: float) -> float:
    """Share of the time of a job that is interrupted so often, 0 to 1."""
    saving, never = schedule.saving, interruptions_per_hour <= 0
    if saving is None and never:
        return 0.0
    mtbf = _HOUR_S / min(1.0 if never else interruptions_per_hour, MAX_INTERRUPTIONS_PER_HOUR)
    if saving is None:
        return waste(schedule.every_s, 0.0, mtbf, schedule.restart_s)
    cost = SaveCost(
        blocked_s=saving.blocked_s,
        behind_s=saving.behind_s,
        drag=saving.drag or 0.0,
        mtbf_s=mtbf,
        restart_s=schedule.restart_s + (saving.restore_s or 0.0),
    )
    return min(1.0, cost.overhead(schedule.every_s) if never else cost.waste(schedule.every_s))


def without_saves(repetition: Repetition) -> float | None:
    """Samples/s of a repetition in the time in which it did not save checkpoints."""
    rate, saves = repetition.samples_per_s, repetition.checkpoint_s
    if rate is None or not saves:
        return rate
    startups = [each.startup_s for each in repetition.ranks]
    span = (repetition.wall_s or 0.0) - (sum(startups) / len(startups) if startups else 0.0)
    return rate * span / (span - saves) if span > saves else None


METRIC = "samples_per_s"

Basis = Literal["runs", "drift", "repetitions"]
"""What an interval rests on: the runs of the group, the runs and the drift that is known of their
place, or the repetitions of the runs, which tell nothing about another day."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Samples/s of one host, without the time of saves; of a server, at a rate that it holds.

    ``values`` has the median of each run. ``low`` and ``high`` are the 95 % interval of the rate of
    such runs; with the basis ``repetitions`` they are the slowest and the fastest repetition.
    """

    runs: tuple[PricedRecord, ...]
    values: tuple[float, ...]
    middle: float
    low: float
    high: float
    basis: Basis
    utilization: float | None  # sustained
    # What the storage delivers to all hosts together, in samples/s; None: not measured
    storage: Estimate | None
    preparation_s: float | None  # to write the loader's own layout once, for one sample
    lasting: bool = False  # the rate of some of the runs is not that of their whole time
    slowed: bool = False  # by asynchronous saves, beside which the runs went on
    drift: Drift | None = None

    @property
    def hosts(self) -> int:
        """The number of hosts that each run had."""
        return max(1, len(self.runs[0].hosts))

    @property
    def type(self) -> str:
        """The type of instance that the runs recorded; empty if they did not."""
        return self.runs[0].host.instance_type or ""


def pace_of(runs: Sequence[PricedRecord], drift: Drift | None = None) -> Pace | None:
    """The pace of runs of the same identity; None if they measured no rate.

    ``drift``: how much such runs differ from one another, as earlier runs tell.
    """
    hosts = max(1, len(runs[0].hosts)) if runs else 1
    rates = {id(doc): [rate / hosts for rate in rates_of(doc)] for doc in runs}
    counted = tuple(doc for doc in runs if rates[id(doc)])
    if not counted:
        return None
    values = tuple(median(rates[id(doc)]) for doc in counted)
    every = [rate for doc in counted for rate in rates[id(doc)]]
    interval = _between(values, drift)
    low, high = interval or (min(every), max(every))
    trained = [doc for doc in counted if isinstance(doc, TrainingRecord)]
    shares = [judge(doc).epoch_share or 1.0 for doc in trained]
    used = [
        min(1.0, used * share)
        for doc, share in zip(trained, shares, strict=True)
        for repetition in doc.job.repetitions
        if repetition.complete
        and (used := repetition.accelerator_utilization_sustained) is not None
    ]
    return Pace(
        runs=counted,
        values=values,
        middle=median(values),
        low=min(low, median(values)),
        high=max(high, median(values)),
        basis="repetitions" if interval is None else "drift" if drift else "runs",
        utilization=median(used) if used else None,
        storage=_storage(trained),
        preparation_s=_preparation(trained),
        lasting=any(share != 1 for share in shares),
        slowed=any(doc.job.saves and asynchronous(doc.job.saves) for doc in trained),
        drift=drift,
    )


def metric_of(doc: RunRecord) -> str:
    """The metric of a run's pace."""
    return "requests_per_s" if isinstance(doc, ServingRecord) else METRIC


def rates_of(doc: RunRecord) -> list[float]:
    """Samples/s of each complete repetition; of a server, where its limit held in most of them."""
    if isinstance(doc, ServingRecord):
        held = held_in(doc)
        most = 2 * len(held) > len(doc.job.repetitions)
        return [one.requests_per_s for one in held if most and one.requests_per_s]
    if not isinstance(doc, TrainingRecord):
        return []
    done = [without_saves(each) for each in doc.job.repetitions if each.complete]
    # What workers made during saves comes at once after them: so fast they are not without saves.
    quiet = doc.job.quiet
    alone = (quiet.samples_per_s if quiet is not None else None) or math.inf
    share = judge(doc).epoch_share or 1.0
    return [min(rate, alone) * share for rate in done if rate]


def held_in(doc: ServingRecord) -> list[ServedTrial]:
    """The repetitions in which the limit held, and the latency did not grow."""
    return [one for one in doc.job.repetitions if one.holds and one.steady is not False]


def _between(values: Sequence[float], drift: Drift | None) -> tuple[float, float] | None:
    """Student's t interval of the geometric mean of runs; None with too few degrees of freedom."""
    logs = [math.log(value) for value in values]
    middle, (sd, degrees) = fmean(logs), spread_of([logs], drift)
    if degrees < MIN_DEGREES:
        return None
    half = t_quantile(degrees, 0.05) * sd / math.sqrt(len(logs))
    half = min(half, 60.0)  # a record of somebody else may hold any rates
    return math.exp(middle - half), math.exp(middle + half)


def _storage(runs: Sequence[TrainingRecord]) -> Estimate | None:
    """What the storage delivers: the median of the runs, with the widest of their intervals."""
    found = [
        supply
        for judged in map(judge, runs)
        if not judged.evidence.cached and (supply := delivered(judged)) is not None
    ]
    if not found:
        return None
    lows, highs = [each.low for each in found], [each.high for each in found]
    known = None not in lows and None not in highs
    return Estimate(
        value=median(each.value for each in found),
        low=min(low for low in lows if low is not None) if known else None,
        high=max(high for high in highs if high is not None) if known else None,
        n=len(found),
    )


def _preparation(runs: Sequence[TrainingRecord]) -> float | None:
    """Seconds to convert one sample on one host; None if the loader has no layout of its own."""
    known = [
        layout.seconds / samples
        for doc in runs
        if (layout := doc.job.loader.layout) and (samples := doc.job.dataset.samples)
    ]
    return median(known) if known else None
