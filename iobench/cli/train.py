"""``iobench train``: a run whose accelerator trains a real model on the batches."""

from __future__ import annotations

import os
from errno import EEXIST
from pathlib import Path

from ..accelerate.bind import use_allocator
from ..base.documents import json_text, write_whole
from ..base.errors import StorageError, UsageError
from ..base.units import counted, format_duration
from ..data.dataset import find_dataset
from ..settings.base import apply_overrides, build
from ..settings.workload import AcceleratorSpec, Workload, check_group, check_used
from .live import Live
from .run import measure
from .terminal import show_lines
from .verbs import TrainRequest

_MIN_STEPS, _TRIAL_S, _TRAINS_S = 10, 3.0, 10.0

_WARM_UP = 1 / 15
"""Share of a budget that a warm-up may take: each part that trains begins with one."""


def run(request: TrainRequest) -> int:
    if request.record is not None:
        return record_steps(request, Path(request.record), asked_accelerator(request))
    if request.data is None:
        raise UsageError(
            "train needs data to train on",
            remedy="add --data DIR, or --record FILE to write down the step times alone",
        )
    return measure(workload_of(request, request.data), request)


def asked_accelerator(request: TrainRequest) -> dict[str, object]:
    """The accelerator's section that the request asks for."""
    return {
        "kind": "model",
        "name": request.model,
        "model": request.model,
        "device": request.device,
        "precision": request.precision,
    }


def workload_of(request: TrainRequest, data: str) -> Workload:
    """The workload that trains the model on the dataset, long enough for a figure.

    Raises what ``sample_bytes_of`` and ``find_dataset`` raise.
    """
    from ..accelerate.model import sample_bytes_of
    from ..accelerate.recording import mean_step

    taken = sample_bytes_of(request.model)
    manifest, _ = find_dataset(data, {}, origin=request.origin)
    asked: dict[str, object] = {
        "name": "train-" + "".join(c if c.isalnum() else "-" for c in request.model),
        "description": f"Trains {request.model}.",
        "dataset": manifest.spec.name,
        "accelerator": asked_accelerator(request),
        "batch_size": request.batch_size,
        "epochs": 1000,
        "reader": {"crop": taken},
        "loader": {"workers": min(8, max(1, len(os.sched_getaffinity(0)) // 2))},
    }
    asked = apply_overrides(asked, request.overrides)
    workload = build(Workload, asked, where="iobench train")
    check_used(workload, asked, where="iobench train")
    if workload.accelerator.compile and "tail" not in workload.reader.model_fields_set:
        # A batch of another size would be compiled in the middle of an epoch.
        complete = workload.reader.model_copy(update={"tail": "drop"})
        workload = workload.model_copy(update={"reader": complete})
    if request.budget_s is not None and "warm_up" not in workload.accelerator.model_fields_set:
        most_s = min(workload.accelerator.warm_up, _WARM_UP * request.budget_s)
        shorter = workload.accelerator.model_copy(update={"warm_up": most_s})
        workload = workload.model_copy(update={"accelerator": shorter})
    if workload.max_steps is not None or (request.budget_s is not None and request.time_s is None):
        return workload
    trains_s = _TRAINS_S if request.time_s is None else request.time_s
    use_allocator(workload.accelerator.allocator, request.command[1:])
    step = mean_step(workload.accelerator, workload.batch_size, seconds=min(_TRIAL_S, trains_s))
    steps = max(_MIN_STEPS, round(trains_s / step))
    return workload.model_copy(update={"max_steps": steps})


STEPS, TIME_S = 300, 30.0
"""Smallest number of steps, and shortest time of all steps together, where no flag says it."""


def record_steps(request: TrainRequest, target: Path, asked: dict[str, object]) -> int:
    """Train the accelerator of ``asked`` on batches in memory; return the exit code."""
    from ..accelerate.recording import record

    fewest = STEPS if request.time_s is None else _MIN_STEPS
    steps = fewest if request.steps is None else request.steps
    if target.exists():
        raise UsageError(f"{target} exists already", remedy="choose another name for --record")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no directory", remedy="create it first")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"no file can be made in {target.parent}", remedy="choose another place for --record"
        )
    changed = apply_overrides(
        {"accelerator": asked, "batch_size": request.batch_size}, request.overrides
    )
    if others := sorted(set(changed) - {"accelerator", "batch_size"}):
        raise UsageError(
            f"--record trains on batches in memory, for which {others[0]} says nothing",
            remedy="leave it out: --set takes batch_size and keys of the accelerator here",
        )
    batch_size = changed["batch_size"]
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UsageError(
            f"'batch_size' must be a whole number from 1, but is '{batch_size}'",
            remedy="use --batch-size N",
        )
    spec = build(AcceleratorSpec, changed["accelerator"], where="iobench train --record")
    check_group(spec, changed["accelerator"], where="iobench train --record: accelerator")
    use_allocator(spec.allocator, request.command[1:])
    with Live(quiet=request.quiet) as live:
        live.phase(f"{counted(steps, 'step')} or more are recorded")
        recording = record(
            spec,
            batch_size,
            steps=steps,
            seconds=TIME_S if request.time_s is None else request.time_s,
            tick=live.steps,
        )
    try:
        if target.exists():  # made meanwhile
            raise FileExistsError(EEXIST, "it exists already")
        write_whole(target, json_text(recording))
    except OSError as error:
        raise StorageError(
            f"cannot write {target}: {error.strerror or error}",
            remedy="the step times are lost: record again with another --record",
        ) from error
    times, where = recording.quantiles_s, recording.where
    known = (
        ("MFU {:.1%}", recording.mfu),
        ("SMs at {:,.0f} MHz", where.clock_mhz),
        ("power {:,.0f} W", where.power_w),
        ("power limit {:,.0f} W", where.power_limit_w),
    )
    told = [text.format(value) for text, value in known if value is not None]
    lines = [
        f"{recording.model} on {where.device}, batches of {recording.batch_size}, "
        f"{recording.precision}: {len(recording.steps_s)} steps, mean "
        f"{format_duration(recording.mean_s)}, p50 {format_duration(times[50])}, "
        f"p99 {format_duration(times[99])}",
        *([", ".join(told)] if told else []),
        f"written to {target}; replay it on any storage:",
        "  iobench run WORKLOAD --data DIR --set accelerator.kind=recorded "
        f"--set accelerator.steps={target} --set batch_size={recording.batch_size}",
    ]
    show_lines(recording.model_dump(), lines, json=request.json)
    return 0
