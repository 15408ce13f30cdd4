"""Records the step times of a model on batches that are in place, and looks at their pattern."""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from .. import __version__
from ..base.errors import IobenchError
from ..base.processes import in_own_process
from ..host.nvml import GpuWatch
from ..record.host import mfu_of
from ..settings.accelerator import (
    MAX_RECORDED_STEPS,
    QUANTILES,
    StepFacts,
    StepRecording,
    StepsHost,
)
from ..settings.workload import AcceleratorSpec
from .base import RankPlace
from .model import ModelAccelerator
from .work import work_of

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
    accelerator.prepare(RankPlace(0, 1, batch_size, _SEED))
    gpus = GpuWatch(spec.device, 1)
    times: list[float] = []
    gpus.begin()
    began = time.monotonic()
    while len(times) < MAX_RECORDED_STEPS and (
        len(times) < steps or time.monotonic() - began < seconds
    ):
        times.append(accelerator.step(None, time.monotonic_ns()).busy_ns / 1e9)
        gpus.tick()
        if tick is not None:
            tick(len(times))
    gpus.end()
    correlation = lag_correlation(times)
    facts = accelerator.facts()
    where, missing = _where(spec, facts, gpus)
    gpus.close()
    work = work_of(spec, facts.device)
    mean_s = float(np.mean(times))
    mfu, why = mfu_of(work, batch_size / mean_s)
    missing |= work.not_measured | ({"mfu": why} if why else {})
    return StepRecording(
        model=spec.model or "",
        batch_size=batch_size,
        precision=spec.precision,
        memory_format=spec.memory_format,
        compiled=spec.compile,
        device_kind="cuda" if (spec.device or "cpu").startswith("cuda") else "cpu",
        recorded=datetime.datetime.now(datetime.UTC).date().isoformat(),
        iobench_version=__version__,
        source=f"iobench train --record, {__version__}, "
        f"on {platform.node() or 'a host without a name'}",
        where=where,
        flops_per_sample=work.flops_per_sample,
        peak_flops=work.peak_flops,
        mfu=mfu,
        mean_s=mean_s,
        quantiles_s=np.quantile(times, np.linspace(0, 1, QUANTILES)).tolist(),
        lag_correlation=correlation,
        block_steps=block_steps(correlation),
        steps_s=times,
        not_measured=missing,
    )


def mean_step(spec: AcceleratorSpec, batch_size: int, *, seconds: float) -> float:
    """The mean time of a step, in seconds, measured in a process of its own for ``seconds``.

    Threads of torch and a context of CUDA would not survive the fork of the ranks.
    """
    return _tried(spec, lambda: _measured_step(spec, batch_size, seconds))


def quick_step(spec: AcceleratorSpec, batch_size: int, *, within_s: float) -> float | None:
    """The time of the faster one of two steps, without a warm-up, in a process of its own.

    None if both together take longer than ``within_s``.
    """
    try:
        return _tried(spec, lambda: _cold_step(spec, batch_size), within_s)
    except TimeoutError:
        return None


def _tried(
    spec: AcceleratorSpec, work: Callable[[], float], within_s: float | None = None
) -> float:
    ModelAccelerator.import_early()
    return in_own_process(
        work,
        failed=lambda code: IobenchError(
            f"the process that tried the model '{spec.model}' has ended with {code}",
            remedy="is there enough memory? Use a smaller batch_size",
        ),
        within_s=within_s,
    )


def _cold_step(spec: AcceleratorSpec, batch_size: int) -> float:
    accelerator = ModelAccelerator(spec)
    accelerator.prepare(RankPlace(0, 1, batch_size, _SEED), warm=False)
    return min(accelerator.step(None, 0).busy_ns for _ in range(2)) / 1e9


def _measured_step(spec: AcceleratorSpec, batch_size: int, seconds: float) -> float:
    accelerator = ModelAccelerator(spec)
    accelerator.prepare(RankPlace(0, 1, batch_size, _SEED))
    times: list[int] = []
    began = time.monotonic()
    while len(times) < 3 or time.monotonic() - began < seconds:
        times.append(accelerator.step(None, time.monotonic_ns()).busy_ns)
    return float(np.mean(times)) / 1e9


def _where(
    spec: AcceleratorSpec, facts: StepFacts, gpus: GpuWatch
) -> tuple[StepsHost, dict[str, str]]:
    """Where the steps were recorded, and why some of that is not known."""
    cuda = (spec.device or "cpu").startswith("cuda")
    devices, why = gpus.result()
    use = devices[0] if devices else None
    where = StepsHost(
        device=facts.device,
        host=platform.node(),
        cpu=str(torch.cpu.get_capabilities().get("cpu_name", "")),
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        driver=gpus.driver(),
        power_limit_w=gpus.power_limit_w(),
        clock_mhz=use.sm_clock_mhz if use else None,
        memory_clock_mhz=use.memory_clock_mhz if use else None,
        power_w=use.power_w if use else None,
    )
    refused = use.not_measured if use else {}
    reasons = {
        "clock_mhz": refused.get("sm_clock_mhz", why),
        "memory_clock_mhz": refused.get("memory_clock_mhz", why),
        "power_w": refused.get("power_w", why),
        "power_limit_w": why or "the driver does not tell it",
        "driver": why or "the driver does not tell it",
    }
    return where, {
        f"where.{name}": text for name, text in reasons.items() if getattr(where, name) is None
    }
