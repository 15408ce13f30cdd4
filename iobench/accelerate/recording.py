"""Records the step times of a model on batches that are in place, and looks at their pattern.

Also how much the model computes for a sample, and what its device can compute at most.
"""

from __future__ import annotations

import datetime
import platform
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from .. import __version__
from ..base.errors import IobenchError
from ..base.processes import in_own_process
from ..host.nvml import GpuWatch
from ..record.host import ModelWork, mfu_of
from ..settings.accelerator import (
    MAX_RECORDED_STEPS,
    QUANTILES,
    StepFacts,
    StepRecording,
    StepsHost,
)
from ..settings.workload import AcceleratorSpec
from .base import RankPlace
from .model import ModelAccelerator, open_model

_PEAKS: tuple[tuple[str, float, float], ...] = (
    # In the driver's name of the GPU; FLOP/s of TF32; FLOP/s of bfloat16 and float16. The first
    # that is in the name counts.
    ("A100", 156e12, 312e12),
    ("H100 PCIe", 378e12, 756.5e12),
    ("H100 NVL", 417.5e12, 835.5e12),
    ("H100 80GB HBM3", 494.5e12, 989.5e12),
    ("H200 NVL", 417.5e12, 835.5e12),
    ("H200", 494.5e12, 989.5e12),
    ("B200", 1125e12, 2250e12),
    ("A10G", 35e12, 70e12),
    ("L4", 60e12, 121e12),
)
"""What GPUs can compute at most: the denominators of model FLOPs utilization.

Source: NVIDIA's datasheets (A100, H100, H200, L4, A10G; HGX B200), tensor cores, dense: where a
datasheet prints the rate with sparsity, half of it. ``float32`` is TF32, by which torch computes
convolutions: a model whose matrix products are true float32 can't reach it."""

SOURCE = "NVIDIA's datasheet, dense"

STATED = "accelerator.peak_flops"


def peak_of(name: str, precision: str) -> float | None:
    """FLOP/s of the GPU of this name at a precision; None if it is in no row of the table.

    A GPU of which only a part is used (MIG) has another peak, and is in no row.
    """
    words = name.split()
    if "MIG" in words:
        return None
    for known, tf32, half in _PEAKS:
        size = len(known.split())
        if any(words[at : at + size] == known.split() for at in range(len(words))) or any(
            word.startswith(f"{known}-") for word in words
        ):
            return tf32 if precision == "float32" else half
    return None


_SAMPLES = 2
"""In the batch whose operations are counted: a batch norm can't train on one sample."""


def work_of(spec: AcceleratorSpec, device_name: str, ranks: int = 1) -> ModelWork:
    """What the model of ``spec`` computes for a sample, against the peak of its device.

    ``device_name``: the name that the device gives itself (``StepFacts.device``). Call it in a
    process that forks no more (``in_own_process``): it may start threads of torch.
    """
    flops, why = flops_per_sample(spec.model or "")
    missing = {"flops_per_sample": why} if why else {}
    cuda = (spec.device or "cpu").startswith("cuda")
    peak = spec.peak_flops or (peak_of(device_name, spec.precision) if cuda else None)
    if peak is None:
        kind = "" if cuda else "the CPU "
        missing["peak_flops"] = (
            f"peak of {kind}{device_name or '?'} unknown; state it: --set {STATED}=FLOP_PER_S"
        )
    return ModelWork(
        flops_per_sample=flops,
        peak_flops=peak,
        peak_source="" if peak is None else STATED if spec.peak_flops else SOURCE,
        devices=_devices(spec, ranks),
        not_measured=missing,
    )


def flops_per_sample(name: str) -> tuple[float | None, str]:
    """Floating-point operations of a training step for one sample, or why they are not known.

    Matrix products and convolutions, forward and backward. The model is opened without memory for
    its tensors, if it can do that: nothing is computed then.
    """
    try:
        try:
            return _counted(name, "meta"), ""
        except Exception:  # a model of the user's may look at its values
            return _counted(name, "cpu"), ""
    except Exception as error:  # or train on no batch so small
        return None, f"the operations could not be counted: {type(error).__name__}: {error}"


def _counted(name: str, device: str) -> float:
    counter = FlopCounterMode(display=False)
    with torch.device(device):
        model = open_model(name)
        data = torch.zeros(_SAMPLES, model.sample_bytes, dtype=torch.uint8)
        with counter:
            model(data).backward()
    return float(counter.get_total_flops()) / _SAMPLES


def _devices(spec: AcceleratorSpec, ranks: int) -> int:
    """On how many devices the ranks train. On a CPU each rank counts as one."""
    if spec.device is None or not spec.device.startswith("cuda"):
        return ranks
    return 1 if ":" in spec.device else min(ranks, max(1, torch.cuda.device_count()))


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
