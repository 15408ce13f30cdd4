"""What MLPerf Storage demands of a training run beyond, or instead of, iobench's own rules.

Sources: Submission_guidelines.md (v2.0) and Rules.md (edition 3.0) of mlcommons/storage; the
numbers in the docstrings are those of Rules.md, with a section of the guidelines where only they
have the rule. ``docs/rules.md`` compares both rule sets line by line.

A repetition is a run in their sense. Their first run warms up and is not counted.

In the CLOSED division, 3.6.2 names the few parameters that may change; a run that changes another
one is not CLOSED. ``REFERENCES`` has the values of their configurations (configs/dlio/workload) by
the name of iobench's workload; a test compares it with the workloads and datasets that iobench has.
Not compared: ``reader.crop`` and ``reader.decode``, since what happens to a sample after it was
read is not a matter of the storage, and free parameters (workers, accelerators, samples, place).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

from ..base.units import (
    counted,
    format_bytes,
    format_count,
    format_percent,
    format_share,
    percent_beside,
)
from ..record.run import TrainingRecord
from ..record.training import Repetition
from ..settings.dataset import DatasetSpec
from ..settings.workload import OWN
from .judged import Judged
from .rules_cache import MEMORY_MULTIPLE
from .rules_data import MIN_REPETITIONS, MIN_STEPS, RuleOutcome, complete, unknown

WARM_UP = 1
"""Runs before those that are counted (2.1.17: six runs, of which the first is not reported)."""

MAX_DEVIATION = 0.05
"""Largest distance of a counted run from the mean of all ("within 5%", guidelines 6.7)."""


def counted_repetitions(doc: TrainingRecord) -> list[Repetition]:
    """The complete repetitions after the warm-up."""
    return complete(doc)[WARM_UP:]


def dataset_size(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the dataset is 5 x as large as the memory of all hosts (3.1.2).

    Cold reads do not replace the size, whatever proves them.
    """
    memory, stored = doc.installed_memory_bytes, doc.job.dataset.stored_bytes
    if not memory or not stored:
        return unknown("a host's memory or the dataset's size is not recorded")
    if stored >= MEMORY_MULTIPLE * memory:
        return None
    return RuleOutcome(
        f"the dataset is {stored / memory:.2f} x the hosts' memory ({format_bytes(memory)}), less "
        f"than {MEMORY_MULTIPLE} x; cold reads do not replace that here",
        f"generate with --memory-multiple {MEMORY_MULTIPLE}",
    )


def epoch_steps(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that each epoch has 500 steps for each accelerator (3.1.2)."""
    steps = [step for repetition in complete(doc) for step in _steps(repetition)]
    if not steps:
        return unknown("no step was recorded")
    if min(steps) >= MIN_STEPS:
        return None
    return RuleOutcome(
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


def repetitions(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a warm-up and five counted repetitions were completed (2.1.17)."""
    if not doc.job.repetitions:
        return unknown("no repetition is recorded")
    found, needed = len(complete(doc)), WARM_UP + MIN_REPETITIONS
    if found >= needed:
        return None
    return RuleOutcome(
        f"{counted(found, 'complete repetition')}, fewer than {needed}: the first one is the "
        f"warm-up, and {MIN_REPETITIONS} are counted",
        f"run with --repeat {needed}",
    )


def replicability(doc: TrainingRecord) -> RuleOutcome | None:
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
    return RuleOutcome(
        f"a repetition reached {format_count(off)} samples/s, {format_percent(off / middle - 1)} "
        f"off the mean of {format_count(middle)}; at most {MAX_DEVIATION:.0%} are allowed",
        "find out what changes between repetitions: other users of the storage or the host, "
        "caches, or credits of a device that were used up",
    )


def utilization(judged: Judged) -> RuleOutcome | None:
    """Check the utilization as they count it (3.3.2), in each counted repetition.

    It leaves out the first step of each epoch. Without enough repetitions, all of them count.
    """
    doc, required = judged.record, judged.evidence.required
    runs = counted_repetitions(doc) or complete(doc)
    found = [each.accelerator_utilization for each in runs]
    known = [each for each in found if each is not None]
    if known and min(known) < required:
        return RuleOutcome(
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


def staged(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that a batch is asked for when the step before it has ended (guidelines 4)."""
    if not doc.job.workload.accelerator.staged:
        return None
    return RuleOutcome(
        "a batch was staged while the accelerator worked on the one before. Those of MLPerf "
        "Storage ask for a batch when they are free, so their utilization would be lower",
        "run with accelerator.staged=0",
    )


def barrier(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that several accelerators wait for each other after each step (guidelines 9)."""
    if doc.job.accelerators < 2 or doc.job.workload.accelerator.sync == "step":
        return None
    return RuleOutcome(
        f"the {doc.job.accelerators} accelerators did not wait for each other after each step; "
        "those of MLPerf Storage do, so its utilization would be lower",
        "run with accelerator.sync=step",
    )


MAX_PREFETCHED = 2
"""Largest reader.prefetch_size: batches that the workers of a rank prefetch together."""


class Reference(NamedTuple):
    """One of their configurations, in the units of a workload and a dataset of iobench."""

    edition: str  # the last one in which it could be submitted
    batch_size: int
    step_time: float  # seconds
    epochs: int
    utilization: float  # 0 to 1
    format: str
    content: str
    samples_per_file: int
    mean: int  # bytes of a sample
    stdev: int = 0
    direct: bool = False  # whether O_DIRECT may be used (reader.odirect)


def _unet3d(edition: str, step_time: float) -> Reference:
    return Reference(
        *(edition, 7, step_time, 5, 0.9, "files", "npz", 1, 146_600_628, 68_341_808), direct=True
    )


def _resnet50(step_time: float) -> Reference:
    return Reference("2.0", 400, step_time, 5, 0.9, "tfrecord", "jpeg", 1251, 114_660)


def _cosmoflow(step_time: float) -> Reference:
    return Reference("2.0", 1, step_time, 5, 0.7, "tfrecord", "raw", 1, 2_828_486, 71_311)


def _retinanet(batch_size: int, step_time: float) -> Reference:
    return Reference("3.0", batch_size, step_time, 8, 0.85, "files", "jpeg", 1, 322_957)


REFERENCES = {
    "unet3d-b200": _unet3d("3.0", 0.162),
    "unet3d-h100": _unet3d("2.0", 0.323),
    "unet3d-a100": _unet3d("2.0", 0.636),
    "retinanet-b200": _retinanet(24, 0.04755),
    "retinanet-mi355": _retinanet(36, 0.071325),
    "resnet50-h100": _resnet50(0.224),
    "resnet50-a100": _resnet50(0.435),
    "cosmoflow-h100": _cosmoflow(0.0035),
    "cosmoflow-a100": _cosmoflow(0.00551),
}


def closed_workload(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that the workload is one of theirs (2.1.11). The other rules hold for any workload."""
    name = doc.job.workload.name
    if name == "?":
        return unknown("the workload's name is not recorded")
    if name in REFERENCES:
        return None
    return RuleOutcome(
        f"workload '{name}' is not one that can be submitted to MLPerf Storage. The run is held to "
        "its other rules, but is no result of that benchmark",
        "for a result of that benchmark, use one of its workloads, such as unet3d-b200 "
        "(docs/rules.md lists them)",
    )


def closed_settings(doc: TrainingRecord) -> RuleOutcome | None:
    """Check that only those settings differ from the reference that may differ in CLOSED."""
    reference = REFERENCES.get(doc.job.workload.name)
    if reference is None:
        return None  # ``workload`` says so
    spec = doc.job.dataset.spec
    if doc.job.workload.batch_size is None or spec is None:
        return unknown("the batch size or the sizes of the samples are not recorded")
    changed = list(_changed(doc, spec, reference))
    if not changed:
        return None
    remedy = "leave these settings as the workload and its dataset have them"
    if doc.job.workload.max_steps is not None:
        remedy = f"run whole epochs (--set max_steps=null), and {remedy}"
    return RuleOutcome(f"settings that CLOSED does not allow: {'; '.join(changed)}", remedy)


def _changed(doc: TrainingRecord, spec: DatasetSpec, reference: Reference) -> Iterator[str]:
    """Each setting that differs, with its value and the reference's."""
    job = doc.job.workload
    found: dict[str, tuple[object, object]] = {
        "accelerator.kind": (job.accelerator.kind, "emulated"),
        "accelerator.step_time": (job.accelerator.step_time, reference.step_time),
        "batch_size": (job.batch_size, reference.batch_size),
        "epochs": (job.epochs, reference.epochs),
        "max_steps": (job.max_steps, None),
        "reader.shuffle": (job.reader.shuffle, True),
        "reader.columns": (job.reader.columns, None),
        "reader.mmap": (job.reader.mmap, False),
        "loader.kind": (doc.job.subject.kind, OWN.kind),
        "dataset.format": (spec.format, reference.format),
        "dataset.content": (spec.content, reference.content),
        "dataset.codec": (spec.codec, "none"),
        "dataset.sample_size.mean": (spec.sample_size.mean, reference.mean),
        "dataset.sample_size.stdev": (spec.sample_size.stdev or 0, reference.stdev),
    }
    samples, shards = doc.job.dataset.samples, doc.job.dataset.shards
    if samples and shards:
        found["number of shards"] = (shards, math.ceil(samples / reference.samples_per_file))
    for key, (value, expected) in found.items():
        if not _equal(value, expected):
            yield f"{key} is {value} instead of {expected}"
    required = job.required_accelerator_utilization
    if required < reference.utilization:
        yield (
            f"required_accelerator_utilization is {format_share(required)}, below "
            f"{format_share(reference.utilization)}"
        )
    most = math.ceil(MAX_PREFETCHED / max(1, doc.job.workers))
    if job.loader.prefetch_factor > most:
        yield f"loader.prefetch_factor is {job.loader.prefetch_factor}, above {most}"
    if doc.job.loader.direct and doc.storage.page_cache is not False and not reference.direct:
        yield "reader.direct is true instead of false"


def _equal(one: object, other: object) -> bool:
    """Whether both are equal; numbers up to the rounding of ``47.55ms`` to seconds."""
    if isinstance(one, float) and isinstance(other, int | float):
        return math.isclose(one, other)
    return one == other
