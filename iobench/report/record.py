"""The report of a recorded run, of whatever kind it is, and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.units import counted, format_count, format_percent
from ..judge.figures.events import Events
from ..record.run import CheckpointRecord, RunRecord, TrainingRecord
from . import checkpoint, run
from .figures import Format, figure, summary, word
from .glance import UTILIZATION, bottleneck_text
from .labels import labels_of, tags_text, with_all_tags
from .sections import Cell, Column, FirstScreen, Headline, Prose, Row, Section, Table, Value


def sections(
    doc: RunRecord, events: Events | None = None, samples: Events | None = None
) -> list[Section]:
    """The report of a checkpoint study, or of a run that loaded data.

    ``events`` of the run, and ``samples`` of what its host did, add charts that only pages show.
    """
    if isinstance(doc, CheckpointRecord):
        return checkpoint.sections(doc)
    assert isinstance(doc, TrainingRecord)
    return run.sections(doc, events, samples)


RATE = "samples_per_s"


def several_sections(runs: Sequence[tuple[RunRecord, Sequence[Section]]]) -> list[Section]:
    """An overview of the runs, and the sections of each with its number in ids and titles."""
    told = "Each run is shown by itself. iobench compare tells whether runs differ."
    found: list[Section] = [
        Headline(id="runs", title=counted(len(runs), "run"), sentences=(told,)),
        _overview([doc for doc, _ in runs]),
    ]
    for number, (_, shown) in enumerate(runs, start=1):
        found += [numbered(section, number) for section in shown]
    return with_all_tags(found, [doc for doc, _ in runs])


def numbered(section: Section, number: int, what: str = "run") -> Section:
    """The section with an id and a title that no section of another run has.

    ``what``: what is numbered, in one word.
    """
    name = f"{what}-{number}-{section.id}"
    if isinstance(section, Prose):
        return replace(section, id=name)
    if isinstance(section, Headline):
        return replace(section, id=name, title=f"{what.capitalize()} {number}: {section.title}")
    if isinstance(section, FirstScreen):
        job = f"{what.capitalize()} {number}: {section.job}"
        instead = f"{what}-{number}-{section.instead}" if section.instead else ""
        return replace(section, id=name, job=job, instead=instead)
    title = f"{section.title} ({what} {number})" if section.title else ""
    if isinstance(section, Table):
        charts = tuple(
            replace(each, title=f"{each.title} ({what} {number})") if each.title else each
            for each in section.charts
        )
        return replace(section, id=name, title=title, charts=charts)
    return replace(section, id=name, title=title)


def _overview(docs: Sequence[RunRecord]) -> Table:
    return Table(
        id="overview",
        title="Overview: median [min, max] of the repetitions of each run",
        columns=(
            Column(name="number", label="run", align="right"),
            Column(name="run_id", label="id"),
            Column(name="job", label="job"),
            Column(name="storage", label="storage"),
            Column(name="host", label="host"),
            Column(name="cores", label="cores", align="right", where="pages"),
            Column(name="instance", label="instance", where="pages"),
            *([Column(name="tags", label="labels")] if any(doc.tags for doc in docs) else []),
            Column(name="created", label="when"),
            Column(name="status", label="ended"),
            Column(name="bottleneck", label="the bottleneck"),
            Column(name=UTILIZATION, label="utilization", unit="share"),
            Column(name=RATE, label="samples/s", unit="samples/s"),
            Column(name="validity", label="validity"),
        ),
        rows=tuple(
            _row(number, doc, tagged=any(each.tags for each in docs))
            for number, doc in enumerate(docs, start=1)
        ),
    )


def _row(number: int, doc: RunRecord, *, tagged: bool) -> Row:
    found = labels_of(doc)
    job, bottleneck = str(doc.job.kind), "-"
    if isinstance(doc, CheckpointRecord):
        job = f"checkpoint of {doc.job.model}"
    elif isinstance(doc, TrainingRecord):
        job = f"{doc.job.workload.name}, {counted(doc.job.accelerators, 'accelerator')}"
        bottleneck = bottleneck_text(doc.job.verdict) if doc.job.verdict else "no verdict"
    return Row(
        cells=(
            figure(number, str),
            word(doc.run_id),
            word(job),
            *(_known(found[name]) for name in ("storage", "host", "cores", "instance")),
            *([_known(tags_text(doc) or None)] if tagged else []),
            word(doc.created[:16].replace("T", " "), doc.created),
            word(doc.status),
            word(bottleneck),
            _median(doc, UTILIZATION, format_percent),
            _median(doc, RATE, format_count),
            word(doc.validity),
        )
    )


def _known(value: Value) -> Cell:
    return Cell(value=value, text="-" if value is None else str(value))


def _median(doc: RunRecord, metric: str, show: Format) -> Cell:
    found = doc.metrics.get(metric)
    if found is None:
        return Cell(value=None, text="-")
    return summary(found, show)
