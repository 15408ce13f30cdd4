"""What the counters of the GPUs say, and model FLOPs utilization: apart from the run's own figures.

Accelerator utilization is what iobench measures of the steps. NVML calls a GPU busy whenever a
kernel runs on it, so the two are not the same and are never in one table.
"""

from __future__ import annotations

from ..analyse.figures.metrics import DEVICE_METRICS
from ..schema.metrics import BY_NAME
from ..schema.record import TrainingRecord
from ..schema.resources import DeviceUse
from ..schema.training import Repetition
from ..units import counted, format_percent
from .figures import BLANK, NO_REASON, figure, format_of, raw, spread, word
from .sections import Cell, Column, Row, Section, Table

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
