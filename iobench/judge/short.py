"""Runs that are too short, or whose epochs are cut, to tell what limits them."""

from __future__ import annotations

import math

from ..base.units import counted, format_count
from .again import NEW
from .evidence import Evidence, TooShort

MIN_TOLD_STEPS = 5
"""A rank that makes fewer steps in a repetition does little else than start."""

MIN_ROUNDS = 2
"""Rounds of workers: in the first one all of them fill their queues."""


def needed_steps(workers: float) -> int:
    """Steps of a rank with so many workers in a repetition that can tell the bottleneck."""
    return max(MIN_TOLD_STEPS, int(MIN_ROUNDS * workers))


def too_short(evidence: Evidence) -> TooShort | None:
    """Why the run is too short to tell the bottleneck; None if it is long enough, or not known."""
    samples, batch, steps = evidence.samples, evidence.batch_size, evidence.rank_steps
    if evidence.modelled or evidence.measured is None:
        return None
    needed = needed_steps(evidence.streams / evidence.accelerators)
    if (
        not evidence.watched
        and samples
        and batch
        and (samples == 1 or samples < batch * evidence.accelerators)
    ):
        what = (
            "the dataset has one sample"
            if samples == 1
            else f"a batch of {format_count(batch)} samples for each of "
            f"{counted(evidence.accelerators, 'accelerator')} is more than the "
            f"{format_count(samples)} samples of the dataset"
        )
        return TooShort(
            f"{what}, so nothing overlaps",
            _with_more(evidence, 2 * needed),
        )
    if steps is None or steps >= needed or steps <= 0:
        return None
    factor = math.ceil(2 * needed / steps)
    if evidence.watched:
        return TooShort(
            f"each rank made {steps:.0f} steps while it was watched, and {needed} are needed to "
            "tell the start from the rest",
            f"iobench.watch around {counted(2 * needed, 'step')} or more",
        )
    return TooShort(
        f"each rank made {steps:.0f} steps in a repetition, and {needed} are needed to tell "
        "the start from the rest",
        evidence.again().longer(factor, _longer(evidence, 2 * needed)),
    )


def _longer(evidence: Evidence, steps: int) -> dict[str, object]:
    """The settings with which a rank makes so many steps in a repetition."""
    whole = (evidence.samples or 0) // max(1, (evidence.batch_size or 1) * evidence.accelerators)
    if whole and not evidence.subject.users:
        epochs = math.ceil(steps / whole)
    else:  # how long an epoch is depends on the loader
        epochs = evidence.job.workload.epochs * math.ceil(steps / (evidence.rank_steps or 1))
    found: dict[str, object] = {"epochs": epochs} if epochs > evidence.job.workload.epochs else {}
    return found | {"max_steps": steps}


def _with_more(evidence: Evidence, steps: int) -> str:
    """The command of a run in which a rank makes so many steps in an epoch."""
    again = evidence.again()
    if again.budget_s is not None and not again.data_is_given:
        return again.longer(steps, {})
    make = again.generate((evidence.batch_size or 1) * evidence.accelerators * steps)
    if make:
        return f"{make}; {again.line(data=NEW)}"
    size = (evidence.samples or 1) // (steps * evidence.accelerators)
    return again.line({"batch_size": max(1, size)})


LONGER = "measure whole epochs (a larger --budget, or --set max_steps=null)"
"""Advice where the run's settings, and not the job's data, made its epochs short."""

CUT = 0.9
"""A run whose ``max_steps`` is less than this share of an epoch of its dataset saw no whole one."""


def cut_epochs(evidence: Evidence) -> int | None:
    """The steps of a rank in an epoch of the dataset, if the run did not make so many."""
    steps, batch, samples = evidence.rank_steps, evidence.batch_size, evidence.samples
    if evidence.job.workload.max_steps is None or not steps or not batch or not samples:
        return None
    whole = samples // (batch * evidence.accelerators)
    return whole if steps < CUT * whole else None
