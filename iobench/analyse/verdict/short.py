"""Runs that are too short, or whose data is too small, to tell what limits them."""

from __future__ import annotations

import math
import shlex
from typing import NamedTuple

from ...units import counted, format_count
from .evidence import Evidence

MIN_TOLD_STEPS = 5
"""A rank that makes fewer steps in a repetition does little else than start."""

MIN_ROUNDS = 2
"""Rounds of workers: in the first one all of them fill their queues."""


class TooShort(NamedTuple):
    """Why a run can't tell what binds, and a command that makes one that is long enough."""

    why: str
    command: str

    def __str__(self) -> str:
        return f"{self.why}; long enough: {self.command}"


def too_short(evidence: Evidence) -> TooShort | None:
    """Why the run is too short to tell what binds; None if it is long enough, or not known."""
    samples, batch, steps = evidence.samples, evidence.batch_size, evidence.rank_steps
    if evidence.modelled or evidence.measured is None:
        return None
    needed = max(MIN_TOLD_STEPS, MIN_ROUNDS * evidence.streams // evidence.accelerators)
    if (
        not evidence.watched
        and samples
        and batch
        and (samples == 1 or samples < batch * evidence.accelerators)
    ):
        enough = 2 * needed * batch * evidence.accelerators
        what = (
            "the dataset has one sample"
            if samples == 1
            else f"a batch of {format_count(batch)} samples for each of "
            f"{counted(evidence.accelerators, 'accelerator')} is more than the "
            f"{format_count(samples)} samples of the dataset"
        )
        return TooShort(
            f"{what}, so nothing overlaps",
            f"iobench generate {shlex.quote(evidence.data)} --to NEW --samples {enough}",
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
        f"iobench run {shlex.quote(evidence.workload)} --data {shlex.quote(evidence.url)} "
        f"--set epochs={factor * max(1, evidence.epochs)} --set max_steps=null",
    )
