"""A run for other programs: the document as JSON, repetitions as CSV, medians as markdown."""

from __future__ import annotations

from collections.abc import Callable

from ..analyse.checkpoint.study import value_of
from ..documents import json_text
from ..schema.checkpoint import Restore, Save, Study
from ..schema.metrics import metrics_of
from ..schema.record import CheckpointRecord, RunRecord, TrainingRecord
from ..text import markdown, printable, renders
from ..units import format_count, format_rate
from .figures import format_of
from .lines import csv_text
from .text import OF_STORED, reads_unseen, shown_metrics

CONTEXT = ("seed", "accelerators", "complete")
"""Columns of a repetition that are not measured figures."""

CEILING: tuple[Callable[[float], str], ...] = (
    format_count,
    format_rate,
    lambda seconds: f"{seconds:.4g}",
)
"""Formats of a ceiling's figures: samples/s, bytes/s, CPU s/GB."""

OPERATION = ("step", "bytes", "files")
"""Columns of a save that are not measured figures. A restore has no number of files."""

CHECKED = ("wall_s", "residency_before", "verified")
"""Further columns of a restore: its time under the name in ``run.json``, and what was checked."""


def to_json(doc: RunRecord) -> str:
    """The document as in ``run.json``, in ASCII."""
    return json_text(doc) + "\n"


@renders(printable)
def to_csv(doc: RunRecord) -> str:
    """One line for each repetition (for a checkpoint study: each save and restore), in base units.

    An empty field was not measured.
    """
    if isinstance(doc, CheckpointRecord):
        study = doc.job
        done: list[tuple[str, Save | Restore]] = [("save", save) for save in study.saves]
        done += [("restore", restore) for restore in study.restores]
        measured = metrics_of("save", "restore")
        rows = [
            (
                *(doc.run_id, operation, *(getattr(one, name, None) for name in OPERATION)),
                *(value_of(one, metric) for metric in measured),
                *(getattr(one, name, None) for name in CHECKED),
            )
            for operation, one in done
        ]
        names = (*OPERATION, *(metric.name for metric in measured), *CHECKED)
        return csv_text([("run_id", "operation", *names), *rows])
    assert isinstance(doc, TrainingRecord)
    columns = (*CONTEXT, *(metric.name for metric in metrics_of("repetition")))
    figures = [
        (doc.run_id, index, *(getattr(repetition, name) for name in columns))
        for index, repetition in enumerate(doc.job.repetitions)
    ]
    return csv_text([("run_id", "repetition", *columns), *figures])


@renders(markdown)
def to_markdown(doc: RunRecord) -> str:
    """Verdict, ceilings and medians, to be pasted into an issue or a page."""
    if isinstance(doc, CheckpointRecord):
        return _study_markdown(doc, doc.job)
    assert isinstance(doc, TrainingRecord)
    lines = [
        f"**{doc.job.verdict.sentence}**"
        if doc.job.verdict
        else f"No verdict: {doc.error or doc.status}",
        "",
    ]
    lines += ["| ceiling | samples/s | bandwidth | CPU s/GB | how |", "|---|---:|---:|---:|---|"]
    for name, ceiling in doc.job.ceilings.items():
        figures = (ceiling.samples_per_s, ceiling.bytes_per_s, ceiling.cpu_s_per_gb)
        how = f"not measured: {ceiling.not_measured}" if ceiling.not_measured else ceiling.how
        shown = (
            "" if figure is None else show(figure)
            for show, figure in zip(CEILING, figures, strict=True)
        )
        lines.append(f"| {name} | {' | '.join(shown)} | {how} |")
    lines += ["", "| metric | median | min | max | n |", "|---|---:|---:|---:|---:|"]
    for metric in shown_metrics(doc):
        name, show = metric.name, format_of(metric)
        summary = doc.metrics.get(name)
        cells = (
            [show(summary.median), show(summary.min), show(summary.max), str(summary.n)]
            if summary
            else ["not measured", "", "", "0"]
        )
        of = f" {OF_STORED}" if name == "read_bytes_per_s" and reads_unseen(doc) else ""
        lines.append(f"| {name}{of} | {' | '.join(cells)} |")
    lines += [
        "",
        *(f"- {finding.level} `{finding.rule}`: {finding.evidence}" for finding in doc.findings),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _study_markdown(doc: RunRecord, study: Study) -> str:
    sentence = (
        study.meaning.sentence or f"{study.model} by {study.writer}: {doc.error or doc.status}"
    )
    lines = [
        f"**{sentence}**",
        "",
        "| figure | median | p95 | min | max | n |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, one in study.figures.items():
        lines.append(
            f"| {name} | {one.median:.4g} | {one.p95:.4g} | {one.min:.4g} | {one.max:.4g} | "
            f"{one.n} |"
        )
    for name in ("write_bytes_per_s", "restore_bytes_per_s"):
        value = getattr(study, name)
        lines.append(f"| {name} | {'not measured' if value is None else f'{value:.4g}'} | | | | |")
    lines += [
        "",
        *(f"- {finding.level} `{finding.rule}`: {finding.evidence}" for finding in doc.findings),
    ]
    return "\n".join(lines).rstrip() + "\n"
