"""The Python interface: the verbs of the command line as functions that return objects.

``generate`` makes a dataset, ``open_dataset`` finds one, ``make_loader`` reads it in your own
training, ``run`` measures it, and ``compare`` compares runs. All of them can be imported from
``iobench``; docs/api.md describes them. Every error that a caller can cause is an ``IobenchError``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .base.errors import UsageError

if TYPE_CHECKING:
    from .ask.compare.comparison import Comparison
    from .ask.compare.runs import Group
    from .data.dataset import Dataset
    from .data.generator import GenerateReport
    from .record.run import Finding, RunRecord, Summary
    from .record.verdict import Verdict
    from .runner.progress import Observer
    from .settings.dataset import DatasetSpec
    from .settings.workload import Workload

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
    progress: Callable[[int, int], None] | None = None,
    break_lock: bool = False,
) -> GenerateReport:
    """Generate a dataset in the directory or at the URL ``to``.

    An incomplete dataset there is finished; a complete one is left as it is.

    ``dataset`` is a built-in name, a YAML file, or a spec. ``samples`` or ``size`` (bytes, or text
    such as ``"20GiB"``) sets the size of the dataset; ``settings`` changes keys of a named spec.
    The bytes depend only on the spec, not on ``workers`` (None: one per core, 0: this process).
    ``progress`` is called with (bytes done, bytes in all) from time to time. ``break_lock`` takes
    over the lock of a dead process on another host.

    Raises SpecError, UnknownNameError, UsageError, TargetRefusedError (other data is there, or
    another process writes there), DatasetError, StorageError, WorkerError, InterruptedRun.

    >>> made = iobench.generate("demo", "demo-data", samples=40)
    >>> made.manifest.sample_count, made.written_samples
    (40, 40)
    >>> iobench.generate("demo", "demo-data", samples=40).written_samples  # it is all there
    0
    """
    from .base.units import parse_size
    from .data.dataset import load_dataset_spec
    from .data.generator import generate as write
    from .settings.dataset import resized
    from .storage import open_storage
    from .storage.base import Guarded

    if samples is not None and size is not None:
        raise UsageError(
            "samples and size both state how much to generate", remedy="pass only one of them"
        )
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


@dataclass(frozen=True, kw_only=True)
class Run:
    """A recorded run: its directory and its record."""

    directory: Path
    document: RunRecord

    @property
    def verdict(self) -> Verdict | None:
        """The stage that limits the run, why, and advice; None if the run ended before."""
        job = self.document.job
        return job.verdict if job.kind == "training" else None

    @property
    def metrics(self) -> dict[str, Summary]:
        """Median, minimum and maximum of each metric over the repetitions; names have the units."""
        return self.document.metrics

    @property
    def findings(self) -> list[Finding]:
        """The findings of the rules: rule, level, evidence and remedy."""
        return self.document.findings

    @property
    def valid(self) -> bool:
        """Whether no rule is violated, and the evidence for all rules is there."""
        return self.document.validity == "valid"

    def to_text(self, *, width: int = 100) -> str:
        """Return the report that ``iobench run`` prints, in lines of at most ``width`` columns."""
        from .report.record import sections
        from .report.render_text import render_text

        return render_text(sections(self.document), width=width)

    def to_markdown(self) -> str:
        """Return the report as Markdown."""
        from .report.record import sections
        from .report.render_markdown import render_markdown

        return render_markdown(sections(self.document))

    def to_html(self) -> str:
        """Return the report as one HTML page, which needs no network."""
        from .report.page.whole import page
        from .report.record import sections

        return page(self.document, sections(self.document))

    def to_csv(self) -> str:
        """Return CSV with a header and a row for each repetition (of a study: save, restore)."""
        from .report.record import sections
        from .report.render_csv import render_csv

        return render_csv(sections(self.document))

    def to_json(self) -> str:
        """Return the whole record, as in ``run.json``."""
        from .base.documents import json_text

        return json_text(self.document) + "\n"


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
    observer: Observer | None = None,
    break_lock: bool = False,
    tags: Mapping[str, str] | None = None,
) -> Run:
    """Measure each stage alone, then all of them together, and find the stage that limits them.

    ``workload`` is a built-in name, a YAML file, or a ``Workload``; ``settings`` changes keys of a
    named one. ``accelerators`` ranks read ``data``, ``repetitions`` times. ``calibration`` is the
    time per ceiling (seconds, or text with a unit; 0 skips the ceilings). ``find_max`` searches
    for the largest number of accelerators that the storage can feed. ``rules`` is ``quick`` or
    ``mlperf``. The record and the events are written to a new directory below ``results``.
    ``origin`` is the place of a scanned dataset's data, and ``break_lock`` takes over the lock of a
    dead process on another host. ``observer`` hears how far the run is. ``tags`` are labels of the
    run, as ``{"box": "nfs-b"}``.

    Raises UsageError and its subclasses before anything is written. DatasetError, StorageError,
    WorkerError and InterruptedRun are raised after everything measured so far has been written.

    >>> first = iobench.run("demo", "demo-data", repetitions=4, calibration=0, settings=small)
    >>> first.document.status, first.metrics["samples_per_s"].n
    ('ok', 4)
    >>> first.metrics["samples_per_s"].median > 0
    True
    >>> print(first.to_text())  # doctest: +ELLIPSIS
    demo on ...
    """
    from .base.units import parse_duration
    from .runner.experiment import Options
    from .runner.experiment import run as measure
    from .runner.plan import make_plan
    from .settings.tags import checked_tags, tagged
    from .settings.workload import load_workload
    from .storage import unwrapped

    labels = checked_tags(tags or {})
    if rules not in ("quick", "mlperf"):
        raise UsageError(f"unknown rules '{rules}'", remedy="use quick or mlperf")
    if isinstance(workload, str | Path):
        workload = load_workload(str(workload), _overrides(settings))
    else:
        _refuse_settings(settings, "Workload")
    if not isinstance(data, str | Path):
        if origin is None and data.place != data.url:
            origin = unwrapped(data.place)  # the wrappers of ``data.url`` are put around it again
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
    with tagged(labels):
        document, directory = measure(plan, options, observer)
    return Run(directory=directory, document=document)


def open_run(directory: str | Path) -> Run:
    """Open a recorded run by its directory or its ``run.json``; no figure is computed again.

    Raises IobenchError if it does not exist or is not a run.

    >>> iobench.open_run(first.directory).metrics == first.metrics
    True
    """
    from .record.run import load_run

    path = Path(directory)
    return Run(directory=path.parent if path.is_file() else path, document=load_run(path))


Runs = Run | str | Path
"""A run, the directory of a run, or a folder of runs."""


def compare(
    baseline: Runs | Sequence[Runs],
    candidate: Runs | Sequence[Runs],
    *,
    across: Iterable[str] = (),
    metrics: Sequence[str] | None = None,
    include_invalid: bool = False,
) -> Comparison:
    """Compare ``candidate`` with ``baseline``: what is better or worse, and how certain that is.

    Each side is one run, a folder of runs, or several of either; each run is one value, the median
    of its repetitions. Runs are only comparable if they demand the same of the storage, and the
    runs of one side must be equal in everything that may change a figure; ``across`` names keys
    that may differ nevertheless (``dataset.shard_size``). The result's ``difference`` is
    ``better``, ``worse``, ``equal`` (within 5 %) or ``inconclusive``, for the most important
    metric. ``rows`` has each metric with its claim, ``changes`` the other differences, and
    ``obstacles`` the reasons if the sides cannot be compared. With fewer than 4 runs on a side, and
    too few on both to tell the variance between runs, nothing is told: ``iobench compare`` also
    uses the drift of earlier runs. ``include_invalid`` also counts runs that violate a rule.

    Raises UsageError if a side has no run that counts, or runs that demand different things of the
    storage; UnknownNameError for an unknown metric.

    >>> again = iobench.run("demo", "demo-data", repetitions=4, calibration=0, settings=small)
    >>> found = iobench.compare(first, again, metrics=["samples_per_s"])
    >>> found.obstacles, [row.metric for row in found.rows]
    ((), ['samples_per_s'])
    """
    from .ask.compare.comparison import compare as compare_groups
    from .record.metrics import check_compared

    check_compared(*(metrics or ()))
    keys = tuple(across)
    sides = [_group(side, keys, include_invalid) for side in (baseline, candidate)]
    return compare_groups(*sides, across=keys, metrics=tuple(metrics or ()))


def _group(side: Runs | Sequence[Runs], across: tuple[str, ...], include_invalid: bool) -> Group:
    from .ask.compare.runs import Collected, Group, collect, question

    places = [side] if isinstance(side, Run | str | Path) else list(side)
    names = [str(place.directory) if isinstance(place, Run) else str(place) for place in places]
    group = Group(", ".join(names))
    left_out: list[str] = []
    for place in places:
        named = (
            Collected(runs={place.directory: place.document})
            if isinstance(place, Run)
            else collect(Path(place))
        )
        found = named.usable(include_invalid=include_invalid)
        group.runs += found.runs.values()
        left_out += found.left_out
    if not group.runs:
        why = f": {left_out[0]}" if left_out else ""
        raise UsageError(
            f"{group.label or 'one side of the comparison'} has no run that can be compared{why}",
            remedy="name runs that are complete and valid",
        )
    if len({question(document, across) for document in group.runs}) > 1:
        raise UsageError(
            f"{group.label} has runs of different workloads, datasets or settings",
            remedy="name runs of one workload and one dataset, or pass the keys that may differ",
        )
    return group


def _overrides(settings: Settings | None) -> list[str]:
    """Return the settings in the form of ``--set``; the JSON of a value is also YAML."""
    return [
        f"{key}={json.dumps(value, default=str, ensure_ascii=False)}"
        for key, value in (settings or {}).items()
    ]


def _refuse_settings(settings: Settings | None, kind: str) -> None:
    if settings:
        raise UsageError(
            f"settings can be passed only for a {kind} that is given by its name",
            remedy=f"change the {kind} itself with model_copy",
        )
