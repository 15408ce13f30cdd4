"""The settings of MLPerf Storage's CLOSED division, and whether a run has them.

Rules.md (edition 3.0) 3.6.2 names the few parameters that may change; a run that changes another
one is not CLOSED. ``REFERENCES`` has the values of their configurations (configs/dlio/workload) by
the name of iobench's workload; a test compares it with the workloads and datasets that iobench has.
Not compared: ``reader.crop`` and ``reader.decode``, since what happens to a sample after it was
read is not a matter of the storage, and free parameters (workers, accelerators, samples, place).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ...schema.record import TrainingRecord
from ...schema.workload import OWN_LOADER
from ...units import format_share
from .rules_data import Outcome, unknown

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
        *(edition, 7, step_time, 5, 0.9, "files", "npz", 1, 146_600_628, 68_341_808),
        direct=True,
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


def workload(doc: TrainingRecord) -> Outcome | None:
    """Check that the workload is one of theirs (2.1.11). The other rules hold for any workload."""
    name = doc.job.workload.name
    if name == "?":
        return unknown("the workload's name is not recorded")
    if name in REFERENCES:
        return None
    return Outcome(
        f"workload '{name}' is not one that can be submitted to MLPerf Storage: the run is held to "
        "its other rules, but is no result of that benchmark",
        "for a result of that benchmark, use one of its workloads, such as unet3d-b200 "
        "(docs/rules.md lists them)",
    )


def settings(doc: TrainingRecord) -> Outcome | None:
    """Check that only those settings differ from the reference that may differ in CLOSED."""
    reference = REFERENCES.get(doc.job.workload.name)
    if reference is None:
        return None  # ``workload`` says so
    spec = doc.job.dataset.spec
    if doc.job.workload.batch_size is None or spec.sample_size.mean is None:
        return unknown("the batch size or the sizes of the samples are not recorded")
    changed = list(_changed(doc, reference))
    if not changed:
        return None
    remedy = "leave these settings as the workload and its dataset have them"
    if doc.job.workload.max_steps is not None:
        remedy = f"run whole epochs (--set max_steps=null), and {remedy}"
    return Outcome(f"settings that CLOSED does not allow: {'; '.join(changed)}", remedy)


def _changed(doc: TrainingRecord, reference: Reference) -> Iterator[str]:
    """Each setting that differs, with its value and the reference's."""
    job, spec = doc.job.workload, doc.job.dataset.spec
    sizes = spec.sample_size.model_extra or {}
    found: dict[str, tuple[object, object]] = {
        "accelerator.kind": (job.accelerator.kind, "emulated"),
        "accelerator.step_time": (job.accelerator.step_time, reference.step_time),
        "batch_size": (job.batch_size, reference.batch_size),
        "epochs": (job.epochs, reference.epochs),
        "max_steps": (job.max_steps, None),
        "reader.shuffle": (job.reader.shuffle, True),
        "reader.columns": (job.reader.columns, None),
        "reader.mmap": (job.reader.mmap, False),
        "loader.kind": (doc.job.loader.kind or job.loader.kind or OWN_LOADER, OWN_LOADER),
        "dataset.format": (spec.format, reference.format),
        "dataset.content": (spec.content, reference.content),
        "dataset.codec": (spec.codec, "none"),
        "dataset.sample_size.mean": (spec.sample_size.mean, reference.mean),
        "dataset.sample_size.stdev": (sizes.get("stdev") or 0, reference.stdev),
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
