"""Print a report in the format that ``--format`` names, by the renderer of that format."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..base.documents import write_whole
from ..base.errors import IobenchError, UsageError
from ..base.text import quoted
from ..judge.validity import violations
from ..record.ab import AbRecord
from ..record.run import EVENTS_FILE, SAMPLES_FILE, RunRecord, TrainingRecord
from ..record.sweep import Sweep
from ..report.ab import sections as ab_sections
from ..report.glance import command_sections
from ..report.media import MEDIA, Kind, is_export, refusal
from ..report.record import sections, several_sections
from ..report.render_csv import render_csv
from ..report.render_html import page
from ..report.render_markdown import render_github, render_markdown
from ..report.render_text import render_text
from ..report.sections import Section, first_screen
from ..report.sweep import rates_of
from ..report.sweep import sections as sweep_sections
from ..report.walk import facts
from ..report.walk import sections as walk_sections
from .flags import GateRequest, ReportedRequest, VerbRequest
from .terminal import (
    COMMAND,
    DEFAULT_COLUMNS,
    columns,
    say,
    show,
    show_data,
    show_json,
    show_pieces,
    use_color,
    warn,
)

ANSWER_COLUMNS = 80
"""The answer fits on one screen of this width and of 30 lines."""

PIPE_COLUMNS = 140
"""Largest width of a table where standard output is no terminal: other programs fold no lines."""


_DATA = {"csv": render_csv, "markdown": render_markdown, "github": render_github}
"""Formats that are the sections alone, without breaking lines."""


def print_report(
    request: ReportedRequest, document: object, sections: Sequence[Section], *, kept: bool = False
) -> None:
    """Print ``document`` as json, or ``sections`` in another format, as the request asks.

    Text is the answer alone, and with --details the evidence, too. ``kept``: the caller says how to
    print it again.
    """
    kind = request.format
    if kind == "json":
        show_json(document)
    elif kind in _DATA:
        show_data(_DATA[kind](sections))
    elif kind == "html":
        known = any(section.id == "again" for section in sections)
        again = [] if known or not COMMAND.get() else command_sections(COMMAND.get())
        show_data(page(document, [*sections, *again]))
    elif not request.details:
        width = min(ANSWER_COLUMNS, columns())
        show(render_text(first_screen(sections), width=width, color=use_color()))
        if not kept:
            show("\ndetails: the same with --details\n")
    else:
        width = min(DEFAULT_COLUMNS, columns())
        room = columns() if sys.stdout.isatty() else PIPE_COLUMNS
        show(render_text(sections, width=width, color=use_color(), room=room))


PAGE = "report.html"
"""The file in a run directory that any browser shows."""


def finish(
    request: ReportedRequest,
    doc: RunRecord,
    directory: Path,
    *,
    fail_on: Sequence[str] = (),
    new: bool = True,
) -> int:
    """Print the record of a run, and return the exit code.

    0: ok, 3: the run is invalid, 4: a condition of ``fail_on`` holds. ``new``: the run has just
    ended, and its directory gets the report as a page.
    """
    if is_export(request.format):
        export(request.format, [doc], directory)
        if new:
            keep_page(doc, _page_sections(doc, directory), directory)
    else:
        paged = _page_sections(doc, directory) if new or request.format == "html" else []
        shown = paged if request.format == "html" else sections(doc)
        _show(request, doc, shown, directory, paged=paged if new else None)
    return _code([doc], fail_on)


def finish_all(
    request: ReportedRequest, runs: Sequence[tuple[RunRecord, Path]], *, fail_on: Sequence[str]
) -> int:
    """Print several runs as one document, and return the exit code of the worst of them."""
    docs = [doc for doc, _ in runs]
    if is_export(request.format):
        export(request.format, docs, runs[0][1])
    else:
        paged = request.format == "html"
        shown = [
            (doc, _page_sections(doc, place) if paged else sections(doc)) for doc, place in runs
        ]
        print_report(request, docs, several_sections(shown))
    return _code(docs, fail_on)


def finish_ab(request: ReportedRequest, record: AbRecord, directory: Path, *, new: bool) -> int:
    """Print a comparison in turns, and return the exit code: 0, or 3 if a side is INVALID."""
    shown = ab_sections(record)
    _show(request, record, shown, directory, paged=shown if new else None)
    return 3 if any(variant.validity == "invalid" for variant in record.variants) else 0


def finish_sweep(request: ReportedRequest, sweep: Sweep, directory: Path, *, new: bool) -> int:
    """Print a sweep, and return the exit code: 0, or 1 if no point was measured."""
    document = {**sweep.model_dump(), **facts(sweep), "directory": str(directory)}
    shown = _sections_of(sweep)
    _show(request, document, shown, directory, paged=shown if new else None)
    points = sum(bool(rates_of(point)) for point in sweep.points)
    advised = sweep.metric == TrainingRecord.headline and not sweep.walk
    if request.format == "text" and advised and points > 1:
        say(f"advice:  iobench advise {quoted(str(directory))}")
    return 0 if points else 1


def _sections_of(record: RunRecord | AbRecord | Sweep) -> list[Section]:
    if isinstance(record, AbRecord):
        return ab_sections(record)
    if isinstance(record, Sweep):
        return walk_sections(record) if record.walk else sweep_sections(record)
    return sections(record)


def show_unwritten(request: VerbRequest, record: object) -> None:
    """Print a record that could not be written: what was measured is nowhere else."""
    if isinstance(request, ReportedRequest) and isinstance(record, RunRecord | AbRecord | Sweep):
        print_report(request, record, _sections_of(record), kept=True)


def _show(
    request: ReportedRequest,
    document: object,
    shown: Sequence[Section],
    directory: Path,
    *,
    paged: Sequence[Section] | None,
) -> None:
    """Print what has a directory of its own, which gets the page ``paged`` if it is new."""
    print_report(request, document, shown, kept=True)
    if paged is not None:
        keep_page(document, paged, directory)
    if request.format == "text":
        say_where(directory, details=request.details)


def _code(docs: Sequence[RunRecord], fail_on: Sequence[str]) -> int:
    """3 if a run is invalid, 4 if a condition holds, which is told on stderr; else 0."""
    failed = False
    for doc in docs:
        which = f" ({doc.run_id})" if len(docs) > 1 else ""
        for line in violations(doc, fail_on):
            warn(f"--fail-on {line}{which}")
            failed = True
    if any(doc.validity == "invalid" for doc in docs):
        return 3
    return 4 if failed else 0


def _page_sections(doc: RunRecord, directory: Path) -> list[Section]:
    """The report with the timeline of the run's events, if there are some."""
    if not isinstance(doc, TrainingRecord) or not (directory / EVENTS_FILE).is_file():
        return sections(doc)
    from ..host.samples import read_samples
    from ..host.timeline import read_events

    kept, samples = directory / SAMPLES_FILE, None
    try:
        samples = read_samples(kept) if kept.is_file() else None
    except IobenchError as error:
        warn(f"the page does not show what the host did: {error}")
    return sections(doc, read_events(directory / EVENTS_FILE), samples)


def say_where(directory: Path, *, details: bool) -> None:
    """The last lines of a text: where the results are, and how to print them again.

    Without ``details`` the text is the answer alone, and this is how to print the evidence.
    """
    say()
    say(f"results: {directory}")
    if (directory / PAGE).is_file():
        say(f"page:    {directory / PAGE}")
    label, flag = ("again:  ", "") if details else ("details:", " --details")
    say(f"{label} iobench report {quoted(str(directory))}{flag}")


def keep_page(doc: object, shown: Sequence[Section], directory: Path) -> None:
    """Write the page into the run directory; a place where that fails costs no result."""
    try:
        write_whole(directory / PAGE, page(doc, shown))
    except OSError as error:
        warn(f"{directory / PAGE} could not be written: {error.strerror or error}")


def check_kind(form: str, kind: Kind, directory: Path, *, remedy: str = "") -> None:
    """Raise UsageError if the format ``form`` can't show a record of this kind."""
    why = refusal(form, kind)
    if why:
        other = "use another --format; --help has them all"
        raise UsageError(f"{why}: {directory}", remedy=remedy or other)


def export(form: str, docs: Sequence[RunRecord], directory: Path) -> None:
    """Print records in the format ``form``. Raises UsageError, IobenchError without events."""
    if len(docs) > 1 and not MEDIA[form].several:
        raise UsageError(f"--format {form} shows one run", remedy="name one run directory")
    for doc in docs:
        check_kind(form, doc.job.kind, directory)
    if form == "openmetrics":
        from ..report.export_openmetrics import openmetrics

        show_data(openmetrics(*docs))
    elif form == "mlperf":
        from ..report.export_mlperf import mlperf

        show_json(mlperf(docs[0]))
    else:
        from ..host.timeline import read_events
        from ..report.export_trace import trace

        assert isinstance(docs[0], TrainingRecord)
        show_pieces(trace(docs[0], read_events(directory / EVENTS_FILE)))


FAILED = 4


def status_of(request: GateRequest, failed: Iterable[str], inconclusive: Iterable[str]) -> int:
    """The exit status of a gate, after a line on stderr for each failure.

    ``failed``: what is worse, one line each. ``inconclusive``: what is inconclusive.
    """
    limit = f"--fail-on {100 * (request.fail_on or 0):g}%"
    worse, unknown = list(failed), list(inconclusive)
    for line in worse:
        warn(f"{limit}: {line}")
    if request.if_inconclusive != "pass":
        for line in unknown:
            warn(f"{limit}: inconclusive: {line}")
    return FAILED if worse or (unknown and request.if_inconclusive == "fail") else 0
