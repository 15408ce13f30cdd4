"""Recorded runs as the values of a comparison: where they are, what they ask and measured.

The unit of a comparison is the run. Its value of a metric is the median of its repetitions, saves
or restores, which share the run's hour, its cache and its neighbours. They are shown, and tell
nothing about another run. Runs are comparable if they ask the same of the same data. How they read
it (loader, requests of the reader, storage, host) may differ between the sides: that is what a
comparison is about, and it is reported. Runs of one side have the same identity (``identity.py``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ...base.documents import require_place
from ...base.errors import IobenchError, UsageError
from ...judge.checkpoint import values_of_study
from ...judge.figures.ranktime import shares_of
from ...judge.figures.requests import SUMMARISED
from ...judge.judged import cut_by_budget, judge
from ...judge.kv import KV_SUMMARISED
from ...judge.model_load import values_of_loads
from ...record.ab import AB_FILE
from ...record.metrics import BY_NAME, COMPARED
from ...record.run import (
    KINDS,
    RUN_FILE,
    KvCacheRecord,
    ModelLoadRecord,
    RequestsRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
    load_run,
)
from ...record.serving import RequestWindow
from ...record.sweep import SWEEP_FILE
from ...record.training import Repetition
from .identity import identity, role_of, workload_of

DEPTH = 4
"""Levels of folders to search: results of several machines, sweeps, runs."""


@dataclass(slots=True)
class Collected:
    """The runs of a place, by their directories. ``left_out``: others, one line each.

    ``invalid``: those of these lines which are about INVALID runs and those that failed.
    """

    label: str = ""
    runs: dict[Path, RunRecord] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)

    def usable(self, *, include_invalid: bool = False) -> Collected:
        """The runs that count; the others are left out."""
        found = Collected(label=self.label, left_out=[*self.left_out])
        for directory, doc in self.runs.items():
            why = usable(doc, str(directory), include_invalid=include_invalid)
            if not why:
                found.runs[directory] = doc
                continue
            found.left_out.append(why)
            found.invalid += [why] if doc.validity == "invalid" or doc.status == "failed" else []
        return found


def collect(place: Path, depth: int = DEPTH) -> Collected:
    """The run in ``place`` (a run directory, or a file of its record), or all runs below it.

    ``depth``: levels of folders to search.

    A run that cannot be read (half written, another schema version) is left out and named in
    ``left_out``, and so is a folder that cannot be opened. So is a copy of another run, because a
    run that counts twice makes differences look more significant than they are. Raises UsageError
    if there is no run.
    """
    found = Collected(label=str(place))
    place = _folder_of(place)
    if not any(_is(place, kind, found.left_out) for kind in (Path.is_file, Path.is_dir)):
        remedy = "name a run directory, or a directory of runs, e.g. results/<run>"
        if found.left_out:
            raise UsageError(found.left_out[0], remedy=remedy)
        require_place(place, remedy)
    first: dict[bytes, Path] = {}
    for directory in sorted(_run_directories(place, depth, found.left_out)):
        try:
            doc = load_run(directory)
            file = directory if directory.is_file() else directory / RUN_FILE
            original = first.setdefault(hashlib.sha256(file.read_bytes()).digest(), directory)
            if original is not directory:
                found.left_out.append(f"{directory} is a copy of {original}")
                continue
            found.runs[directory] = doc
        except IobenchError as error:
            found.left_out.append(str(error))
        except OSError as error:  # it was removed or closed after it was loaded
            found.left_out.append(_cannot_read(directory / RUN_FILE, error))
    if not found.runs:
        why = f": {found.left_out[0]}" if found.left_out else ""
        raise UsageError(
            f"{place} holds no run that can be read{why}",
            remedy="name a run directory, or a directory of runs",
        )
    return found


def beside(place: Path) -> tuple[Path, int]:
    """Where runs like those in ``place`` may be, and the levels of folders to search there.

    They are the runs of a folder itself, and the neighbours of a run.
    """
    place = _folder_of(place)
    return (place.resolve().parent, 1) if (place / RUN_FILE).is_file() else (place, DEPTH)


def _folder_of(place: Path) -> Path:
    """The folder of a record whose file has the name that iobench gives it; else the place itself.

    A file of another name is a copy of one record, and what lies beside it is not meant.
    """
    named = place.name in (RUN_FILE, SWEEP_FILE, AB_FILE) and os.path.isfile(place)
    return place.parent if named else place


def _run_directories(place: Path, depth: int, left_out: list[str]) -> Iterator[Path]:
    try:
        is_run = place.is_file() or (place / RUN_FILE).is_file()
        inside = [] if is_run or depth == 0 else sorted(place.iterdir())
    except OSError as error:
        left_out.append(_cannot_read(place, error))
        return
    if is_run:
        yield place
    for path in inside:
        folder = not path.name.startswith(".") and _is(path, Path.is_dir, left_out)
        if folder and not path.is_symlink():
            yield from _run_directories(path, depth - 1, left_out)


def _is(path: Path, kind: Callable[[Path], bool], left_out: list[str]) -> bool:
    """``kind(path)``; False, and a line in ``left_out``, if the path may not be looked at."""
    try:
        return kind(path)
    except OSError as error:
        left_out.append(_cannot_read(path, error))
        return False


def _cannot_read(path: Path, error: OSError) -> str:
    return f"cannot read {path}: {error.strerror or error}"


PRIMARY = (*(kind.headline for kind in KINDS.values()), "restore_s")
"""Metrics that decide whether a candidate is better or worse, in this order, if measured."""

LARGEST_RATE = "requests_per_s"
"""What decides where each run looked for the largest rate that holds its limit: a latency at one
rate is not to be compared with a latency at another one."""


def found_rates(runs: Iterable[RunRecord]) -> bool:
    """Whether each of the runs looked for the largest rate that holds its limit."""
    return all(isinstance(doc, RequestsRecord) and doc.job.found is not None for doc in runs)


def primary_of(runs: Sequence[RunRecord]) -> str:
    """The most important metric that one of the runs has measured."""
    if found_rates(runs):
        return LARGEST_RATE
    return next((name for name in PRIMARY if any(values_of(doc, name) for doc in runs)), PRIMARY[0])


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

    def values(self, metric: str, *, after_fill: bool = False) -> list[RunValue]:
        """One value for each run that has the metric. ``after_fill``: as ``values_of`` takes it."""
        found = []
        for doc in self.runs:
            if values := values_of(doc, metric, after_fill=after_fill):
                middle, ends = median(values), (min(values), max(values))
                found.append(RunValue(doc.run_id, middle, *ends, len(values)))
        return found


AFTER_FILL = ("samples_per_s", "read_bytes_per_s", "accelerator_utilization_sustained")
"""Metrics of a repetition that are lower the larger a part of it is the start of its epochs."""


def any_cut(runs: Iterable[RunRecord]) -> bool:
    """Whether a budget cut some of the runs: the start of epochs is a larger part of these."""
    return any(isinstance(doc, TrainingRecord) and cut_by_budget(doc) for doc in runs)


def values_of(doc: RunRecord, metric: str, *, after_fill: bool = False) -> list[float]:
    """One value for each complete repetition (of a training or of requests), save, restore or load.

    ``after_fill``: those of ``AFTER_FILL`` are without the start of each epoch, until the first
    batch is there.
    """
    if (found := BY_NAME[metric]).of in ("save", "restore"):
        return values_of_study(doc.checkpoints, found) if doc.checkpoints else []
    if found.of == "load":
        return values_of_loads(doc.job, found) if isinstance(doc, ModelLoadRecord) else []
    if isinstance(doc, ServingRecord | KvCacheRecord):
        if found.name not in (KV_SUMMARISED if isinstance(doc, KvCacheRecord) else SUMMARISED):
            return []
        tried: Sequence[RequestWindow] = doc.job.repetitions
        if found.name == LARGEST_RATE and found_rates([doc]):  # one that broke its limit is none
            tried = [window for window in tried if window.holds and window.steady is not False]
        windows = (getattr(window, found.name) for window in tried)
        return [float(value) for value in windows if value is not None]
    if found.of == "request" or not isinstance(doc, TrainingRecord):
        return []
    done = [repetition for repetition in doc.job.repetitions if repetition.complete]
    if after_fill and metric in AFTER_FILL:
        rates = [(getattr(each, metric), shares_of([each]).fill) for each in done]
        judged = judge(doc)
        lasts, share = 1.0, judged.lasting_share
        if share is not None and not judged.evidence.lasting:
            # Batches that were made during the fill are a part of the rate after it.
            lasts = share * (1 - judged.evidence.cut_fill)
        return [
            lasts * value / (1 - fill)
            for value, fill in rates
            if value is not None and fill is not None and fill < 1
        ]
    figures = (figure_of(repetition, metric) for repetition in done)
    return [value for value in figures if value is not None]


def figure_of(repetition: Repetition, metric: str) -> float | None:
    """What a repetition tells of a metric; None if that is not compared.

    Loader libraries have no read bandwidth here: theirs is computed from the stored bytes of
    samples, which is not comparable with the bytes that were read.
    """
    value = getattr(repetition, metric)
    counted = metric != "read_bytes_per_s" or repetition.bytes_read is not None
    return None if value is None or not counted else float(value)


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


MAX_FACT = 60
"""Longest fact, in characters, of a title: the quantiles of all sample sizes are longer."""


def apart(facts: Sequence[str], rivals: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Of the facts of a group of runs (``KEY=VALUE``), those that one of the ``rivals`` lacks."""
    return tuple(
        fact
        for fact in facts[1:]
        if not fact.endswith("=null")
        and (len(fact) <= MAX_FACT or fact.startswith("storage."))
        and any(fact not in other for other in rivals)
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
    if doc.status == "failed" and not include_invalid:
        return f"{name} failed"
    if not any(values_of(doc, metric) for metric in COMPARED):
        return f"{name} has no complete repetition (status {doc.status})"
    return ""


def earlier_runs(history: Sequence[Path], results: Sequence[Path]) -> list[RunRecord]:
    """The valid runs in the directories of ``history``; without any, in and beside ``results``."""
    places = [(path, DEPTH) for path in history] or [beside(path) for path in results]
    runs: dict[Path, RunRecord] = {}
    for path, depth in dict.fromkeys(places):
        found = collect(path, depth).usable().runs
        runs |= {directory.resolve(): doc for directory, doc in found.items()}
    return list({doc.run_id: doc for doc in runs.values()}.values())
