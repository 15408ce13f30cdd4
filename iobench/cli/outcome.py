"""The end of ``run``, ``checkpoint`` and ``report``.

The document is printed on stdout, and conditions of ``--fail-on`` that hold on stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..base.documents import write_whole
from ..base.errors import IobenchError
from ..judge.validity import violations
from ..record.ab import AbRecord
from ..record.run import EVENTS_FILE, SAMPLES_FILE, RunRecord, TrainingRecord
from ..record.sweep import Sweep
from ..report.ab import sections as ab_sections
from ..report.media import is_export
from ..report.page.whole import page
from ..report.record import sections, several_sections
from ..report.sections import Section
from ..report.sweep import sections as sweep_sections
from ..report.walk import facts
from ..report.walk import sections as walk_sections
from .exporting import export, export_all
from .printing import print_report
from .terminal import say, warn

PAGE = "report.html"
"""The file in a run directory that any browser shows."""


def finish(
    doc: RunRecord,
    directory: Path,
    *,
    kind: str,
    fail_on: Sequence[str],
    new: bool = True,
    details: bool = False,
) -> int:
    """Print ``doc`` in the format ``kind``, and return the exit code.

    0: ok, 3: the run is invalid, 4: a condition of ``fail_on`` holds. ``new``: the run has just
    ended, and its directory gets the report as a page. ``details``: text has the evidence, too.
    """
    brief = kind == "text" and not details and isinstance(doc, TrainingRecord)
    if is_export(kind):
        export(kind, doc, directory)
    else:
        shown = _page_sections(doc, directory) if kind == "html" else sections(doc)
        print_report(kind, doc, shown, details=not brief)
    if new:
        keep_page(doc, _page_sections(doc, directory), directory)
    if kind == "text":
        say_where(directory, details=brief)
    return _code([doc], fail_on)


def finish_all(runs: Sequence[tuple[RunRecord, Path]], *, kind: str, fail_on: Sequence[str]) -> int:
    """Print several runs as one document, and return the exit code of the worst of them."""
    docs = [doc for doc, _ in runs]
    if is_export(kind):
        export_all(kind, docs, runs[0][1])
        return _code(docs, fail_on)
    paged = kind == "html"
    shown = [(doc, _page_sections(doc, place) if paged else sections(doc)) for doc, place in runs]
    print_report(kind, docs, several_sections(shown))
    return _code(docs, fail_on)


def finish_ab(record: AbRecord, directory: Path, *, kind: str, new: bool) -> int:
    """Print a comparison in turns, and return the exit code: 0, or 3 if a side is INVALID.

    ``new``: it has just ended, and its directory gets the report as a page.
    """
    shown = ab_sections(record)
    print_report(kind, record, shown)
    if new:
        keep_page(record, shown, directory)
    if kind == "text":
        say_where(directory)
    return 3 if any(side.validity == "invalid" for side in record.sides) else 0


def finish_sweep(sweep: Sweep, directory: Path, *, kind: str, new: bool) -> int:
    """Print a sweep, and return the exit code: 0, or 1 if no point was measured.

    ``new``: it has just ended, and its directory gets the report as a page.
    """
    document = {**sweep.model_dump(), **facts(sweep), "directory": str(directory)}
    shown = sweep_sections(sweep) if not sweep.walk else walk_sections(sweep)
    print_report(kind, document, shown)
    if new:
        keep_page(document, shown, directory)
    if kind == "text":
        say_where(directory)
        if not sweep.walk:
            say(f"advice:  iobench advise {directory}")
    return 0 if any(point.runs for point in sweep.points) else 1


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


def say_where(directory: Path, *, details: bool = False) -> None:
    """The last lines of a text: where the results are, and how to print them again.

    ``details``: the text is the answer alone, and this is how to print the evidence.
    """
    say()
    say(f"results: {directory}")
    if (directory / PAGE).is_file():
        say(f"page:    {directory / PAGE}")
    label, flag = ("details:", " --details") if details else ("again:  ", "")
    say(f"{label} iobench report {directory}{flag}")


def keep_page(doc: object, shown: Sequence[Section], directory: Path) -> None:
    """Write the page into the run directory; a place where that fails costs no result."""
    try:
        write_whole(directory / PAGE, page(doc, shown))
    except OSError as error:
        warn(f"{directory / PAGE} could not be written: {error.strerror or error}")
