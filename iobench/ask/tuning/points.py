"""The points of a sweep: settings, and what was measured with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...base.errors import UsageError
from ...base.units import parse_size
from ...record.run import TrainingRecord
from ...record.sweep import setting_text
from ...record.training import Repetition

PROSE = {
    "name",
    "description",
    "source",
    "dataset.name",
    "dataset.description",
    "dataset.source",
    "dataset.seed",
}
"""Keys of a workload or dataset that are not settings."""

SIZES = ("shard_size", "block_size", "slot_size", "crop", "mean", "stdev", "min", "max")


@dataclass(frozen=True, slots=True)
class SweptPoint:
    """Settings, and all runs with these settings.

    Settings map keys to texts, as in ``--set key=value``; keys of the dataset begin with
    ``dataset.``.
    """

    settings: Mapping[str, str]
    document: TrainingRecord

    @property
    def complete(self) -> list[Repetition]:
        return [
            repetition
            for repetition in self.document.job.repetitions
            if repetition.complete and repetition.samples_per_s
        ]

    @property
    def rates(self) -> tuple[float, ...]:
        """Samples/s of each complete repetition."""
        return tuple(float(repetition.samples_per_s or 0) for repetition in self.complete)

    @property
    def median(self) -> float:
        return median(self.rates)

    @property
    def stored_bytes(self) -> float | None:
        stored = self.document.job.dataset.stored_bytes
        return float(stored) if stored else None

    @property
    def cpu_s_per_gb(self) -> float | None:
        """CPU seconds per 1e9 bytes of uncompressed samples, median of the repetitions.

        Uncompressed bytes are the same for all points, whatever their codec.
        """
        size = plain_bytes_per_sample(self.document)
        costs = [
            r.cpu_s / (r.samples * size / 1e9)
            for r in self.complete
            if r.cpu_s is not None and r.samples and size
        ]
        return median(costs) if costs else None

    @property
    def shards(self) -> int | None:
        return self.document.job.dataset.shards

    @property
    def shard_bytes(self) -> float | None:
        """Mean stored bytes of a shard."""
        return self.stored_bytes / self.shards if self.stored_bytes and self.shards else None

    @property
    def processes(self) -> int:
        """Workers of all ranks, or the ranks themselves if there are no workers."""
        return self.document.job.accelerators * max(1, self.document.job.workers)


def settings_text(settings: Mapping[str, str]) -> str:
    """The settings in one line: ``loader.workers=4, dataset.codec=none``."""
    return ", ".join(f"{key}={value}" for key, value in settings.items()) or "(no setting)"


def plain_bytes_per_sample(doc: TrainingRecord) -> float | None:
    """Bytes of one sample before the codec: from the specification, or from the stored bytes."""
    spec, samples, stored = (
        doc.job.dataset.spec,
        doc.job.dataset.samples,
        doc.job.dataset.stored_bytes,
    )
    if spec is not None and spec.sample_size.mean:
        return float(spec.sample_size.mean)
    if not samples or not stored:
        return None
    ratio = spec.compress_ratio if spec is not None and spec.codec != "none" else 1.0
    return float(stored) / float(samples) * ratio


def merge(documents: Sequence[TrainingRecord]) -> TrainingRecord:
    """Merge runs with equal settings into one document.

    It has all repetitions, and each ceiling from the first run that measured it.
    """
    first = documents[0]
    ceilings = dict(first.job.ceilings)
    for doc in documents[1:]:
        for name, ceiling in doc.job.ceilings.items():
            if (
                name not in ceilings
                or ceilings[name].not_measured
                or (ceilings[name].samples_per_s or ceilings[name].bytes_per_s) is None
            ):
                ceilings[name] = ceiling
    repetitions = [repetition for doc in documents for repetition in doc.job.repetitions]
    return first.with_job(repetitions=repetitions, ceilings=ceilings)


def flatten(workload: Mapping[str, object], dataset: Mapping[str, object]) -> dict[str, str]:
    """The settings of a workload and a dataset specification, as texts."""
    found = {key: text for key, text in _leaves(workload, "") if key != "dataset"}
    found |= dict(_leaves(dataset, "dataset."))
    return {key: text for key, text in found.items() if key not in PROSE}


def asked_settings(doc: TrainingRecord) -> dict[str, str]:
    """The settings that were asked for, as flat keys, with the number of accelerators.

    The steps that fitted into a budget are the size of a sample, as the number of repetitions is:
    what counts is how many were asked for.
    """
    workload = doc.job.workload
    if doc.job.fitted is not None:
        workload = workload.model_copy(update={"max_steps": doc.job.fitted.asked_max_steps})
        if (epochs := doc.job.fitted.asked_epochs) is not None:
            workload = workload.model_copy(update={"epochs": epochs})
    asked = workload.model_dump(mode="json")
    if workload.log.to is None:
        asked.pop("log", None)  # nothing of it was used
    return flatten(asked, doc.job.dataset.asked) | {"accelerators": str(doc.job.accelerators)}


def _leaves(node: Mapping[str, object], prefix: str) -> Iterable[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", _text(key, value)


def _text(key: str, value: object) -> str:
    """The text of a value, with whole MiB for sizes."""
    if key in SIZES and type(value) is int and value and value % (1 << 20) == 0:
        return f"{value >> 20}MiB"
    return setting_text(value)


def derive(documents: Sequence[TrainingRecord]) -> list[SweptPoint]:
    """Group runs of one workload into points.

    Settings that differ between the runs are the axes; runs with equal settings are one point.
    Raises UsageError for runs of several workloads.
    """
    check_one_workload(documents)
    flat = [asked_settings(doc) for doc in documents]
    keys = [
        key
        for key in dict.fromkeys(key for each in flat for key in each)
        if len({each.get(key, "null") for each in flat}) > 1
    ]
    groups: dict[tuple[str, ...], list[TrainingRecord]] = {}
    for each, doc in zip(flat, documents, strict=True):
        groups.setdefault(tuple(each.get(key, "null") for key in keys), []).append(doc)
    return [
        SweptPoint(dict(zip(keys, values, strict=True)), merge(group))
        for values, group in groups.items()
    ]


def check_one_workload(documents: Sequence[TrainingRecord]) -> None:
    """Raise UsageError for runs of several workloads."""
    names = sorted({doc.job.workload.name for doc in documents})
    if len(names) > 1:
        raise UsageError(
            f"the runs are of several workloads: {', '.join(names)}",
            remedy="choose one with --workload",
        )


def number(text: str) -> float | None:
    """A setting's value as a number (``8``, ``64MiB``); None if it is not numeric."""
    try:
        value = float(text)
        return value if math.isfinite(value) else None
    except ValueError:
        pass
    try:
        return float(parse_size(text))
    except UsageError:
        return None


def same(one: str, other: str) -> bool:
    """Whether two texts stand for the same value (``64MiB`` and ``67108864``)."""
    return one == other or (number(one) is not None and number(one) == number(other))
