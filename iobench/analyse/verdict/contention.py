"""How much a model that is trained and its loader take from one another."""

from __future__ import annotations

from ...schema.record import TrainingRecord
from ...schema.training import Ceiling
from .rules_data import complete


def contention(doc: TrainingRecord) -> float | None:
    """How much longer a model's step takes beside the loader than alone; None if not a model's.

    Alone: from the ceiling of the accelerator. Beside: the mean busy time of a step, over all
    complete repetitions.
    """
    alone = doc.job.ceilings.get("accelerator", Ceiling()).samples_per_s
    done = [one for one in complete(doc) if one.busy_s and one.samples]
    if doc.job.trained is None or not alone or not done:
        return None
    busy_s = sum((one.busy_s or 0.0) * one.accelerators for one in done)
    samples = sum(one.samples for one in done)
    return busy_s / samples * alone / doc.job.accelerators
