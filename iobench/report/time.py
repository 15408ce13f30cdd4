"""Where the time of each host, rank and worker went, and what the GPUs count themselves."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

from ..base.units import counted, format_duration, format_percent
from ..judge.figures.metrics import DEVICE_METRICS
from ..judge.figures.ranktime import own_s, slow_rank
from ..judge.rules_ranks import host_name
from ..record.checkpoint import Study
from ..record.host import DeviceUse, HostTime, ModelWork
from ..record.metrics import BY_NAME
from ..record.model_load import ModelLoadRun
from ..record.run import TrainingRecord
from ..record.training import Repetition, TrainingRun
from ..record.verdict import RankTime, WorkerTime
from .figures import NO_REASON, Medians, TableOf, lacking, told, word
from .sections import Chart, Table

MAX_ROWS = 8

_OF_USER = {"fetch_s": "loader waits", "prep_s": "loader computes"}
"""The parts of a batch that a loader of the user's own makes: its waits need not be reads."""

PARTS = {
    "startup_s": "start-up",
    "fill_s": "fill",
    "fetch_s": "fetch",
    "prep_s": "prep",
    "wait_s": "wait",
    "copy_s": "copy",
    "busy_s": "busy",
    "sync_s": "sync",
    "saves_s": "saves",
    "lost_s": "stood still",
    "rest_s": "rest",
}
"""The parts of a rank's time, in the order in which they follow each other in a step."""


def time_section(doc: TrainingRecord) -> Table | None:
    """A table with a row for each rank of the repetition with the median rate.

    Of more than MAX_ROWS ranks it has the slowest ones, the fastest and the median one.
    """
    chosen = middle_repetition(doc)
    if chosen is None:
        return None
    _, repetition, of = chosen
    slow, user = slow_rank(repetition), doc.job.subject.users
    times = [each for each in repetition.ranks if each.wall_s > 0]
    shown = _choose(times)
    parts = {
        key: (_OF_USER if user else {}).get(key, label)
        for key, label in PARTS.items()
        if key == "busy_s" or any(getattr(each, key) for each in times)
    }
    rows = TableOf(shown, more=len(times) - len(shown))
    rows.add("rank", "rank")
    labels = {key.removesuffix("_s"): label for key, label in parts.items()}
    rows.add_each(labels, "share", _share)
    rows.data("wall_s")
    slowest = tuple(sorted(range(len(shown)), key=lambda at: -own_s(shown[at])))
    note = _of_all(len(shown), len(times))
    chart = Chart(kind="parts", label=("rank",), y=tuple(labels), rows=slowest, note=note)
    return rows.made(
        "time",
        f"Where the time went: shares of the wall time of each rank{of}",
        mark=lambda each: "slow" if slow and slow.rank == each.rank else "",
        charts=[chart],
        notes=_notes(repetition.worker_time, user=user),
    )


class Middle(NamedTuple):
    """The repetition with the median rate, and how a title names it, if it is one of several."""

    number: int
    repetition: Repetition
    of: str


def middle_repetition(doc: TrainingRecord) -> Middle | None:
    """The repetition with the median rate; None if none is known."""
    known = [
        (number, each)
        for number, each in enumerate(doc.job.repetitions)
        if each.complete and any(rank.wall_s > 0 for rank in each.ranks)
    ]
    known.sort(key=lambda pair: pair[1].samples_per_s or 0.0)
    if not known:
        return None
    number, repetition = known[(len(known) - 1) // 2]
    of = f", repetition {number + 1}" if len(doc.job.repetitions) > 1 else ""
    return Middle(number, repetition, of)


def _choose(times: list[RankTime]) -> list[RankTime]:
    if len(times) <= MAX_ROWS:
        return times
    ordered = sorted(times, key=own_s)
    chosen = [ordered[0], ordered[len(ordered) // 2], *ordered[-(MAX_ROWS - 2) :]]
    wanted = {each.rank for each in chosen}
    return [each for each in times if each.rank in wanted]


def _of_all(shown: int, ranks: int) -> str:
    if ranks < 2:
        return ""
    order = "The slowest first: by the time without start-up, waits for other ranks, and saves."
    if shown == ranks:
        return order
    return f"{shown} of {ranks} ranks: the slowest ones, the median and the fastest one. {order}"


def _share(rank: RankTime, part: str) -> float | None:
    part_s: float | None = getattr(rank, f"{part}_s")
    return None if part_s is None else part_s / rank.wall_s


def _notes(workers: WorkerTime | None, *, user: bool) -> tuple[str, ...]:
    if workers is None:
        return ()
    if workers.read is None or workers.prep is None or workers.idle is None:
        return (f"workers: not measured: {workers.not_measured}",)
    # For what a loader of the user's own waits is not known: reads, a network, a lock.
    read, prep = ("waiting", "computing") if user else ("reading", "preparing")
    return (
        f"workers: {format_percent(workers.read)} {read}, {format_percent(workers.prep)} {prep}, "
        f"{format_percent(workers.idle)} idle",
    )


MAX_WORKER_BARS = 16
MAX_WORKERS = 64


def worker_section(doc: TrainingRecord) -> Table | str | None:
    """The busy time of each worker for a batch, in the median repetition; or why not."""
    chosen = middle_repetition(doc)
    if chosen is None:
        return None
    _, repetition, of = chosen
    if not repetition.workers:
        why = f"what the workers of loader '{doc.job.subject.kind}' do is not known"
        why = why if doc.job.subject.reads_itself else "it was not recorded"
        return f"Balance of the workers: {why}."
    found = sorted(repetition.workers, key=lambda each: -each.s_per_batch)
    several = len({each.rank for each in found}) > 1
    count = len(found) + repetition.workers_left_out
    rows = TableOf(found, most=MAX_WORKERS, more=repetition.workers_left_out)
    rows.add_each({"rank": "rank", "worker": "worker"})
    rows.add("busy_per_batch_s", "busy, a batch", of=lambda each: each.s_per_batch)
    rows.add("batches", "batches", "count")
    rows.add_each({"bytes_read": "read", "sample_bytes": "samples"}, "bytes")
    rows.add_each({"read_s": "in reads", "prep_s": "in decode", "cpu_s": "CPU"})
    names = ("rank", "worker") if several else ("worker",)
    slowest = tuple(range(min(MAX_WORKER_BARS, len(found))))
    chart = Chart(kind="bars", y=("busy_per_batch_s",), label=names, rows=slowest)
    bars, more = f"Bars of the slowest {MAX_WORKER_BARS} workers", count - MAX_WORKER_BARS
    threads = "The workers are threads of one process, whose CPU time is not divided."
    return rows.made(
        "workers",
        f"Balance of the workers: busy time for a batch, the slowest first{of}",
        charts=[chart],
        notes=told(
            "Busy: waiting for reads, and in decompress, decode, check and collate.",
            more > 0 and f"{bars}, and {more:,} more.",
            all(each.cpu_s is None for each in found) and threads,
        ),
        where="pages",
    )


def cpu_s_per_gb(doc: TrainingRecord) -> float | None:
    """CPU seconds of all ranks and workers for a GB of stored samples: the median repetition."""
    taken = [
        each.cpu_s / each.sample_bytes * 1e9
        for each in doc.job.repetitions
        if each.complete and each.cpu_s is not None and each.sample_bytes
    ]
    return median(taken) if taken else None


MAX_HOSTS = 12


def host_section(doc: TrainingRecord) -> Table | None:
    """A row for each host of the repetition with the median rate, the slowest first."""
    chosen = middle_repetition(doc)
    if chosen is None or len(chosen.repetition.hosts) < 2:
        return None
    _, repetition, of = chosen
    ordered = sorted(repetition.hosts, key=_own_rate)
    slow = next((each.evidence for each in doc.findings if each.rule == "host.slow"), "")
    notes = [
        f"all hosts had work for {format_duration(repetition.window_s or 0.0)}, and the last was "
        f"done {format_duration(repetition.tail_s or 0.0)} later"
    ]
    if doc.job.barrier_s is not None:
        notes.append(f"a barrier of all hosts takes {format_duration(doc.job.barrier_s)}")
    names = {each.host: host_name(doc.job.hosts, each.host) for each in ordered}
    offsets = {at: host.offset_error_s for at, host in enumerate(doc.job.hosts)}
    memory = {at: host.memory_bytes for at, host in enumerate(doc.hosts)}
    rows = TableOf(ordered, most=MAX_HOSTS)
    rows.add("host", "host", of=lambda each: names[each.host])
    rows.add_each({"ranks": "ranks", "samples_per_s": "samples/s", "read_bytes_per_s": "read"})
    rows.add_each({"first_done_s": "first done", "last_done_s": "last done"})
    rows.add_each({"last_share": "last at steps", "residency_before": "cached"}, "share")
    rows.add("start_skew_s", "late start")
    rows.add("offset_error_s", "clock error", of=lambda each: offsets.get(each.host))
    rows.data("memory_bytes", of=lambda each: memory.get(each.host))
    return rows.made(
        "hosts",
        f"Hosts, the slowest first{of}",
        notes=notes,
        mark=lambda each: "slow" if names[each.host] in slow else "",
    )


def _own_rate(host: HostTime) -> float:
    return (host.own_samples_per_s or 0.0) / max(1, host.ranks)


def hosts_text(job: TrainingRun | Study | ModelLoadRun) -> str:
    """``2 hosts, started by srun``; empty for one host."""
    if len(job.hosts) < 2:
        return ""
    by = f", started by {job.started_by}" if job.started_by else ""
    return counted(len(job.hosts), "host") + by


OF_NVML = (
    "Apart from accelerator utilization: NVML counts the time in which any kernel runs, however "
    "little of the GPU it uses.",
)


def device_sections(doc: TrainingRecord) -> Iterator[Table]:
    """Tables of the counters; none if no model was trained and no GPU was watched."""
    done = [each for each in doc.job.repetitions if each.complete]
    watched = any(each.devices for each in done)
    if done and (doc.job.trained is not None or watched):
        yield _figures(doc, done, watched=watched)
        devices = done[-1].devices
        if len(devices) > 1 or any(each.tensor_utilization for each in devices):
            yield _each(devices)


def _figures(doc: TrainingRecord, done: list[Repetition], *, watched: bool) -> Table:
    table, said = Medians("min", "max"), set()
    for name in DEVICE_METRICS:
        metric, found = BY_NAME[name], doc.metrics.get(name)
        if found is not None:
            table.measured(metric, found)
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
    return table.table("devices", title, OF_NVML if watched else ())


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
    rows.add_each(shares, "share")
    others = {"power_w": "W", "sm_clock_mhz": "SM MHz", "memory_clock_mhz": "memory MHz"}
    for name, label in others.items():
        rows.add(name, label, show="{:,.0f}".format)
    return rows.made("each-device", "Each GPU in the last repetition")
