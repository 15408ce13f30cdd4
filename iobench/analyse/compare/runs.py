"""Recorded runs as the values of a comparison: what a run asks, what it measured, what counts.

The unit of a comparison is the run. Its value of a metric is the median of its repetitions, saves
or restores, which share the run's hour, its cache and its neighbours. They are shown, and tell
nothing about another run. Runs are comparable if they ask the same of the same data. How they read
it (loader, requests of the reader, storage, host) may differ between the sides: that is what a
comparison is about, and it is reported. Runs of one side have the same identity (``identity.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ...schema.metrics import BY_NAME, COMPARED
from ...schema.record import RunRecord, TrainingRecord
from ..checkpoint.study import values_of_study
from .identity import identity, role_of, workload_of

PRIMARY = ("samples_per_s", "blocked_s", "restore_s")
"""Metrics that decide whether a candidate is better or worse, in this order, if measured."""


@dataclass(frozen=True, slots=True)
class RunValue:
    """One run's value of a metric: the median of its repetitions, with the smallest and largest."""

    run_id: str
    median: float
    low: float
    high: float
    repetitions: int


@dataclass(slots=True)
class Group:
    """Runs of one identity: a side of a comparison."""

    label: str
    runs: list[RunRecord] = field(default_factory=list)

    @property
    def workload(self) -> str:
        return workload_of(self.runs[0]) if self.runs else "?"

    def values(self, metric: str) -> list[RunValue]:
        """One value for each run that has the metric."""
        found = []
        for doc in self.runs:
            if values := values_of(doc, metric):
                middle, ends = median(values), (min(values), max(values))
                found.append(RunValue(doc.run_id, middle, *ends, len(values)))
        return found


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


def lookup(doc: RunRecord, path: str) -> str:
    """A key of the run's identity, or the value of a dotted path in ``run.json``.

    Examples are ``loader.workers`` and ``host.instance_type``. A key of several hosts has all of
    their values. The result is ``?`` if there is no value.
    """
    facts = identity(doc)
    if path in facts:
        return facts[path]
    top = path.partition(".")[0]
    node: object = (
        {"host": doc.host.model_dump()} if top == "host" else doc.model_dump(include={top})
    )
    for part in path.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return "?" if node is None else str(node)


def question(doc: RunRecord, across: Sequence[str] = ()) -> tuple[str, ...]:
    """What the run asks of the storage: runs with the same answer can be compared.

    Keys in ``across`` are ignored.
    """
    keys = identity(doc)
    return (
        workload_of(doc),
        *(
            f"{key}={keys[key]}"
            for key in sorted(keys)
            if key != "workload" and role_of(key) == "asked" and not allowed(key, across)
        ),
    )


def allowed(key: str, across: Sequence[str]) -> bool:
    """Whether ``key`` is one of the keys ``across`` which runs may differ, or below one."""
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
