"""The Python interface: the verbs of the command line as functions that return objects.

``generate`` makes a dataset, ``open_dataset`` finds one, ``make_loader`` reads it in your own
training, ``run`` measures it, and ``compare`` compares runs. ``command`` does what any command line
does. All of them can be imported from ``iobench``; docs/api.md describes them. Every error that a
caller can cause is an ``IobenchError``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from .base.documents import json_text
from .base.errors import UsageError
from .cli.flags import Question
from .cli.verbs import GenerateQuestion, RunQuestion

if TYPE_CHECKING:
    from .ask.compare.comparison import Comparison
    from .ask.compare.runs import Group
    from .data.generator.engine import GenerateReport
    from .record.run import Finding, RunRecord, Summary
    from .record.verdict import Verdict

P = ParamSpec("P")
A = TypeVar("A", bound=Question)
R = TypeVar("R")


def _asks(request: Callable[P, A]) -> Callable[[Callable[[A], R]], Callable[P, R]]:
    """Give a function of a request the parameters of the request itself."""

    def decorate(do: Callable[[A], R]) -> Callable[P, R]:
        name = f"iobench.{do.__name__}"
        known = signature(request)
        own = [each for each in known.parameters.values() if each.name not in _OF_THE_CALL]
        asks = known.replace(parameters=own)

        @wraps(do)
        def call(*args: P.args, **asked: P.kwargs) -> R:
            try:
                asks.bind(*args, **asked)
            except TypeError as error:  # in the name of this function, and not of the request
                raise TypeError(f"{name}() {error}") from None
            return do(replace(request(*args, **asked), command=(name,), began_s=monotonic()))

        call.__signature__ = asks  # type: ignore[attr-defined]
        return call

    return decorate


_OF_THE_CALL = {each.name for each in fields(Question)}


@_asks(GenerateQuestion)
def generate(request: GenerateQuestion) -> GenerateReport:
    """Generate a dataset in a directory or at a URL.

    An incomplete dataset there is finished; a complete one is left as it is. The parameters are the
    flags of ``iobench generate``: ``to`` is where, ``size`` (bytes) or ``samples`` says how much,
    and ``overrides`` changes keys of the specification, as ``{"format": "tar"}``. The bytes depend
    only on the specification, not on ``workers`` (None: one per core). ``progress`` is called with
    (bytes done, bytes in all) from time to time.

    Raises SpecError, UnknownNameError, UsageError, TargetRefusedError (other data is there, or
    another process writes there), DatasetError, StorageError, WorkerError, InterruptedRun.

    >>> made = iobench.generate("demo", to="demo-data", samples=40)
    >>> made.manifest.sample_count, made.written_samples
    (40, 40)
    >>> iobench.generate("demo", to="demo-data", samples=40).written_samples  # it is all there
    0
    """
    from .cli.generate import prepared
    from .data.generator.engine import generate as write

    spec, storage = prepared(request)
    return write(
        spec,
        storage,
        workers=request.workers,
        progress=request.progress,
        break_lock=request.break_lock,
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
        from .report.record import sections
        from .report.render_html import page

        return page(self.document, sections(self.document))

    def to_csv(self) -> str:
        """Return CSV with a header and a row for each repetition (of a study: save, restore)."""
        from .report.record import sections
        from .report.render_csv import render_csv

        return render_csv(sections(self.document))

    def to_json(self) -> str:
        """Return the whole record, as in ``run.json``."""
        return json_text(self.document) + "\n"


@_asks(RunQuestion)
def run(request: RunQuestion) -> Run:
    """Measure each stage alone, then all of them together, and find the stage that limits them.

    The parameters are the flags of ``iobench run``: ``data`` is the dataset's directory or URL,
    ``accelerators`` ranks read it ``repeat`` times, and ``overrides`` changes keys of the workload,
    as ``{"loader.workers": 4}``. Without ``repeat``, ``calibration_s`` and ``budget_s``, the run is
    fitted to five minutes. The record and the events are written to a new directory below
    ``results``. ``observer`` hears how far the run is; ``tags`` are labels of the run, as
    ``{"box": "nfs-b"}``. For a workload of your own making see ``make_plan`` and ``run_plan``.

    Raises UsageError and its subclasses before anything is written. DatasetError, StorageError,
    WorkerError and InterruptedRun are raised after everything measured so far has been written.

    >>> quick = {"repeat": 4, "calibration_s": 0.0, "overrides": small}
    >>> first = iobench.run("demo", data="demo-data", **quick)
    >>> first.document.status, first.metrics["samples_per_s"].n
    ('ok', 4)
    >>> first.metrics["samples_per_s"].median > 0
    True
    >>> print(first.to_text())  # doctest: +ELLIPSIS
    demo on ...
    """
    from .cli.run import flag_overrides, options_of, planned
    from .runner.experiment import run as measure
    from .settings.tags import parse_tags, tagged
    from .settings.workload import load_workload

    request = replace(request, results=Path(request.results))  # a text, too
    changes = [*flag_overrides(request), *request.overrides]
    workload = load_workload(str(request.workload), changes)
    with tagged(parse_tags(tuple(request.tags))):
        plan, mixed = planned(workload, request, request.accelerators)
        document, directory = measure(plan, options_of(request, mixed), request.observer)
    return Run(directory=directory, document=document)


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a command found: the document that it prints with ``--json``, and its exit code."""

    document: Any
    exit_code: int


def command(line: str | Sequence[str]) -> CommandResult:
    """Do what a command line does, and return what it prints with ``--json`` as plain data.

    ``line`` is a command of the documentation without the word ``iobench``, as one text or as a
    list of words. Progress goes to standard error, unless the line has ``--quiet``. The exit code
    is 0, or, as on the command line, 3 for an INVALID run and 4 where a condition of ``--fail-on``
    holds; errors are raised.

    Raises IobenchError, UsageError for words that are no command.

    >>> found = iobench.command("size unet3d-h100 --accelerators 64 --hosts 8")
    >>> found.document["buy_bytes_per_s"] > found.document["read_bytes_per_s"] > 100e9
    True
    """
    from .cli.main import document_of

    document, code = document_of(shlex.split(line) if isinstance(line, str) else list(line))
    return CommandResult(document=document, exit_code=code)


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

    >>> again = iobench.run("demo", data="demo-data", **quick)
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
