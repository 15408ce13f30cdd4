"""Each host of a run, and its GPUs."""

from __future__ import annotations

from ..base.units import counted, format_duration
from ..judge.figures.metrics import DEVICE_METRICS
from ..judge.rules_ranks import host_name
from ..record.host import HostTime
from ..record.metrics import BY_NAME
from ..record.resources import DeviceUse, ModelWork
from ..record.run import TrainingRecord
from ..record.training import Repetition
from .figures import NO_REASON, Medians, TableOf, format_of, lacking, summary, word
from .sections import Section, Table
from .time import middle_repetition

MAX_ROWS = 12


def host_sections(doc: TrainingRecord) -> list[Section]:
    """A row for each host of the repetition with the median rate, the slowest first."""
    chosen = middle_repetition(doc)
    if chosen is None or len(chosen.repetition.hosts) < 2:
        return []
    _, repetition, of = chosen
    ordered = sorted(repetition.hosts, key=_own_rate)
    slow = next((each.evidence for each in doc.findings if each.rule == "host.slow"), "")
    notes = [
        f"all hosts had work for {format_duration(repetition.window_s or 0.0)}, and the last was "
        f"done {format_duration(repetition.tail_s or 0.0)} later"
    ]
    if doc.job.barrier_s is not None:
        notes.append(f"a barrier of all hosts takes {format_duration(doc.job.barrier_s)}")
    names = {each.host: host_name(doc, each.host) for each in ordered}
    offsets = {at: host.offset_error_s for at, host in enumerate(doc.job.hosts)}
    memory = {at: host.memory_bytes for at, host in enumerate(doc.hosts)}
    rows = TableOf(ordered[:MAX_ROWS], more=max(0, len(ordered) - MAX_ROWS))
    rows.add("host", "host", of=lambda each: names[each.host])
    rows.add("ranks", "ranks")
    rows.add("samples_per_s", "samples/s", "samples/s")
    rows.add("read_bytes_per_s", "read", "bytes/s")
    rows.add_each({"first_done_s": "first done", "last_done_s": "last done"}, "s")
    rows.add_each({"last_share": "last at steps", "residency_before": "cached"}, "share")
    rows.add("start_skew_s", "late start", "s")
    rows.add("offset_error_s", "clock error", "s", lambda each: offsets.get(each.host))
    rows.data("memory_bytes", of=lambda each: memory.get(each.host))
    return [
        rows.made(
            "hosts",
            f"Hosts, the slowest first{of}",
            notes=notes,
            mark=lambda each: "slow" if names[each.host] in slow else "",
        )
    ]


def _own_rate(host: HostTime) -> float:
    return (host.own_samples_per_s or 0.0) / max(1, host.ranks)


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
    table, said = Medians("min", "max"), set()
    for name in DEVICE_METRICS:
        metric, found = BY_NAME[name], doc.metrics.get(name)
        if found is not None:
            middle = summary(found, format_of(metric))
            table.add(metric.label, name, middle, found.min, found.max)
            continue
        why = done[-1].not_measured.get(name, NO_REASON)
        if why in said:
            continue
        said.add(why)
        # Without GPUs, one reason stands for all of their counters.
        label = metric.label if watched or name == "mfu" else "GPU counters (NVML)"
        table.add(label, name, lacking(why))
    work = doc.job.work
    if work is not None and work.flops_per_sample is not None:
        table.add("  of", "work", word(_work(work), work.flops_per_sample))
    title = "GPU counters and model FLOPs: no part of accelerator utilization"
    return table.table("devices", title, NOTES if watched else ())


def _work(work: ModelWork) -> str:
    """What MFU was computed from."""
    told = f"{(work.flops_per_sample or 0.0) / 1e9:,.4g} GFLOP for a sample, forward and backward"
    if work.peak_flops is not None and work.devices:
        told += f"; at most {work.peak_flops / 1e12:,.4g} TFLOP/s by each device"
        told += f" ({counted(work.devices, 'device')}, {work.peak_source})"
    return told


def _each(devices: list[DeviceUse]) -> Table:
    """Each GPU in the last repetition."""
    shares = {
        "utilization_nvml": "kernel running",
        "sm_utilization": "SM activity",
        "tensor_utilization": "tensor cores",
        "dram_utilization": "memory bandwidth",
    }
    rows = TableOf(devices)
    rows.add("gpu", "GPU", of=lambda each: each.name or "?")
    rows.add("uuid", "UUID", where="pages")
    for name, label in shares.items():
        rows.add(name, label, "share")
    others = {"power_w": "W", "sm_clock_mhz": "SM MHz", "memory_clock_mhz": "memory MHz"}
    for name, label in others.items():
        rows.add(name, label, show="{:,.0f}".format)
    return rows.made("each-device", "Each GPU in the last repetition")
