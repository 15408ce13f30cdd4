"""The share of the time that saves and interruptions take from a training that is paid for.

An interruption stops the whole job, so that N hosts are interrupted N times as often as one. What
is lost then is exact for failures at random (``analyse.checkpoint.interval``).
"""

from __future__ import annotations

from dataclasses import dataclass

from ...schema.record import RunRecord
from ...schema.training import Repetition
from ..checkpoint.interval import overhead, waste

MAX_INTERRUPTIONS_PER_HOUR = 1e12
_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """What a save and a restore of the whole model take, as a run on ``hosts`` hosts measured it.

    Where ``bytes`` is less than ``full_bytes``, the times are computed at the measured bandwidth.
    """

    run_id: str
    hosts: int = 1
    bytes: int = 0
    full_bytes: int = 0
    blocked_s: float  # training stands still
    exposed_s: float = 0.0  # then, until the save is durable
    restore_s: float | None = None  # None: not measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """When a training saves, and what an interruption costs besides the work since the last save.

    ``saving`` is None if the time of a save is not known: then it is not in the losses.
    """

    every_s: float = 3600.0
    restart_s: float = 300.0  # without the restore
    saving: Saving | None = None


def saving_of(doc: RunRecord) -> Saving | None:
    """The saves that a run measured, at the size of the whole model; None if there are none."""
    study = doc.checkpoints
    stopped = study.figures.get("blocked_s") if study else None
    if study is None or stopped is None:
        return None
    growth = study.full_bytes / study.bytes if study.bytes else 1.0
    end = study.figures.get("durable_s") or study.figures.get("accepted_s") or stopped
    restored = study.figures.get("restore_s")
    return Saving(
        run_id=doc.run_id,
        hosts=max(1, len(doc.hosts)),
        bytes=study.bytes,
        full_bytes=study.full_bytes,
        blocked_s=stopped.median * growth,
        exposed_s=max(0.0, end.median - stopped.median) * growth,
        restore_s=restored.median * growth if restored else None,
    )


def lost_share(schedule: Schedule, interruptions_per_hour: float) -> float:
    """Share of the time of a job that is interrupted so often, 0 to 1."""
    saving = schedule.saving
    blocked = saving.blocked_s if saving else 0.0
    if interruptions_per_hour <= 0:
        return overhead(schedule.every_s, blocked)
    restart = schedule.restart_s + ((saving.restore_s or 0.0) if saving else 0.0)
    mtbf = _HOUR_S / min(interruptions_per_hour, MAX_INTERRUPTIONS_PER_HOUR)
    return waste(schedule.every_s, blocked, mtbf, restart, saving.exposed_s if saving else 0.0)


def without_saves(repetition: Repetition) -> float | None:
    """Samples/s of a repetition in the time in which it did not save checkpoints."""
    rate, saves = repetition.samples_per_s, repetition.checkpoint_s
    if rate is None or not saves:
        return rate
    startups = [each.startup_s for each in repetition.ranks]
    span = (repetition.wall_s or 0.0) - (sum(startups) / len(startups) if startups else 0.0)
    return rate * span / (span - saves) if span > saves else None
