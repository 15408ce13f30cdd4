"""Compare a baseline with candidates.

The result says whether they are comparable, what differs, and which figures changed. A group is any
number of runs whose repetitions are pooled. Runs are comparable if they ask the same of the same
data. How they read it (loader, requests of the reader, storage, host) may differ: that is what a
comparison is about, and it is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...schema.base import OpenRecord
from ...schema.metrics import BY_NAME, COMPARED
from ...schema.record import RunRecord, TrainingRecord
from ..checkpoint.study import values_of_study
from ..tuning.points import flatten
from .statistics import Judgement, judge

PRIMARY = ("samples_per_s", "blocked_s", "restore_s")
"""Metrics that decide whether a candidate is better or worse, in this order, if measured."""

ASKED = (
    "accelerator.",
    "batch_size",
    "epochs",
    "max_steps",
    "cache",
    "accelerators",
    "reader.crop",
    "reader.decode",
    "reader.columns",
    "reader.tail",
    "reader.check",
    "dataset.",
)
"""Keys, or prefixes of keys, that describe the work: if they differ, rates are not comparable."""

STUDY = ("model", "ranks", "scale", "fsync")
"""The same for a checkpoint study. The writer is not included, since it is what is compared."""

HOST = ("instance_type", "cpu_model", "cores", "memory_bytes", "kernel", "python", "torch")


@dataclass(slots=True)
class Group:
    """Comparable runs whose repetitions are pooled."""

    label: str
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def workload(self) -> str:
        return workload_of(self.runs[0]) if self.runs else "?"

    def values(self, metric: str) -> list[float]:
        return [value for doc in self.runs for value in values_of(doc, metric)]


@dataclass(frozen=True, slots=True)
class Row:
    metric: str
    higher_is_better: bool
    baseline: tuple[float, ...]
    candidate: tuple[float, ...]
    judgement: Judgement


@dataclass(frozen=True, slots=True)
class Comparison:
    """``obstacles`` are the reasons why the two are not comparable, as ``key: this -> that``.

    If there are any, ``rows`` is empty.
    """

    workload: str
    baseline: Group
    candidate: Group
    obstacles: tuple[str, ...]
    changes: tuple[str, ...]  # settings and fingerprint keys that differ, and may differ
    rows: tuple[Row, ...]

    @property
    def difference(self) -> str:
        """Result for the most important of the compared metrics: better, worse, same or too few.

        It is empty if nothing was compared.
        """
        ordered = [row for name in PRIMARY for row in self.rows if row.metric == name] + list(
            self.rows
        )
        return ordered[0].judgement.difference if ordered else ""

    def regressions(self, beyond: float) -> list[Row]:
        """Rows that are worse by more than ``beyond`` (0.05 is 5 %)."""
        return [
            row for row in self.rows if row.judgement.difference == "worse" and _loss(row) > beyond
        ]


def _loss(row: Row) -> float:
    ratio = row.judgement.ratio
    if ratio is None:
        return float("inf")
    return 1 - ratio if row.higher_is_better else ratio - 1


def workload_of(doc: RunRecord) -> str:
    if isinstance(doc, TrainingRecord):
        return doc.job.workload.name
    return f"checkpoint {doc.checkpoints.model}" if doc.checkpoints else doc.job.kind


def values_of(doc: RunRecord, metric: str) -> list[float]:
    """One value for each complete repetition, save or restore.

    Loader libraries have no read bandwidth here: theirs is computed from the stored bytes of
    samples, which is not comparable with the bytes that were read.
    """
    if (found := BY_NAME[metric]).of in ("save", "restore"):
        return values_of_study(doc.checkpoints, found) if doc.checkpoints else []
    if not isinstance(doc, TrainingRecord):
        return []
    done = [repetition for repetition in doc.job.repetitions if repetition.complete]
    if metric == "read_bytes_per_s":
        done = [repetition for repetition in done if repetition.bytes_read is not None]
    figures = (getattr(repetition, metric) for repetition in done)
    return [float(value) for value in figures if value is not None]


def settings_of(doc: RunRecord) -> dict[str, str]:
    """All settings as flat keys.

    They are the workload, the dataset and the number of accelerators, or the specification of a
    checkpoint study.
    """
    if not isinstance(doc, TrainingRecord):
        spec_of_study = doc.checkpoints.spec.model_dump() if doc.checkpoints else {}
        return {key: str(value) for key, value in spec_of_study.items()}
    spec = doc.job.dataset.spec
    return flatten(doc.job.workload.model_dump(), spec.model_dump()) | {
        "accelerators": str(doc.job.accelerators),
        "dataset.seed": str(spec.seed),
    }


def recorded(part: OpenRecord, keys: Sequence[str]) -> dict[str, object]:
    """The given keys of ``part`` that have a value."""
    values = part.model_dump(include=set(keys))
    return {key: values[key] for key in keys if values.get(key) is not None}


def lookup(doc: RunRecord, path: str) -> str:
    """A setting (``loader.workers``), or the value of a dotted path in ``run.json``.

    An example is ``host.instance_type``. The result is ``?`` if there is no value.
    """
    settings = settings_of(doc)
    if path in settings:
        return settings[path]
    top = path.partition(".")[0]
    node: object = (
        {"host": doc.host.model_dump()} if top == "host" else doc.model_dump(include={top})
    )
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return "?" if node is None else str(node)


def question(doc: RunRecord, across: Sequence[str] = ()) -> tuple[str, ...]:
    """What the run asks of the storage: runs with the same answer can be pooled and compared.

    Keys in ``across`` are ignored.
    """
    keys = settings_of(doc)
    return (
        workload_of(doc),
        *(
            f"{key}={keys[key]}"
            for key in sorted(keys)
            if _asks(doc, key) and not _allowed(key, across)
        ),
    )


def _asks(doc: RunRecord, key: str) -> bool:
    return key.startswith(ASKED) if isinstance(doc, TrainingRecord) else key in STUDY


def _allowed(key: str, across: Sequence[str]) -> bool:
    return any(key == free or key.startswith(f"{free}.") for free in across)


def usable(doc: RunRecord, name: str, *, include_invalid: bool = False) -> str:
    """Empty if the run counts, else one line with the reason why it does not."""
    if doc.validity == "invalid" and not include_invalid:
        broken = next(
            (finding.rule for finding in doc.findings if finding.level == "invalid"), "a rule"
        )
        return f"{name} is INVALID ({broken})"
    if not any(values_of(doc, metric) for metric in COMPARED):
        return f"{name} has no complete repetition (status {doc.status})"
    return ""


def compare(
    baseline: Group,
    candidate: Group,
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] = tuple(COMPARED),
) -> Comparison:
    """Compare two groups of runs.

    ``across`` names keys that may differ although they describe the work, for example
    ``dataset.shard_size`` to compare layouts.
    """
    obstacles, changes = _differences(baseline, candidate, tuple(across))
    rows = []
    for metric in metrics if not obstacles else ():
        before, after = baseline.values(metric), candidate.values(metric)
        if before and after:
            higher = COMPARED[metric].better == "more"
            rows.append(
                Row(
                    metric,
                    higher,
                    tuple(before),
                    tuple(after),
                    judge(after, before, higher_is_better=higher),
                )
            )
    return Comparison(baseline.workload, baseline, candidate, obstacles, changes, tuple(rows))


def _differences(
    baseline: Group, candidate: Group, across: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    one, other = _common(baseline.runs), _common(candidate.runs)
    obstacles: list[str] = []
    changes: list[str] = []
    for key in sorted(set(one) | set(other)):
        before, after = one.get(key, "-"), other.get(key, "-")
        if before == after:
            continue
        line = f"{key}: {before} -> {after}"
        (
            obstacles if _asks(baseline.runs[0], key) and not _allowed(key, across) else changes
        ).append(line)
    if workload_of(baseline.runs[0]) != workload_of(candidate.runs[0]):
        obstacles.insert(0, f"workload: {baseline.workload} -> {candidate.workload}")
    return tuple(obstacles), tuple(changes)


def _common(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Settings and host of the group, with all values of a key where its runs differ."""
    flat = [
        {
            **settings_of(doc),
            **{f"host.{key}": str(value) for key, value in recorded(doc.host, HOST).items()},
        }
        for doc in runs
    ]
    flat = [
        {**each, "storage.url": str(doc.storage.url or "?")}
        for each, doc in zip(flat, runs, strict=True)
    ]
    return {
        key: " | ".join(sorted({each.get(key, "-") for each in flat}))
        for each in flat
        for key in each
    }
