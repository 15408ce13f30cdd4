"""How much a model computes for a sample, and what its device can compute at most."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..record.host import ModelWork
from ..settings.workload import AcceleratorSpec
from .model import open_model

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
