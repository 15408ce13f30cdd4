"""A run with the names of MLPerf Storage's ``summary.json``, for programs that read those.

Source: DLIO (https://github.com/argonne-lcf/dlio_benchmark), ``utils/statscounter.py``, which
writes this file for MLPerf Storage. There "GB" and "MB" are 2^30 and 2^20 bytes, standard
deviations are those of a population, and rates in MB/s are computed from the stated size of a
sample; here they come from the bytes that were counted. What iobench does not know is None.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import fmean, pstdev

from ..judge.checkpoint import duration_s
from ..record.checkpoint import Restore, Save, Study
from ..record.run import RunRecord, TrainingRecord

NOTE = (
    "The names are those of MLPerf Storage's summary.json. This is not an MLPerf submission, and "
    "no MLPerf result: iobench is another program, with its own rules. What it does not "
    "know is null."
)
TRAINING_NOTE = (
    "The lists of train_* have one value for each repetition of iobench, over all epochs of the "
    "repetition. Accelerator utilization leaves out the first step of each epoch, and is busy "
    "time, specified or measured of a real model, over the rest. Samples/s count every sample over "
    "the time since the first read; DLIO leaves out the first step there, too. MB are 2^20 bytes "
    "that were read. The end is the start and the time of all phases of the run."
)
CHECKPOINT_NOTE = "The time of a save or restore is that of its slowest rank. GB are 2^30 bytes."

_GIB, _MIB = 1 << 30, 1 << 20


def mlperf(doc: RunRecord) -> dict[str, object]:
    """The document. ``iobench`` in it names the run, and says what differs."""
    hosts = doc.hosts
    memory = [host.memory_bytes for host in hosts]
    found: dict[str, object] = {
        "start": doc.created,
        "end": _end(doc),
        "num_accelerators": _accelerators(doc),
        "num_hosts": len(hosts) or None,
        "hostname": doc.host.node,
        "host_cpu_count": [host.cores for host in hosts],
        "host_processor_name": doc.host.cpu_model,
        "host_cpuinfo": None,
        "host_meminfo": None,
        "host_memory_GB": [None if each is None else each / _GIB for each in memory],
    }
    metric: dict[str, object] = {}
    if isinstance(doc, TrainingRecord):
        found |= _dataset(doc, memory)
        metric |= _training(doc)
    if doc.checkpoints is not None:
        metric |= _checkpoints(doc.checkpoints)
    notes = [NOTE]
    notes += [TRAINING_NOTE] if isinstance(doc, TrainingRecord) else []
    notes += [CHECKPOINT_NOTE] if doc.checkpoints is not None else []
    return {
        **found,
        "metric": metric,
        "iobench": {
            "version": doc.iobench_version,
            "run_id": doc.run_id,
            "status": doc.status,
            "rules": doc.rules,
            "validity": doc.validity,
            "notes": notes,
        },
    }


def _end(doc: RunRecord) -> str | None:
    """When the run ended: its start and the time of its phases. None if these are not known.

    The start of the process, ``start``, lies before the start of the run.
    """
    phases = [seconds for name, seconds in doc.timings.items() if name != "start"]
    try:
        spent = timedelta(seconds=sum(phases))
        end = datetime.fromisoformat(doc.created) + spent
    except (ValueError, OverflowError):
        return None
    return end.isoformat(timespec="seconds") if doc.timings else None


def _accelerators(doc: RunRecord) -> int | None:
    if isinstance(doc, TrainingRecord):
        return doc.job.accelerators
    return None if doc.checkpoints is None else doc.checkpoints.ranks


def _dataset(doc: TrainingRecord, memory: Sequence[int | None]) -> dict[str, object]:
    data = doc.job.dataset
    samples, shards = data.samples or 0, data.shards or 0
    per_file = samples // shards if samples and shards and samples % shards == 0 else None
    trained, evaluated = data.shards, None
    if data.held_out:
        evaluated = data.held_out // per_file if per_file else None
        trained = None if evaluated is None else shards - evaluated
    hosts = len(memory)
    share = data.stored_bytes / hosts if data.stored_bytes is not None and hosts else None
    return {
        "num_files_train": trained,
        "num_files_eval": evaluated,
        "num_samples_per_file": per_file,
        "data_size_per_host_GB": None if share is None else share / _GIB,
        "potential_caching": [
            None if share is None or each is None else int(each > share) for each in memory
        ],
        "epochs": doc.job.workload.epochs,
    }


def _training(doc: TrainingRecord) -> dict[str, object]:
    done = [each for each in doc.job.repetitions if each.complete]
    au = [each.accelerator_utilization for each in done]
    known = [100 * each for each in au if each is not None]
    rates = [each.samples_per_s for each in done if each.samples_per_s is not None]
    bandwidths = [each.read_bytes_per_s for each in done if each.read_bytes_per_s is not None]
    required = 100 * doc.job.workload.required_accelerator_utilization
    met = None if not known else "success" if fmean(known) >= required else "fail"
    return {
        "train_au_percentage": known or None,
        "train_au_meet_expectation": met,
        **_statistics("train_au", "percentage", known),
        "train_throughput_samples_per_second": rates or None,
        **_statistics("train_throughput", "samples_per_second", rates),
        **_statistics("train_io", "MB_per_second", bandwidths, _MIB),
    }


def _checkpoints(study: Study) -> dict[str, object]:
    return {
        **_operations("save", study.saves),
        **_operations("load", study.restores),
        "checkpoint_size_GB": study.bytes / _GIB,
    }


def _operations(name: str, done: Sequence[Save | Restore]) -> dict[str, object]:
    took = [duration_s(each) if isinstance(each, Save) else each.wall_s for each in done]
    times = [each for each in took if each > 0]  # 0: its end was not recorded
    rates = [each.bytes / time for each, time in zip(done, took, strict=True) if time > 0]
    found = _statistics(f"{name}_checkpoint_io", "GB_per_second", rates, _GIB)
    return found | _statistics(f"{name}_checkpoint_duration", "seconds", times)


def _statistics(name: str, of: str, values: Sequence[float], unit: int = 1) -> dict[str, object]:
    """Mean and standard deviation of the values in units, by their names."""
    mean, spread = (fmean(values), pstdev(values)) if values else (None, None)
    shown = {f"{name}_mean_{of}": mean, f"{name}_stdev_{of}": spread}
    return {key: None if value is None else value / unit for key, value in shown.items()}
