"""The balance of the loader workers: what each of them did, the slowest first."""

from __future__ import annotations

from ..schema.record import TrainingRecord
from ..schema.training import WorkerLoad
from ..units import format_bytes, format_count, format_duration
from .figures import figure
from .sections import Cell, Chart, Column, Row, Section, Table
from .time import middle_repetition

MAX_BARS = 16
MAX_ROWS = 64


def worker_sections(doc: TrainingRecord) -> list[Section]:
    """Bars of the busy time for a batch, and a table, of the repetition with the median rate."""
    chosen = middle_repetition(doc)
    if chosen is None or not chosen[1].workers:
        return []
    number, repetition = chosen
    found = sorted(repetition.workers, key=lambda each: -each.s_per_batch)
    of = f", repetition {number + 1}" if len(doc.job.repetitions) > 1 else ""
    several = len({each.rank for each in found}) > 1
    count = len(found) + repetition.workers_left_out
    title = f"Balance of the workers: busy time for a batch, the slowest first{of}"
    return [
        Table(
            id="workers",
            title=title,
            columns=(
                Column(name="rank", label="rank", align="right"),
                Column(name="worker", label="worker", align="right"),
                Column(name="busy_per_batch_s", label="busy, a batch", unit="s", align="right"),
                Column(name="batches", label="batches", unit="count", align="right"),
                Column(name="bytes_read", label="read", unit="bytes", align="right"),
                Column(name="sample_bytes", label="samples", unit="bytes", align="right"),
                Column(name="read_s", label="in reads", unit="s", align="right"),
                Column(name="prep_s", label="in decode", unit="s", align="right"),
                Column(name="cpu_s", label="CPU", unit="s", align="right"),
            ),
            rows=tuple(_row(each) for each in found[:MAX_ROWS]),
            charts=(
                Chart(
                    kind="bars",
                    y=("busy_per_batch_s",),
                    label=("rank", "worker") if several else ("worker",),
                    y_label="busy time for a batch",
                    rows=tuple(range(min(MAX_BARS, len(found)))),
                ),
            ),
            notes=_notes(found, count),
            more=count - len(found[:MAX_ROWS]),
            where="pages",
        ),
    ]


def reasons(doc: TrainingRecord) -> list[str]:
    """Why the balance is not shown."""
    chosen = middle_repetition(doc)
    if chosen is None or chosen[1].workers:
        return []
    subject = doc.job.subject
    why = (
        "the version of iobench that made this run did not record it"
        if not subject.reads_itself
        else f"what the workers of loader '{subject.kind}' do is not known"
    )
    return [f"Balance of the workers: {why}."]


def _row(each: WorkerLoad) -> Row:
    return Row(
        cells=(
            Cell(value=each.rank, text=str(each.rank)),
            Cell(value=each.worker, text=str(each.worker)),
            figure(each.s_per_batch, format_duration),
            figure(each.batches, format_count),
            figure(each.bytes_read, format_bytes),
            figure(each.sample_bytes, format_bytes),
            figure(each.read_s, format_duration),
            figure(each.prep_s, format_duration),
            figure(each.cpu_s, format_duration),
        )
    )


def _notes(found: list[WorkerLoad], count: int) -> tuple[str, ...]:
    notes = ["Busy: waiting for reads, and in decompress, decode, check and collate."]
    if count > MAX_BARS:
        notes.append(f"Bars of the slowest {MAX_BARS} workers, and {count - MAX_BARS:,} more.")
    if all(each.cpu_s is None for each in found):
        notes.append("The workers are threads of one process, whose CPU time is not divided.")
    return tuple(notes)
