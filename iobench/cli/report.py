"""``iobench report``: compute every figure of a run again from its recorded events."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..ask.compare.runs import collect
from ..ask.compare.sequential import claims_of
from ..ask.submission import is_submission, read_submissions
from ..base.documents import walk
from ..base.errors import IobenchError, UsageError
from ..host.tables import read_requests
from ..host.timeline import read_events
from ..judge.rebuild import conclude, kv_again, rebuild, served_again
from ..record.ab import AB_FILE, load_ab
from ..record.run import (
    EVENTS_FILE,
    RUN_FILE,
    KvCacheRecord,
    RequestsRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
    load_run,
)
from ..record.serving import KV_COLUMNS
from ..record.sweep import SWEEP_FILE, load_sweep
from ..report.submission import sections as submission_sections
from .printing import check_kind, finish, finish_ab, finish_all, finish_sweep, print_report
from .terminal import warn
from .verbs import ReportRequest


def run(request: ReportRequest) -> int:
    places = [each for name in request.directories for each in _runs(Path(name))]
    if len(places) > 1:
        return finish_all(request, _all_computed(places, request), fail_on=request.fail_on)
    (named,) = places
    if named.is_dir() and not _is_own(named) and is_submission(named):
        return _submissions(request, named)
    for file, show in ((AB_FILE, _comparison), (SWEEP_FILE, _sweep)):
        if named.name == file or (named / file).is_file():
            return show(request, named.parent if named.name == file else named)
    doc, directory = _computed(named, request.rules)
    check_kind(request.format, doc.job.kind, named)
    return finish(request, doc, directory, fail_on=request.fail_on, new=False)


def _runs(named: Path) -> list[Path]:
    """``named``, or the runs below it if it is a directory of runs."""
    below = (names for folder, names in walk(named) if Path(folder) != named)
    if _is_own(named) or not named.is_dir() or not any(RUN_FILE in names for names in below):
        return [named]
    found = collect(named)
    for why in found.left_out:
        warn(f"left out: {why}")
    return sorted(found.runs, key=lambda place: found.runs[place].created)


def _is_own(named: Path) -> bool:
    """Whether it is the directory of one record of iobench."""
    return any((named / file).is_file() for file in (RUN_FILE, SWEEP_FILE, AB_FILE))


def _submissions(request: ReportRequest, named: Path) -> int:
    """Print results of MLPerf Storage, and what their files say beside them."""
    _refuse_rules(request, f"{named} has results of MLPerf Storage", "leave them out")
    check_kind(request.format, "submission", named)
    found = read_submissions(named)
    print_report(request, found, submission_sections(found))
    return 0


def _computed(named: Path, rules: str | None) -> tuple[RunRecord, Path]:
    """A recorded run, computed again from its events, and its directory."""
    directory = named.parent if named.is_file() else named
    doc = load_run(named)
    if rules:
        doc = doc.model_copy(update={"rules": rules})
    events = directory / EVENTS_FILE
    if isinstance(doc, TrainingRecord | RequestsRecord) and not events.is_file():
        warn(f"no events.parquet in {directory}: figures are shown as recorded")
    elif isinstance(doc, TrainingRecord):
        doc = rebuild(doc, read_events(events))
    elif isinstance(doc, KvCacheRecord):
        doc = kv_again(doc, read_requests(events, KV_COLUMNS))
    elif isinstance(doc, ServingRecord):
        doc = served_again(doc, read_requests(events))
    return conclude(doc), directory


def _all_computed(places: Sequence[Path], request: ReportRequest) -> list[tuple[RunRecord, Path]]:
    """All runs, but for those below a directory that can't be computed again: these are named.

    Raises what one raises that was named by the user, or the last one if none is left.
    """
    runs, named = list[tuple[RunRecord, Path]](), set(map(Path, request.directories))
    for place in places:
        try:
            runs.append(_computed(place, request.rules))
        except IobenchError as error:
            if place in named or (place == places[-1] and not runs):
                raise
            warn(f"left out: {error}")
    return runs


def _comparison(request: ReportRequest, directory: Path) -> int:
    """Print a comparison in turns again, with its claims computed from its rounds."""
    runs = f"{directory}/a or {directory}/b"
    _refuse_rules(request, f"{directory} is a comparison in turns", f"name one of its runs, {runs}")
    check_kind(request.format, "ab", directory, remedy=f"name one of its runs, {runs}")
    record = load_ab(directory)
    record = record.model_copy(update={"claims": claims_of(record)})
    return finish_ab(request, record, directory, new=False)


def _sweep(request: ReportRequest, directory: Path) -> int:
    """Print a sweep again, from its own record."""
    sweep = load_sweep(directory)
    first = next((run for point in sweep.points for run in point.runs), "<run>")
    runs = f"such as {directory}/{first}"
    _refuse_rules(request, f"{directory} is a sweep", f"name one of its runs, {runs}")
    check_kind(request.format, "sweep", directory, remedy=f"name one of its runs, {runs}")
    return finish_sweep(request, sweep, directory, new=False)


def _refuse_rules(request: ReportRequest, what: str, remedy: str) -> None:
    if request.fail_on or request.rules:
        raise UsageError(f"--fail-on and --rules are about one run, but {what}", remedy=remedy)
