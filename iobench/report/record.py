"""The report of a recorded run, of whatever kind it is, and of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..base.units import counted
from ..judge.figures.events import Events
from ..record.run import (
    CheckpointRecord,
    KvCacheRecord,
    ModelLoadRecord,
    RequestsRecord,
    RunRecord,
    ServingRecord,
    TrainingRecord,
)
from . import checkpoint, kv_cache, model_load, run, serving
from .figures import TableOf, labels_of, tags_text, word
from .glance import UTILIZATION, bottleneck_text
from .sections import Cell, FirstScreen, Prose, Section, Table, Value


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
    if isinstance(doc, KvCacheRecord):
        return kv_cache.sections(doc)
    assert isinstance(doc, TrainingRecord)
    return run.sections(doc, events, samples)


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

    def after(title: str) -> str:
        return f"{title} ({what} {number})" if title else ""

    if isinstance(section, Prose):
        return replace(section, id=name)
    if isinstance(section, FirstScreen):
        return replace(section, id=name, job=f"{what.capitalize()} {number}: {section.job}")
    if isinstance(section, Table):
        charts = tuple(replace(each, title=after(each.title)) for each in section.charts)
        section = replace(section, charts=charts)
    return replace(section, id=name, title=after(section.title))


def _overview(docs: Sequence[RunRecord]) -> Table:
    rows, number = TableOf(docs), {id(doc): at for at, doc in enumerate(docs, start=1)}
    rows.add("number", "run", of=lambda doc: number[id(doc)])
    rows.add("run_id", "id")
    rows.add("job", "job", of=_job)
    about = {id(doc): labels_of(doc) for doc in docs}

    def label(doc: RunRecord, key: str) -> Value:
        return about[id(doc)][key]

    rows.add_each({"storage": "storage", "host": "host"}, "", label)
    rows.add_each({"cores": "cores", "instance": "instance"}, "", label, where="pages")
    if any(doc.tags for doc in docs):
        rows.add("tags", "labels", of=lambda doc: tags_text(doc) or None)
    rows.add("created", "when", of=_when)
    rows.add("status", "ended")
    rows.add("bottleneck", "the bottleneck", of=_bottleneck)
    rows.add(UTILIZATION, "utilization", "share", lambda doc: doc.metrics.get(UTILIZATION))
    rows.add("samples_per_s", "samples/s", of=lambda doc: doc.metrics.get("samples_per_s"))
    rows.add("validity", "validity")
    return rows.made("overview", "Overview: median [min, max] of the repetitions of each run")


def _job(doc: RunRecord) -> str:
    if isinstance(doc, CheckpointRecord):
        return f"checkpoint of {doc.job.model}"
    if isinstance(doc, ModelLoadRecord):
        return f"loads of {doc.job.model}"
    if isinstance(doc, RequestsRecord):
        return doc.job.scenario.name
    if isinstance(doc, TrainingRecord):
        return f"{doc.job.workload.name}, {counted(doc.job.accelerators, 'accelerator')}"
    return str(doc.job.kind)


def _when(doc: RunRecord) -> Cell:
    return word(doc.created[:16].replace("T", " "), doc.created)


def _bottleneck(doc: RunRecord) -> str:
    if isinstance(doc, RequestsRecord):
        return serving.bottleneck_text(doc.job.verdict) if doc.job.verdict else "-"
    if not isinstance(doc, TrainingRecord):
        return "-"
    return (
        bottleneck_text(doc.job.verdict, watched=doc.job.subject.watched)
        if doc.job.verdict
        else "no verdict"
    )
