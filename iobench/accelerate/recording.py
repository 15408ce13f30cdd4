"""Records the step times of a model on batches that are in place, and looks at their pattern."""

from __future__ import annotations

import datetime
import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

import numpy as np
import torch

from .. import __version__
from ..errors import IobenchError
from ..schema.accelerator import (
    MAX_RECORDED_STEPS,
    QUANTILES,
    StepFacts,
    StepRecording,
    StepsHost,
)
from ..schema.workload import AcceleratorSpec
from .base import Place
from .model import ModelAccelerator, open_model

MIN_STEPS, MIN_S = 300, 30.0
"""A recording has at least so many steps, and takes at least so long."""

_INDEPENDENT = 0.1
"""Steps so far apart that their correlation is below this are taken as independent."""

_MAX_LAG = 64

_SEED = 42


def lag_correlation(times: Sequence[float]) -> list[float]:
    """The correlation of steps that are 1, 2, 3 ... steps apart, up to 64 or a quarter of them.

    Empty if all steps take the same time, or there are fewer than 8.
    """
    values = np.asarray(times, dtype=np.float64)
    values = values - values.mean()
    power = float(values @ values)
    if len(values) < 8 or power <= 1e-24 * len(values):
        return []
    lags = range(1, min(_MAX_LAG, len(values) // 4) + 1)
    return [float(np.clip(values[:-lag] @ values[lag:] / power, -1.0, 1.0)) for lag in lags]


def block_steps(correlation: Sequence[float]) -> int:
    """How many consecutive steps belong together: the first lag with a correlation below 0.1."""
    independent = (lag for lag, value in enumerate(correlation, 1) if value < _INDEPENDENT)
    return next(independent, max(1, len(correlation)))


def record(
    spec: AcceleratorSpec,
    batch_size: int,
    *,
    steps: int = MIN_STEPS,
    seconds: float = MIN_S,
    tick: Callable[[int], None] | None = None,
) -> StepRecording:
    """Train the model of ``spec`` alone, and record how long each step takes after its warm-up.

    It ends after ``steps`` steps and ``seconds``, whichever comes last. ``tick`` is called with the
    number of steps so far. Raises UsageError, IobenchError as ``ModelAccelerator`` does.
    """
    accelerator = ModelAccelerator(spec)
    accelerator.prepare(Place(0, 1, batch_size, _SEED))
    times: list[float] = []
    began = time.monotonic()
    while len(times) < MAX_RECORDED_STEPS and (
        len(times) < steps or time.monotonic() - began < seconds
    ):
        times.append(accelerator.step(None, time.monotonic_ns()).busy_ns / 1e9)
        if tick is not None:
            tick(len(times))
    correlation = lag_correlation(times)
    flops, why = _flops(spec)
    facts = accelerator.facts()
    return StepRecording(
        model=spec.model or "",
        batch_size=batch_size,
        precision=spec.precision,
        memory_format=spec.memory_format,
        compiled=spec.compile,
        device_kind="cuda" if (spec.device or "cpu").startswith("cuda") else "cpu",
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
        iobench_version=__version__,
        where=_where(spec, facts),
        flops_per_sample=flops,
        mean_s=float(np.mean(times)),
        quantiles_s=np.quantile(times, np.linspace(0, 1, QUANTILES)).tolist(),
        lag_correlation=correlation,
        block_steps=block_steps(correlation),
        steps_s=times,
        not_measured={"flops_per_sample": why} if why else {},
    )


def mean_step(spec: AcceleratorSpec, batch_size: int, *, seconds: float) -> float:
    """The mean time of a step, in seconds, measured in a process of its own for ``seconds``.

    Threads of torch and a context of CUDA would not survive the fork of the ranks.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure_step, args=(theirs, spec, batch_size, seconds))
    process.start()
    theirs.close()
    try:
        found = ours.recv()
    except EOFError:
        process.join()
        raise IobenchError(
            f"the process that tried the model '{spec.model}' has ended with {process.exitcode}",
            remedy="is there enough memory? Use a smaller batch_size",
        ) from None
    finally:
        ours.close()
    process.join()
    if isinstance(found, IobenchError):
        raise found
    return float(found)


def _measure_step(pipe: Connection, spec: AcceleratorSpec, batch_size: int, seconds: float) -> None:
    try:
        accelerator = ModelAccelerator(spec)
        accelerator.prepare(Place(0, 1, batch_size, _SEED))
        times: list[int] = []
        began = time.monotonic()
        while len(times) < 3 or time.monotonic() - began < seconds:
            times.append(accelerator.step(None, time.monotonic_ns()).busy_ns)
        pipe.send(float(np.mean(times)) / 1e9)
    except IobenchError as error:
        pipe.send(error)


def _flops(spec: AcceleratorSpec) -> tuple[float | None, str]:
    """Floating-point operations of a training step for one sample, or why they are not known."""
    from torch.utils.flop_counter import FlopCounterMode

    try:
        model = open_model(spec.model or "")
        counter = FlopCounterMode(display=False)
        with counter:
            model(torch.zeros(1, model.sample_bytes, dtype=torch.uint8)).backward()
        return float(counter.get_total_flops()), ""
    except Exception as error:  # a model of the user's may not train on one sample
        return None, f"the operations could not be counted: {type(error).__name__}: {error}"


def _where(spec: AcceleratorSpec, facts: StepFacts) -> StepsHost:
    cuda = (spec.device or "cpu").startswith("cuda")
    return StepsHost(
        device=facts.device,
        host=platform.node(),
        cpu=str(torch.cpu.get_capabilities().get("cpu_name", "")),
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
    )
