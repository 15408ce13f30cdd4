"""What all hosts do at once: save a checkpoint, and read it again after an interruption.

A save takes as long as that of the host with the largest share. Each writes at its own rate, as
long as the storage gives all of them together so much. After an interruption all hosts read the
checkpoint at the same time. How often that happens grows with the accelerators: the mean time
between interruptions is that of the Llama 3 training, unless it is stated (``checkpoint.interval``,
which also has the best interval between saves, and what is lost).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ...errors import UsageError
from ..checkpoint.interval import best_s, published_mtbf_s, waste
from ..compare.statistics import NOISE
from .band import Band, either
from .model import Model, Point

NO_BYTES = "the bytes of a checkpoint are not known: give --checkpoint-bytes"
NO_RATE = "the rate at which a host writes is not known: give --host-write"
NO_READS = "what the storage delivers was not measured: give --storage-limit"


@dataclass(frozen=True, kw_only=True, slots=True)
class Saves:
    """Checkpoints of the job. Rates in bytes/s of durable writes.

    ``host_bytes_per_s``: of one host; ``storage_bytes_per_s``: of all hosts together, None if it
    is not known. ``copies``: how often a restart reads the checkpoint.
    """

    checkpoint_bytes: float | None = None
    host_bytes_per_s: float | None = None
    storage_bytes_per_s: float | None = None
    mtbf_s: float | None = None
    restart_s: float = 0.0
    copies: int = 1

    def check(self) -> None:
        """Raise UsageError for a rate or a time of a checkpoint without its bytes."""
        others = (self.host_bytes_per_s, self.storage_bytes_per_s)
        if self.checkpoint_bytes is None and any(each is not None for each in others):
            raise UsageError(
                "the rate of a checkpoint was given, but not its bytes",
                remedy="give e.g. --checkpoint-bytes 105GB",
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Storms:
    """Saves and restarts of all hosts. None: not known, and ``not_measured`` says why.

    ``lost``: share of the time for saves, lost work and restarts at ``interval_s``, 0 to 1.
    ``samples_per_s``: what is left of the job's rate.
    """

    mtbf_s: float
    mtbf_stated: bool
    save_s: Band | None = None
    restart_s: Band | None = None  # from an interruption until training goes on
    interval_s: Band | None = None
    lost: Band | None = None
    samples_per_s: Band | None = None
    not_measured: str = ""


def storms(model: Model, at: Point, saves: Saves) -> Storms | None:
    """The storms of the job at a point; None if no checkpoint was asked about."""
    if saves.checkpoint_bytes is None:
        return None
    mtbf = saves.mtbf_s or published_mtbf_s(at.accelerators)
    found = Storms(mtbf_s=mtbf, mtbf_stated=saves.mtbf_s is not None)
    if saves.host_bytes_per_s is None:
        return replace(found, not_measured=NO_RATE)
    save = save_s(
        saves.checkpoint_bytes,
        hosts=at.hosts,
        measured=model.base.hosts,
        of_one=saves.host_bytes_per_s,
        of_all=saves.storage_bytes_per_s,
    )
    restart = _restart_s(model, at.hosts, saves)
    if restart is None:
        return replace(found, save_s=save, not_measured=NO_READS)
    low, high = (
        waste(best_s(blocked, mtbf), blocked, mtbf, until)
        for blocked, until in ((save.low, restart.low), (save.high, restart.high))
    )
    value = None
    if save.value is not None and restart.value is not None:
        value = waste(best_s(save.value, mtbf), save.value, mtbf, restart.value)
    rate = at.samples_per_s
    left = None if value is None or rate.value is None else rate.value * (1 - value)
    return replace(
        found,
        save_s=save,
        restart_s=restart,
        interval_s=save.moved(lambda blocked: best_s(blocked, mtbf)),
        lost=Band(value, low, high),
        samples_per_s=Band(left, rate.low * (1 - high), rate.high * (1 - low)),
    )


def save_s(size: float, *, hosts: int, measured: int, of_one: float, of_all: float | None) -> Band:
    """Seconds until a checkpoint of ``size`` bytes is durable, written by ``hosts`` hosts.

    ``of_one``: bytes/s of one host; ``of_all``: of the storage. If that is not known, it is
    between what the ``measured`` hosts got and no limit.
    """
    best = size / (hosts * of_one)
    if of_all is not None:
        found = max(best, size / of_all)
        return Band(found, found, found)
    worst = size / (min(hosts, measured) * of_one)
    return Band(best if math.isclose(best, worst) else None, best, worst)


def _restart_s(model: Model, hosts: int, saves: Saves) -> Band | None:
    """All hosts read the checkpoint at once, past every cache."""
    size, sample = saves.checkpoint_bytes, model.base.bytes_per_sample
    assert size is not None
    if not sample:
        return None
    storage, through = model.supply.storage(hosts), model.supply.network(hosts)
    spared = 1 - model.supply.hits(hosts)
    bytes_ = size * saves.copies
    worst, likely, best = (
        None
        if rates is None
        else saves.restart_s + bytes_ / (spared * sample * rates.clip(max=through))
        for rates in (storage.worst, storage.likely, storage.best)
    )
    assert worst is not None
    assert best is not None
    if not np.isfinite(storage.best).all():
        return None
    middle = None if likely is None else likely[1:]
    return either(best[1:], middle, worst[1:], same=NOISE)
