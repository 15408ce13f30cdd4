"""Each host of a run, and its GPUs."""

from __future__ import annotations

from ..analyse.figures.metrics import DEVICE_METRICS
from ..analyse.verdict.rules_ranks import host_name
from ..schema.host import HostTime
from ..schema.metrics import BY_NAME
from ..schema.record import TrainingRecord
from ..schema.resources import DeviceUse
from ..schema.training import Repetition
from ..units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_percent,
    format_rate,
)
from .figures import BLANK, NO_REASON, figure, format_of, raw, spread, word
from .sections import Cell, Column, Row, Section, Table
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


NOTES = (
    "Apart from accelerator utilization: NVML counts the time in which any kernel runs, however "
    "little of the GPU it uses.",
)


def device_sections(doc: TrainingRecord) -> list[Section]:
    """Tables of the counters; none if no model was trained and no GPU was watched."""
    done = [each for each in doc.job.repetitions if each.complete]
    watched = any(each.devices for each in done)
    if not done or (doc.job.trained is None and not watched):
        return []
    found: list[Section] = [_figures(doc, done, watched=watched)]
    if len(done[-1].devices) > 1 or any(each.tensor_utilization for each in done[-1].devices):
        found.append(_each(done[-1].devices))
    return found


def _figures(doc: TrainingRecord, done: list[Repetition], *, watched: bool) -> Table:
    rows, said = [], set()
    for name in DEVICE_METRICS:
        metric, summary = BY_NAME[name], doc.metrics.get(name)
        label = word(metric.label, name)
        if summary is not None:
            show = format_of(metric)
            told = spread(summary.median, summary.min, summary.max, show)
            middle = Cell(value=summary.median, text=told)
            rows.append(Row(cells=(label, middle, *map(raw, (summary.min, summary.max)))))
            continue
        why = done[-1].not_measured.get(name, NO_REASON)
        if why in said:
            continue
        said.add(why)
        # Without GPUs, one reason stands for all of their counters.
        label = label if watched or name == "mfu" else word("GPU counters (NVML)", name)
        rows.append(Row(cells=(label, Cell(value=None, why=f"not measured: {why}"), BLANK, BLANK)))
    rows += _work(doc)
    return Table(
        id="devices",
        title="GPU counters and model FLOPs: no part of accelerator utilization",
        columns=(
            Column(name="metric"),
            Column(name="median"),
            *(Column(name=name, where="data") for name in ("min", "max")),
        ),
        rows=tuple(rows),
        notes=NOTES if watched else (),
    )


def _work(doc: TrainingRecord) -> list[Row]:
    """What MFU was computed from."""
    work = doc.job.work
    if work is None or work.flops_per_sample is None:
        return []
    told = f"{work.flops_per_sample / 1e9:,.4g} GFLOP for a sample, forward and backward"
    if work.peak_flops is not None and work.devices:
        told += f"; at most {work.peak_flops / 1e12:,.4g} TFLOP/s by each device"
        told += f" ({counted(work.devices, 'device')}, {work.peak_source})"
    return [Row(cells=(word("  of", "work"), word(told, work.flops_per_sample), BLANK, BLANK))]


def _each(devices: list[DeviceUse]) -> Table:
    """Each GPU in the last repetition."""
    shares = {
        "utilization_nvml": "kernel running",
        "sm_utilization": "SM activity",
        "tensor_utilization": "tensor cores",
        "dram_utilization": "memory bandwidth",
    }
    others = {"power_w": "W", "sm_clock_mhz": "SM MHz", "memory_clock_mhz": "memory MHz"}
    rows = [
        Row(
            cells=(
                word(each.name or "?"),
                word(each.uuid),
                *(figure(getattr(each, name), format_percent) for name in shares),
                *(figure(getattr(each, name), lambda value: f"{value:,.0f}") for name in others),
            )
        )
        for each in devices
    ]
    columns = {**shares, **others}
    return Table(
        id="each-device",
        title="Each GPU in the last repetition",
        columns=(
            Column(name="gpu", label="GPU"),
            Column(name="uuid", label="UUID", where="pages"),
            *(Column(name=name, label=label, align="right") for name, label in columns.items()),
        ),
        rows=tuple(rows),
    )
