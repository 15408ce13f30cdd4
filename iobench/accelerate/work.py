"""How much a model computes for a sample, and what its device can compute at most."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from ..schema.device import ModelWork
from ..schema.workload import AcceleratorSpec
from .model import open_model
from .peaks import SOURCE, STATED, peak_of

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
