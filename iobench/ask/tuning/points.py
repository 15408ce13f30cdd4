"""The points of a sweep: settings, what was measured, which to choose, and when that pays.

A point is as good as the best if it is within 5 % of it and its interval overlaps with that of the
best; of these, the smallest settings are chosen. Source: ecosystem notes on worker knees; 5 % is
MLPerf Storage's bound for replicated runs. The interval of a point is the [min, max] of its
repetitions. It covers the median with 96.9 % for 6 repetitions (93.8 % for 5).

A sweep generates the dataset of each point, so it knows how long one took to write, and after how
many epochs its conversion has paid for itself. A conversion also reads the data that there is, for
which an epoch of today's settings is the time at most: it waits for no accelerator, and writes
while it reads. So the sum of both is an upper bound, and so is the number of epochs, which does not
depend on the size of the dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ...base.errors import UsageError
from ...base.units import format_duration, parse_size
from ...record.run import TrainingRecord
from ...record.sweep import Settings, Sweep, SweepPoint, describe, setting_text
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


METRIC = "samples_per_s"
OF_DATA = "dataset."


@dataclass(frozen=True, kw_only=True, slots=True)
class Payback:
    """``what``: the settings of the data that differ from today's."""

    what: str
    convert_s: float
    saved_s: float  # of each epoch
    epochs: float

    @property
    def told(self) -> str:
        """``format=tar pays back after at most 0.7 epochs (41 s to convert, ...)``."""
        saved = f"{format_duration(self.saved_s)} saved in each epoch"
        return (
            f"{self.what} pays back after at most {self.epochs:.2g} epochs "
            f"({format_duration(self.convert_s)} to convert, {saved})"
        )


def payback(sweep: Sweep, point: SweepPoint) -> Payback | None:
    """When the data of a point has paid, against today's data with the point's other settings.

    None where the data is today's, where its generation was not timed, where one of both points
    has failed, or where the slowest trial with it is not faster than the fastest one with today's
    data.
    """
    if sweep.default is None or sweep.metric != METRIC:
        return None
    today = _with_data(sweep, point, sweep.default)
    if today is None or point.generated_s is None or not point.samples:
        return None
    new, old = point.counted, today.counted
    if not new or not old or min(new) <= max(old):
        return None
    before, after = point.samples / median(old), point.samples / median(new)
    changed = [key for key, value in point.settings.items() if value != today.settings[key]]
    convert, saved = before + point.generated_s, before - after
    return Payback(
        what=describe(point.settings, changed),
        convert_s=convert,
        saved_s=saved,
        epochs=convert / saved,
    )


def _with_data(sweep: Sweep, point: SweepPoint, default: Settings) -> SweepPoint | None:
    """The point that differs from this one by today's data alone."""
    data = {key: default[key] for key in point.settings if key.startswith(OF_DATA)}
    wanted = {**point.settings, **data}
    if not data or wanted == point.settings:
        return None
    return next((each for each in sweep.points if each.settings == wanted), None)


NEAR = 0.95
"""A point that reaches this share of the best is as good, if their intervals overlap."""

NO_HELP = 1.02
"""Treat gains up to this factor as noise, even if the intervals do not overlap.

A few repetitions may vary little, while those of two points are minutes apart.
"""

ALIKE = 0.10
"""Relative difference below which CPU times count as equal."""

MAX_ALIKE_BYTES = 0.02

FIRST = ("loader.workers", "reader.concurrency", "loader.prefetch_factor")
"""Numeric settings to minimise first, in this order: they take cores and memory from training."""


def near_best(points: Sequence[SweptPoint]) -> list[SweptPoint]:
    """Points that cannot be distinguished from the best one, including the best one."""
    best = max(points, key=lambda point: point.median)
    alike = [
        point
        for point in points
        if max(point.rates) >= min(best.rates) or point.median * NO_HELP >= best.median
    ]
    return [point for point in alike if point.median >= NEAR * best.median]


def smallest_near_best(
    points: Sequence[SweptPoint],
    *,
    default: SweptPoint | None = None,
    dataset_bytes: float | None = None,
) -> SweptPoint:
    """One of the points that are as good as the best.

    Points with enough shards come first (of ``dataset_bytes``, if the data will be larger than that
    of the sweep). Then the smallest settings, the least CPU time, the fewest stored bytes and the
    fewest changes from ``default`` decide, in this order.
    """
    left = near_best(points)
    left = _least(left, lambda point: float(not enough_shards(point, dataset_bytes)), 0)
    for key in ordered_axes(points):
        left = _least(
            left,
            lambda point, key=key: number(point.settings.get(key, "")),  # type: ignore[misc]
            0,
        )
    left = _least(left, lambda point: point.cpu_s_per_gb, ALIKE)
    left = _least(left, lambda point: point.stored_bytes, MAX_ALIKE_BYTES)
    if default is not None:
        left = _least(left, lambda point: float(len(changed(point, default))), 0)
    return max(left, key=lambda point: point.median)


def _least(
    points: list[SweptPoint], cost: Callable[[SweptPoint], float | None], tolerance: float
) -> list[SweptPoint]:
    """Points whose cost is within ``tolerance`` of the lowest; all points if a cost is unknown."""
    known = [value for point in points if (value := cost(point)) is not None]
    if len(known) < len(points):
        return points
    limit = min(known) + abs(min(known)) * tolerance
    return [point for point in points if (cost(point) or 0) <= limit]


def enough_shards(point: SweptPoint, stored_bytes: float | None = None) -> bool:
    """True if there are at least 4 shards for each worker of each rank.

    A worker then idles for at most a quarter of the time. Unknown counts as enough.
    """
    if point.shards is None or point.shard_bytes is None:
        return True
    shards = point.shards if stored_bytes is None else stored_bytes / point.shard_bytes
    return shards >= 4 * point.processes


def ordered_axes(points: Sequence[SweptPoint]) -> list[str]:
    """Settings with numeric values: workers, reads in flight, prefetching, others, dataset last."""
    keys = [
        key
        for key in points[0].settings
        if all(number(point.settings.get(key, "")) is not None for point in points)
    ]
    rank = {key: position for position, key in enumerate(FIRST)}
    return sorted(
        keys, key=lambda key: (key.startswith("dataset."), rank.get(key, len(FIRST)), key)
    )


def changed(point: SweptPoint, default: SweptPoint) -> list[str]:
    return [
        key
        for key, value in point.settings.items()
        if not same(value, default.settings.get(key, "null"))
    ]


def along(points: Sequence[SweptPoint], chosen: SweptPoint, key: str) -> list[SweptPoint]:
    """The points that differ from ``chosen`` only in ``key``, and itself, sorted by value."""
    line = [
        point
        for point in points
        if all(
            k == key or same(v, chosen.settings.get(k, "null")) for k, v in point.settings.items()
        )
    ]
    return sorted(line, key=lambda point: (number(point.settings[key]) or 0.0, point.settings[key]))


def pareto(points: Sequence[SweptPoint]) -> list[SweptPoint]:
    """Points that no other point beats in samples/s, CPU seconds per GB and stored bytes at once.

    The fastest comes first. How unknown costs count: see ``front``.
    """
    kept = front([(-point.median, point.cpu_s_per_gb, point.stored_bytes) for point in points])
    return sorted(
        (point for point, on in zip(points, kept, strict=True) if on), key=lambda p: -p.median
    )


Costs = Sequence[float | None]
"""What a point costs in each respect: less is better. None: not known."""


def front(costs: Sequence[Costs]) -> list[bool]:
    """For each point whether it is on the front: no other is nowhere worse and somewhere better.

    A cost that is unknown for both of two points is left out between them. Where it is unknown for
    one of them only, neither beats the other.
    """
    return [not any(_beats(other, mine) for other in costs) for mine in costs]


def _beats(one: Costs, other: Costs) -> bool:
    better = False
    for mine, theirs in zip(one, other, strict=True):
        if mine is None and theirs is None:
            continue
        if mine is None or theirs is None or mine > theirs:
            return False
        better = better or mine < theirs
    return better
