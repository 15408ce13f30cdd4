"""What MLPerf Storage demands of a training run beyond, or instead of, iobench's own rules.

Sources: Submission_guidelines.md (v2.0) and Rules.md (edition 3.0) of mlcommons/storage; the
numbers in the docstrings are those of Rules.md, with a section of the guidelines where only they
have the rule. ``docs/rules.md`` compares both rule sets line by line. The settings of the CLOSED
division are in ``rules_closed``.

A repetition is a run in their sense. Their first run warms up and is not counted.
"""

from __future__ import annotations

from statistics import mean

from ...schema.record import TrainingRecord
from ...schema.training import Repetition
from ...units import counted, format_bytes, format_count, format_percent, percent_beside
from .evidence import gather
from .rules_cache import MEMORY_MULTIPLE
from .rules_data import MIN_REPETITIONS, MIN_STEPS, Outcome, complete, unknown

WARM_UP = 1
"""Runs before those that are counted (2.1.17: six runs, of which the first is not reported)."""

MAX_DEVIATION = 0.05
"""Largest distance of a counted run from the mean of all ("within 5%", guidelines 6.7)."""


def counted_repetitions(doc: TrainingRecord) -> list[Repetition]:
    """The complete repetitions after the warm-up."""
    return complete(doc)[WARM_UP:]


def dataset_size(doc: TrainingRecord) -> Outcome | None:
    """Check that the dataset is 5 x as large as the memory of all hosts (3.1.2).

    Cold reads do not replace the size, whatever proves them.
    """
    memory, stored = doc.installed_memory_bytes, doc.job.dataset.stored_bytes
    if not memory or not stored:
        return unknown("a host's memory or the dataset's size is not recorded")
    if stored >= MEMORY_MULTIPLE * memory:
        return None
    return Outcome(
        f"the dataset is {stored / memory:.2f} x the hosts' memory ({format_bytes(memory)}), less "
        f"than {MEMORY_MULTIPLE} x; cold reads do not replace that here",
        f"generate with --memory-multiple {MEMORY_MULTIPLE}",
    )


def epoch_steps(doc: TrainingRecord) -> Outcome | None:
    """Check that each epoch has 500 steps for each accelerator (3.1.2)."""
    steps = [step for repetition in complete(doc) for step in _steps(repetition)]
    if not steps:
        return unknown("no step was recorded")
    if min(steps) >= MIN_STEPS:
        return None
    return Outcome(
        f"{counted(min(steps), 'step')} for each accelerator in an epoch, fewer than {MIN_STEPS}",
        f"use a larger dataset: at least {MIN_STEPS} batches for each accelerator; more epochs do "
        "not replace it",
    )


def _steps(repetition: Repetition) -> list[int]:
    """Steps of one accelerator, by epoch; their mean where the epochs' own are not recorded."""
    ranks, epochs = max(1, repetition.accelerators), repetition.epochs
    known = [epoch.steps for epoch in epochs if epoch.steps is not None]
    if epochs and len(known) == len(epochs):
        return [steps // ranks for steps in known]
    return [repetition.steps // ranks // max(1, len(epochs))] if repetition.steps else []


def repetitions(doc: TrainingRecord) -> Outcome | None:
    """Check that a warm-up and five counted repetitions were completed (2.1.17)."""
    if not doc.job.repetitions:
        return unknown("no repetition is recorded")
    found, needed = len(complete(doc)), WARM_UP + MIN_REPETITIONS
    if found >= needed:
        return None
    return Outcome(
        f"{counted(found, 'complete repetition')}, fewer than {needed}: the first one is the "
        f"warm-up, and {MIN_REPETITIONS} are counted",
        f"run with --repeat {needed}",
    )


def replicability(doc: TrainingRecord) -> Outcome | None:
    """Check that each counted repetition is within 5 % of their mean (guidelines 6.7).

    The guidelines say "within 5% within 5 tries", and not of what. Their result is the mean of the
    runs (section 3), so it is that here.
    """
    rates = [each.samples_per_s for each in counted_repetitions(doc)]
    known = [rate for rate in rates if rate is not None]
    if len(known) < max(MIN_REPETITIONS, len(rates)):
        return unknown(
            f"{counted(len(known), 'rate')} after the warm-up: {MIN_REPETITIONS} show whether the "
            "result can be replicated"
        )
    middle = mean(known)
    off = max(known, key=lambda rate: abs(rate - middle))
    if abs(off - middle) <= MAX_DEVIATION * middle:
        return None
    return Outcome(
        f"a repetition reached {format_count(off)} samples/s, {format_percent(off / middle - 1)} "
        f"off the mean of {format_count(middle)}; at most {MAX_DEVIATION:.0%} are allowed",
        "find out what changes between repetitions: other users of the storage or the host, "
        "caches, or credits of a device that were used up",
    )


def utilization(doc: TrainingRecord) -> Outcome | None:
    """Check the utilization as they count it (3.3.2), in each counted repetition.

    It leaves out the first step of each epoch. Without enough repetitions, all of them count.
    """
    required = gather(doc).required
    runs = counted_repetitions(doc) or complete(doc)
    found = [each.accelerator_utilization for each in runs]
    known = [each for each in found if each is not None]
    if known and min(known) < required:
        return Outcome(
            "accelerator utilization as MLPerf counts it is "
            f"{percent_beside(min(known), required)} in a repetition, but the workload "
            f"requires {format_percent(required)}",
            "see the verdict and its advice; --find-max measures how many accelerators can be fed",
        )
    if not known or len(known) < len(found):
        reasons = [each.not_measured.get("accelerator_utilization", "") for each in runs]
        why = next(filter(None, reasons), "it is not in every complete repetition")
        return unknown(f"accelerator utilization was not measured: {why}")
    return None


def staged(doc: TrainingRecord) -> Outcome | None:
    """Check that a batch is asked for when the step before it has ended (guidelines 4)."""
    if not doc.job.workload.accelerator.staged:
        return None
    return Outcome(
        "a batch was staged while the accelerator worked on the one before; those of MLPerf "
        "Storage ask for a batch when they are free, so their utilization would be lower",
        "run with accelerator.staged=0",
    )


def barrier(doc: TrainingRecord) -> Outcome | None:
    """Check that several accelerators wait for each other after each step (guidelines 9)."""
    if doc.job.accelerators < 2 or doc.job.workload.accelerator.sync == "step":
        return None
    return Outcome(
        f"the {doc.job.accelerators} accelerators did not wait for each other after each step; "
        "those of MLPerf Storage do, so its utilization would be lower",
        "run with accelerator.sync=step; runs of older versions did not have it",
    )
