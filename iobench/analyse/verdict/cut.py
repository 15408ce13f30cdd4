"""Runs whose settings, or whose budget, cut the epochs of their dataset."""

from __future__ import annotations

from .evidence import Evidence

LONGER = "measure whole epochs (a larger --budget, or --set max_steps=null)"
"""Advice where the run's settings, and not the job's data, made its epochs short."""

CUT = 0.9
"""A run whose ``max_steps`` is less than this share of an epoch of its dataset saw no whole one."""


def cut_epochs(evidence: Evidence) -> int | None:
    """The steps of a rank in an epoch of the dataset, if the run did not make so many."""
    steps, batch, samples = evidence.rank_steps, evidence.batch_size, evidence.samples
    if evidence.max_steps is None or not steps or not batch or not samples:
        return None
    whole = samples // (batch * evidence.accelerators)
    return whole if steps < CUT * whole else None
