"""The report of a recorded run, of whatever kind it is, and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.units import counted, format_count, format_percent
from ..judge.figures.events import Events
from ..record.run import (
    CheckpointRecord,
    ModelLoadRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from . import checkpoint, model_load, run, serving
from .figures import Format, TableOf, summary, word
from .glance import UTILIZATION, bottleneck_text
from .labels import labels_of, tags_text
from .sections import Cell, FirstScreen, Headline, Prose, Section, Table


def sections(
    doc: RunRecord, events: Events | None = None, samples: Events | None = None
) -> list[Section]:
    """The report of a run, of whatever kind.

    ``events`` of the run, and ``samples`` of what its host did, add charts that only pages show.
    """
    if isinstance(doc, CheckpointRecord):
        return checkpoint.sections(doc)
    if isinstance(doc, ModelLoadRecord):
        return model_load.sections(doc)
    if isinstance(doc, ServingRecord):
        return serving.sections(doc)
    assert isinstance(doc, TrainingRecord)
    return run.sections(doc, events, samples)


RATE = "samples_per_s"


def several_sections(runs: Sequence[tuple[RunRecord, Sequence[Section]]]) -> list[Section]:
    """An overview of the runs, and the sections of each with its number in ids and titles."""
    told = "Each run is shown by itself. iobench compare tells whether runs differ."
    found: list[Section] = [
        FirstScreen(id="runs", job="Runs", state=str(len(runs)), sentences=(told,)),
        _overview([doc for doc, _ in runs]),
    ]
    for number, (_, shown) in enumerate(runs, start=1):
        found += [numbered(section, number) for section in shown]
    return found


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
        return replace(section, id=name, job=f"{what.capitalize()} {number}: {section.job}")
    title = f"{section.title} ({what} {number})" if section.title else ""
    if isinstance(section, Table):
        charts = tuple(
            replace(each, title=f"{each.title} ({what} {number})") if each.title else each
            for each in section.charts
        )
        return replace(section, id=name, title=title, charts=charts)
    return replace(section, id=name, title=title)


def _overview(docs: Sequence[RunRecord]) -> Table:
    rows, about = TableOf(list(enumerate(docs, start=1))), [labels_of(doc) for doc in docs]
    rows.add("number", "run", of=lambda each: each[0])
    rows.add("run_id", "id", of=lambda each: each[1].run_id)
    rows.add("job", "job", of=lambda each: _job(each[1]))
    rows.add_each({"storage": "storage", "host": "host"}, "", lambda at, key: about[at[0] - 1][key])
    more = {"cores": "cores", "instance": "instance"}
    rows.add_each(more, "", lambda at, key: about[at[0] - 1][key], where="pages")
    if any(doc.tags for doc in docs):
        rows.add("tags", "labels", of=lambda each: tags_text(each[1]) or None)
    rows.add("created", "when", of=lambda each: _when(each[1].created))
    rows.add("status", "ended", of=lambda each: each[1].status)
    rows.add("bottleneck", "the bottleneck", of=lambda each: _bottleneck(each[1]))
    rows.add(
        UTILIZATION,
        "utilization",
        "share",
        lambda each: _median(each[1], UTILIZATION, format_percent),
    )
    rows.add(RATE, "samples/s", "samples/s", lambda each: _median(each[1], RATE, format_count))
    rows.add("validity", "validity", of=lambda each: each[1].validity)
    return rows.made("overview", "Overview: median [min, max] of the repetitions of each run")


def _job(doc: RunRecord) -> str:
    if isinstance(doc, CheckpointRecord):
        return f"checkpoint of {doc.job.model}"
    if isinstance(doc, ModelLoadRecord):
        return f"loads of {doc.job.model}"
    if isinstance(doc, ServingRecord):
        return doc.job.scenario.name
    if isinstance(doc, TrainingRecord):
        return f"{doc.job.workload.name}, {counted(doc.job.accelerators, 'accelerator')}"
    return str(doc.job.kind)


def _when(created: str) -> Cell:
    return word(created[:16].replace("T", " "), created)


def _bottleneck(doc: RunRecord) -> str:
    if isinstance(doc, ServingRecord) and doc.job.verdict is not None:
        return serving.bottleneck_text(doc.job.verdict)
    if not isinstance(doc, TrainingRecord):
        return "-"
    return bottleneck_text(doc.job.verdict) if doc.job.verdict else "no verdict"


def _median(doc: RunRecord, metric: str, show: Format) -> Cell | None:
    found = doc.metrics.get(metric)
    return None if found is None else summary(found, show)
