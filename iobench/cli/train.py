"""``iobench train``: a run whose accelerator trains a real model on the batches."""

from __future__ import annotations

import os
from pathlib import Path

from ..accelerate.bind import use_allocator
from ..base.errors import UsageError
from ..data.dataset import find_dataset
from ..settings.base import apply_overrides, build
from ..settings.workload import Workload
from .recording import record_steps
from .requests.measure import TrainRequest
from .run import measure

_MIN_STEPS, _TRIAL_S, _TRAINS_S = 10, 3.0, 10.0


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
    if workload.accelerator.compile and "tail" not in workload.reader.model_fields_set:
        # A batch of another size would be compiled in the middle of an epoch.
        complete = workload.reader.model_copy(update={"tail": "drop"})
        workload = workload.model_copy(update={"reader": complete})
    if workload.max_steps is not None or (request.budget_s is not None and request.time_s is None):
        return workload
    trains_s = _TRAINS_S if request.time_s is None else request.time_s
    use_allocator(workload.accelerator.allocator, request.command[1:])
    step = mean_step(workload.accelerator, workload.batch_size, seconds=min(_TRIAL_S, trains_s))
    steps = max(_MIN_STEPS, round(trains_s / step))
    return workload.model_copy(update={"max_steps": steps})
