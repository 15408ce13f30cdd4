"""The library's verbs: what the command line does, as functions whose results have attributes.

``generate`` makes a dataset, ``open_dataset`` finds one, ``make_loader`` reads it in a training of
yours, ``run`` measures it, and ``compare`` says what changed between runs. All of them are names of
``iobench`` itself; docs/api.md is their page. Every error that a caller can cause is an
``IobenchError``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import UsageError

if TYPE_CHECKING:
    from .analyse.compare.runs import Comparison, Group
    from .dataset import Dataset
    from .generator import GenerateReport
    from .generator.engine import Progress as GenerateProgress
    from .load import BatchLoader, LibraryLoader
    from .runner.progress import Progress as RunProgress
    from .schema.dataset import DatasetSpec
    from .schema.manifest import Manifest
    from .schema.result import Finding, RunDocument, Summary, Verdict
    from .schema.workload import LoaderSpec, ReaderSpec, Workload
    from .storage.base import Storage

Settings = Mapping[str, object]
"""Keys of a YAML file with their values, as ``--set`` takes them: ``{"loader.workers": 4}``."""


def generate(
    dataset: str | Path | DatasetSpec,
    to: str | Path,
    *,
    samples: int | None = None,
    size: int | str | None = None,
    settings: Settings | None = None,
    workers: int | None = None,
    progress: Callable[[GenerateProgress], None] | None = None,
    break_lock: bool = False,
) -> GenerateReport:
    """Generate a dataset in the directory or at the URL ``to``, or finish it, or find it complete.

    ``dataset`` is a built-in name, a YAML file, or a spec. ``samples`` or ``size`` (bytes, or text
    such as ``"20GiB"``) says how much of it; ``settings`` changes keys of a named spec. The bytes
    depend on the spec alone, not on ``workers`` (None: one for each core, 0: this process).
    ``progress`` is called from time to time. ``break_lock`` takes over a place whose holder, on
    another host, is dead.

    Raises SpecError, UnknownNameError, TargetRefusedError (another's data, or another process, is
    there), DatasetError, StorageError, WorkerError, InterruptedRun.

    >>> made = iobench.generate("demo", "demo-data", samples=40)
    >>> made.manifest.sample_count, made.written_samples
    (40, 40)
    >>> iobench.generate("demo", "demo-data", samples=40).written_samples  # it is all there
    0
    """
    from .dataset import load_dataset_spec
    from .generator import generate as write
    from .schema.dataset import resized
    from .storage import open_storage
    from .storage.base import Guarded
    from .units import parse_size

    if samples is not None and size is not None:
        raise UsageError("samples and size both say how much to generate", remedy="give one")
    if isinstance(dataset, str | Path):
        spec = load_dataset_spec(str(dataset), _overrides(settings))
    else:
        spec = dataset
        _refuse_settings(settings, "DatasetSpec")
    storage = open_storage(str(to))
    if isinstance(storage, Guarded):
        storage.check_target()
    return write(
        resized(spec, samples=samples, size_bytes=None if size is None else parse_size(size)),
        storage,
        workers=workers,
        progress=progress,
        break_lock=break_lock,
    )


def make_loader(
    data: str | Path | Dataset | Manifest,
    *,
    batch_size: int,
    num_workers: int | None = None,
    storage: Storage | None = None,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
    reader: ReaderSpec | dict[str, object] | None = None,
    loader: LoaderSpec | dict[str, object] | None = None,
    origin: str | None = None,
) -> BatchLoader | LibraryLoader:
    """A torch DataLoader over a dataset, as ``iobench run`` uses it, for a training of yours.

    ``data`` is a directory, a URL, or what ``open_dataset`` and ``load_manifest`` return.
    ``storage`` says where the shards are, if that is another place. ``reader`` and ``loader`` take
    the keys of a workload's sections of these names; ``num_workers`` is torch's name for
    ``loader={"workers": ...}``. Call ``set_epoch`` before each epoch, as with torch's
    DistributedSampler. Raises DatasetError, StorageError, UsageError.

    >>> loader = iobench.make_loader("demo-data", batch_size=8, num_workers=0)
    >>> loader.set_epoch(0)
    >>> sum(len(batch) for batch in loader)
    40
    """
    from .load import make_loader as make
    from .schema.base import build
    from .schema.workload import LoaderSpec

    if num_workers is not None:
        if isinstance(loader, LoaderSpec):
            raise UsageError(
                "num_workers and a LoaderSpec both say how many workers",
                remedy="set its workers instead",
            )
        if "workers" in (loader or {}):
            raise UsageError("num_workers and loader's workers are the same", remedy="give one")
        keys = {"workers": num_workers, **(loader or {})}
        if num_workers == 0 and "transport" not in keys:
            keys["transport"] = "tensor"  # the default one needs worker processes
        loader = build(LoaderSpec, keys, where="make_loader")
    return make(
        data,
        batch_size=batch_size,
        storage=storage,
        rank=rank,
        world=world,
        seed=seed,
        reader=reader,
        loader=loader,
        origin=origin,
    )


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run: its directory, and what its record says."""

    directory: Path
    document: RunDocument

    @property
    def verdict(self) -> Verdict | None:
        """What binds, why, and what would help; None for a run that did not get so far."""
        return self.document.verdict

    @property
    def metrics(self) -> dict[str, Summary]:
        """Median, smallest and largest of each metric over the repetitions; units are in names."""
        return self.document.metrics

    @property
    def findings(self) -> list[Finding]:
        """What the rules found: the rule, how bad it is, the evidence, and a remedy."""
        return self.document.findings

    @property
    def valid(self) -> bool:
        """Whether no rule was broken, and the evidence for all of them is there."""
        return self.document.validity == "valid"

    def to_text(self, *, width: int = 100) -> str:
        """The report that ``iobench run`` prints, in lines of at most ``width`` columns."""
        from .report.checkpoint import render_study
        from .report.text import render_run

        study = self.document.study is not None
        return (render_study if study else render_run)(self.document, width=width)

    def to_markdown(self) -> str:
        from .report.export import to_markdown

        return to_markdown(self.document)

    def to_csv(self) -> str:
        """One row for each metric, with a header."""
        from .report.export import to_csv

        return to_csv(self.document)

    def to_json(self) -> str:
        """The whole record, as in ``run.json``."""
        from .report.export import to_json

        return to_json(self.document)


def run(
    workload: str | Path | Workload,
    data: str | Path | Dataset,
    *,
    accelerators: int = 1,
    repetitions: int = 6,
    seed: int = 42,
    settings: Settings | None = None,
    calibration: float | str = "3s",
    find_max: bool = False,
    rules: str = "quick",
    results: str | Path = "results",
    origin: str | None = None,
    progress: RunProgress | None = None,
    break_lock: bool = False,
) -> Run:
    """Measure every stage alone, then all of them together, and conclude what binds.

    ``workload`` is a built-in name, a YAML file, or a ``Workload``; ``settings`` changes keys of a
    named one. ``accelerators`` ranks read ``data``, ``repetitions`` times over. ``calibration`` is
    the time for each ceiling (seconds, or text with a unit; 0 leaves the ceilings out).
    ``find_max`` searches how many accelerators the data can feed. ``rules`` is ``quick`` or
    ``mlperf``. A new directory below ``results`` holds the record and the events.

    Raises UsageError and its kin before anything is written; DatasetError, StorageError,
    WorkerError, InterruptedRun after what was measured has been written.

    >>> first = iobench.run("demo", "demo-data", repetitions=4, calibration=0, settings=small)
    >>> first.document.status, first.metrics["samples_per_s"].n
    ('ok', 4)
    >>> first.metrics["samples_per_s"].median > 0
    True
    >>> print(first.to_text())  # doctest: +ELLIPSIS
    Verdict: ...
    """
    from .runner.experiment import Options
    from .runner.experiment import run as measure
    from .runner.plan import make_plan
    from .schema.workload import load_workload
    from .units import parse_duration

    if rules not in ("quick", "mlperf"):
        raise UsageError(f"there are no rules '{rules}'", remedy="use quick or mlperf")
    if isinstance(workload, str | Path):
        workload = load_workload(str(workload), _overrides(settings))
    else:
        _refuse_settings(settings, "Workload")
    if not isinstance(data, str | Path):
        if origin is None and data.place != data.url:
            origin = data.place
        data = data.url
    plan = make_plan(
        workload,
        str(data),
        accelerators=accelerators,
        repetitions=repetitions,
        seed=seed,
        origin=origin,
    )
    options = Options(
        results=Path(results),
        rules=rules,
        command=("iobench.run",),
        calibration_s=parse_duration(calibration),
        find_max=find_max,
        break_lock=break_lock,
    )
    document, directory = measure(plan, options, progress)
    return Run(directory=directory, document=document)


def open_run(directory: str | Path) -> Run:
    """A recorded run by its directory or its ``run.json``, with the figures as they were recorded.

    Raises IobenchError for what is not there, or is no run.

    >>> iobench.open_run(first.directory).metrics == first.metrics
    True
    """
    from .schema.result import load_run

    path = Path(directory)
    return Run(directory=path.parent if path.is_file() else path, document=load_run(path))


Runs = Run | str | Path
"""A run, a run's directory, or a folder of runs."""


def compare(
    baseline: Runs | Sequence[Runs],
    candidate: Runs | Sequence[Runs],
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] | None = None,
    include_invalid: bool = False,
) -> Comparison:
    """What is better or worse in ``candidate`` than in ``baseline``, and how sure that is.

    Each side is one run, a folder of runs, or several of either, whose repetitions are taken
    together. ``across`` names settings that may differ although they say what is asked of the
    storage (``dataset.shard_size``). The result's ``difference`` is ``better``, ``worse``, ``same``
    or ``too few``, for the metric that counts most; ``rows`` has each metric, ``changes`` what else
    differs, and ``obstacles`` why the two can't be compared, if they can't.

    Raises UsageError where a side holds no run that counts, or runs that ask different things;
    UnknownNameError for an unknown metric.

    >>> again = iobench.run("demo", "demo-data", repetitions=4, calibration=0, settings=small)
    >>> found = iobench.compare(first, again, metrics=["samples_per_s"])
    >>> found.obstacles, [row.metric for row in found.rows]
    ((), ['samples_per_s'])
    """
    from .analyse.compare.runs import compare as judge
    from .errors import UnknownNameError
    from .schema.metrics import COMPARED

    for name in metrics or ():
        if name not in COMPARED:
            raise UnknownNameError("metric", name, COMPARED)
    keys = tuple(across)
    sides = [_group(side, keys, include_invalid) for side in (baseline, candidate)]
    return judge(*sides, across=keys, metrics=tuple(metrics or COMPARED))


def _group(side: Runs | Sequence[Runs], across: tuple[str, ...], include_invalid: bool) -> Group:
    from .analyse.compare.collect import collect
    from .analyse.compare.runs import Group, question, usable

    places = [side] if isinstance(side, Run | str | Path) else list(side)
    names = [str(place.directory) if isinstance(place, Run) else str(place) for place in places]
    group, left_out = Group(", ".join(names)), []
    for place in places:
        found = (
            {place.directory: place.document}
            if isinstance(place, Run)
            else collect(Path(place)).runs
        )
        for directory, document in found.items():
            why = usable(document, str(directory), include_invalid=include_invalid)
            if why:
                left_out.append(why)
            else:
                group.runs.append(document)
    if not group.runs:
        why = f": {left_out[0]}" if left_out else ""
        raise UsageError(f"{group.label or 'an empty side'} holds no run that counts{why}")
    if len({question(document, across) for document in group.runs}) > 1:
        raise UsageError(
            f"{group.label} holds runs that ask different things of the storage",
            remedy="name runs of one workload and one dataset, or the keys that may differ",
        )
    return group


def _overrides(settings: Settings | None) -> list[str]:
    """As ``--set`` takes them; JSON of a value is YAML."""
    return [f"{key}={json.dumps(value, default=str)}" for key, value in (settings or {}).items()]


def _refuse_settings(settings: Settings | None, kind: str) -> None:
    if settings:
        raise UsageError(
            f"settings are for a {kind} that is named",
            remedy=f"change the {kind} itself (model_copy)",
        )
