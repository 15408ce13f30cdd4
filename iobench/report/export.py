"""A run for other programs: the whole document as JSON, its repetitions as CSV, its medians as a markdown table."""

from __future__ import annotations

from collections.abc import Callable

from ..documents import json_text
from ..schema.checkpoint import Restore, Save, Study
from ..schema.result import RunDocument
from ..text import markdown, printable, renders
from ..units import format_count, format_rate
from .lines import csv_text
from .text import OF_STORED, ROWS, reads_unseen

SCALARS = (
    "seed",
    "accelerators",
    "complete",
    "residency_before",
    "samples",
    "steps",
    "bytes_read",
    "sample_bytes",
    "wall_s",
    "busy_s",
    "wait_s",
    "cpu_s",
    "throttled_s",
    "time_to_first_batch_s",
    "accelerator_utilization",
    "accelerator_utilization_sustained",
    "accelerator_utilization_strict",
    "samples_per_s",
    "read_bytes_per_s",
    "read_amplification",
    "wait_p50_s",
    "wait_p99_s",
    "late_p99_s",
)

CEILING: tuple[Callable[[float], str], ...] = (
    format_count,
    format_rate,
    lambda seconds: f"{seconds:.4g}",
)
"""How the figures of a ceiling are shown: samples/s, bytes/s, CPU s/GB."""

OPERATION = (
    "step",
    "bytes",
    "files",
    "blocked_s",
    "staged_s",
    "accepted_s",
    "durable_s",
    "committed_s",
    "waited_s",
    "wall_s",
    "cpu_s",
    "extra_memory_bytes",
    "residency_before",
    "verified",
)
"""Of one save or restore in a checkpoint study."""


def to_json(doc: RunDocument) -> str:
    """The document as it stands in ``run.json``, in ASCII."""
    return json_text(doc) + "\n"


@renders(printable)
def to_csv(doc: RunDocument) -> str:
    """One line for each repetition (of a checkpoint study: each save and restore), base units.

    An empty field was not measured.
    """
    if doc.checkpoint is not None and not doc.dataset:
        done: list[tuple[str, Save | Restore]] = [("save", save) for save in doc.checkpoint.saves]
        done += [("restore", restore) for restore in doc.checkpoint.restores]
        rows = [
            (doc.run_id, operation, *(getattr(one, name, None) for name in OPERATION))
            for operation, one in done
        ]
        return csv_text([("run_id", "operation", *OPERATION), *rows])
    figures = [
        (doc.run_id, index, *(getattr(repetition, name) for name in SCALARS))
        for index, repetition in enumerate(doc.repetitions)
    ]
    return csv_text([("run_id", "repetition", *SCALARS), *figures])


@renders(markdown)
def to_markdown(doc: RunDocument) -> str:
    """Verdict, ceilings and medians, ready to be pasted into an issue or a page."""
    if doc.checkpoint is not None and not doc.dataset:
        return _study_markdown(doc, doc.checkpoint)
    lines = [
        f"**{doc.verdict.sentence}**" if doc.verdict else f"No verdict: {doc.error or doc.status}",
        "",
    ]
    lines += ["| ceiling | samples/s | bandwidth | CPU s/GB | how |", "|---|---:|---:|---:|---|"]
    for name, ceiling in doc.ceilings.items():
        figures = (ceiling.samples_per_s, ceiling.bytes_per_s, ceiling.cpu_s_per_gb)
        how = f"not measured: {ceiling.not_measured}" if ceiling.not_measured else ceiling.how
        shown = (
            "" if figure is None else show(figure)
            for show, figure in zip(CEILING, figures, strict=True)
        )
        lines.append(f"| {name} | {' | '.join(shown)} | {how} |")
    lines += ["", "| metric | median | min | max | n |", "|---|---:|---:|---:|---:|"]
    for name, _, show in ROWS:
        summary = doc.metrics.get(name)
        if summary is None and name == "checkpoint_s" and doc.checkpoint is None:
            continue  # nobody asked for checkpoints
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


def _study_markdown(doc: RunDocument, study: Study) -> str:
    sentence = (
        study.meaning.get("sentence")
        or f"{study.model} by {study.writer}: {doc.error or doc.status}"
    )
    lines = [
        f"**{sentence}**",
        "",
        "| figure | median | p95 | min | max | n |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, one in study.figures.items():
        lines.append(
            f"| {name} | {one.median:.4g} | {one.p95:.4g} | {one.min:.4g} | {one.max:.4g} | {one.n} |"
        )
    for name in ("write_bytes_per_s", "restore_bytes_per_s"):
        value = getattr(study, name)
        lines.append(f"| {name} | {'not measured' if value is None else f'{value:.4g}'} | | | | |")
    lines += [
        "",
        *(f"- {finding.level} `{finding.rule}`: {finding.evidence}" for finding in doc.findings),
    ]
    return "\n".join(lines).rstrip() + "\n"
