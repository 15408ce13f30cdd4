"""``iobench train --record FILE``: write down the step times of a model, and train on no data."""

from __future__ import annotations

import os
from errno import EEXIST
from pathlib import Path

from ..accelerate.bind import use_allocator
from ..base.documents import json_text, write_whole
from ..base.errors import StorageError, UsageError
from ..base.units import format_duration
from ..settings.base import apply_overrides, build
from ..settings.workload import AcceleratorSpec
from .requests.measure import TrainRequest
from .terminal import say, show_json

STEPS, TIME_S = 300, 30.0
"""Smallest number of steps, and shortest time of all steps together, where no flag says it."""


def record_steps(request: TrainRequest, target: Path, asked: dict[str, object]) -> int:
    """Train the accelerator of ``asked`` on batches in memory; return the exit code."""
    from ..accelerate.recording import record

    steps = STEPS if request.steps is None else request.steps
    if target.exists():
        raise UsageError(f"{target} exists already", remedy="choose another name for --record")
    if not target.parent.is_dir():
        raise UsageError(f"{target.parent} is no directory", remedy="create it first")
    if not os.access(target.parent, os.W_OK):
        raise UsageError(
            f"no file can be made in {target.parent}", remedy="choose another place for --record"
        )
    changed = apply_overrides({"accelerator": asked}, request.overrides)
    spec = build(AcceleratorSpec, changed["accelerator"], where="iobench train --record")
    use_allocator(spec.allocator, request.command[1:])
    recording = record(
        spec,
        request.batch_size,
        steps=steps,
        seconds=TIME_S if request.time_s is None else request.time_s,
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
    if request.format == "json":
        show_json(recording.model_dump())
        return 0
    times = recording.quantiles_s
    say(
        f"{recording.model} on {recording.where.device}, batches of {recording.batch_size}, "
        f"{recording.precision}: {len(recording.steps_s)} steps, mean "
        f"{format_duration(recording.mean_s)}, p50 {format_duration(times[50])}, "
        f"p99 {format_duration(times[99])}"
    )
    where = recording.where
    known = (
        ("MFU {:.1%}", recording.mfu),
        ("SMs at {:,.0f} MHz", where.clock_mhz),
        ("power {:,.0f} W", where.power_w),
        ("power limit {:,.0f} W", where.power_limit_w),
    )
    if told := [text.format(value) for text, value in known if value is not None]:
        say(", ".join(told))
    say(f"written to {target}; replay it on any storage:")
    say(
        "  iobench run WORKLOAD --data DIR --set accelerator.kind=recorded "
        f"--set accelerator.steps={target} --set batch_size={recording.batch_size}"
    )
    return 0
