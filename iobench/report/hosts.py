"""The hosts of a job: who took part, what each did, and which is slow."""

from __future__ import annotations

from ..analyse.verdict.rules_ranks import host_name
from ..schema.host import HostTime
from ..schema.record import TrainingRecord
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from .figures import figure, raw, word
from .sections import Column, Row, Section, Table
from .time import middle_repetition

MAX_ROWS = 12


def host_sections(doc: TrainingRecord) -> list[Section]:
    """A row for each host of the repetition with the median rate, the slowest first."""
    chosen = middle_repetition(doc)
    if chosen is None or len(chosen[1].hosts) < 2:
        return []
    number, repetition = chosen
    ordered = sorted(repetition.hosts, key=_own_rate)
    shown = ordered[:MAX_ROWS]
    slow = next((each.evidence for each in doc.findings if each.rule == "host.slow"), "")
    of = f", repetition {number + 1}" if len(doc.job.repetitions) > 1 else ""
    window = "all hosts had work for "
    window += f"{format_duration(repetition.window_s or 0.0)}, "
    window += f"and the last was done {format_duration(repetition.tail_s or 0.0)} later"
    notes = [window]
    if doc.job.barrier_s is not None:
        notes.append(f"a barrier of all hosts takes {format_duration(doc.job.barrier_s)}")
    return [
        Table(
            id="hosts",
            title=f"Hosts, the slowest first{of}",
            columns=(
                Column(name="host", label="host"),
                Column(name="ranks", label="ranks", align="right"),
                Column(name="samples_per_s", label="samples/s", unit="samples/s", align="right"),
                Column(name="read_bytes_per_s", label="read", unit="bytes/s", align="right"),
                Column(name="first_done_s", label="first done", unit="s", align="right"),
                Column(name="last_done_s", label="last done", unit="s", align="right"),
                Column(name="last_share", label="last at steps", unit="share", align="right"),
                Column(name="residency_before", label="cached", unit="share", align="right"),
                Column(name="start_skew_s", label="late start", unit="s", align="right"),
                Column(name="offset_error_s", label="clock error", unit="s", align="right"),
                Column(name="memory_bytes", unit="bytes", where="data"),
            ),
            rows=tuple(_row(doc, host, slow) for host in shown),
            notes=tuple(notes),
            more=len(ordered) - len(shown),
        )
    ]


def _own_rate(host: HostTime) -> float:
    return (host.own_samples_per_s or 0.0) / max(1, host.ranks)


def _row(doc: TrainingRecord, host: HostTime, slow: str) -> Row:
    name = host_name(doc, host.host)
    known = doc.job.hosts[host.host] if host.host < len(doc.job.hosts) else None
    memory = doc.hosts[host.host].memory_bytes if host.host < len(doc.hosts) else None
    return Row(
        cells=(
            word(name),
            raw(host.ranks),
            figure(host.samples_per_s, format_count),
            figure(host.read_bytes_per_s, format_rate),
            figure(host.first_done_s, format_duration),
            figure(host.last_done_s, format_duration),
            figure(host.last_share, format_percent),
            figure(host.residency_before, format_percent),
            figure(host.start_skew_s, format_duration),
            figure(known.offset_error_s if known else None, format_duration),
            figure(memory, format_bytes),
        ),
        mark="slow" if name in slow else "",
    )


def hosts_text(doc: TrainingRecord) -> str:
    """``2 hosts, started by srun``; empty for one host."""
    if len(doc.job.hosts) < 2:
        return ""
    by = f", started by {doc.job.started_by}" if doc.job.started_by else ""
    return counted(len(doc.job.hosts), "host") + by
