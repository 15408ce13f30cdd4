"""The share of the time that saves and interruptions take from a training that is paid for.

An interruption stops the whole job, so that N hosts are interrupted N times as often as one. What
is lost then is exact for failures at random (``analyse.checkpoint.interval``).
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from ...schema.checkpoint import Training
from ...schema.record import RunRecord
from ...schema.training import Repetition
from ..checkpoint.interval import waste
from ..checkpoint.meaning import SaveCost
from ..checkpoint.study import slowdown
from ..checkpoint.whole import restoring, whole_restores, whole_saves, writing

MAX_INTERRUPTIONS_PER_HOUR = 1e12
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What a save and a restore of the whole model take, by ``writers`` hosts at the same time.

    Each of them gets what one host got in the run ``run_id``. Means of the saves and restores;
    where ``bytes`` is less than ``full_bytes``, they are computed at the measured bandwidth.
    """

    run_id: str
    writers: int = 1
    bytes: int = 0
    full_bytes: int = 0
    blocked_s: float  # training stands still
    behind_s: float = 0.0  # then, until a restore finds the save
    drag: float = 0.0  # share of its progress that a step loses in that time
    restore_s: float | None = None  # None: not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When a training saves, and what an interruption costs besides the work since the last save.

    ``saving`` is None if the time of a save is not known: then it is not in the losses.
    """

    every_s: float = 3600.0
    restart_s: float = 300.0  # without the restore
    saving: Saving | None = None


def saving_of(doc: RunRecord, writers: int = 1) -> Saving | None:
    """The saves that a run measured, at the size of the whole model; None if there are none."""
    study = doc.checkpoints
    if study is None:
        return None
    training = Training(hosts_writing=writers)
    saves = whole_saves(study, writing(study, training))
    if not saves:
        return None
    restores = whole_restores(study, restoring(study, training))
    slower = slowdown(study)
    return Saving(
        run_id=doc.run_id,
        writers=writers,
        bytes=study.bytes,
        full_bytes=study.full_bytes,
        blocked_s=fmean(save.blocked_s for save in saves),
        behind_s=fmean(save.behind_s for save in saves),
        drag=0.0 if slower is None or slower <= 1 else 1 - 1 / slower,
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
        drag=saving.drag,
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
