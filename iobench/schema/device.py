"""What a run records of the GPUs that its accelerators use, and of the model's arithmetic.

None of it is accelerator utilization: these are the figures of NVIDIA's driver, and model FLOPs
utilization. A value that was not measured is None, and ``not_measured`` has the reason.
"""

from __future__ import annotations

from .base import OpenRecord
from .numbers import Count, Figure, Positive, Share


class DeviceUse(OpenRecord):
    """What the counters of one GPU say of the time of a repetition, as means over it.

    ``utilization_nvml``: share of the time in which at least one kernel ran, whatever part of the
    GPU it used. ``sm_utilization``, ``tensor_utilization``: mean share of the SMs that were busy,
    and that did tensor operations; ``dram_utilization``: of the memory's bandwidth. The last three
    are NVML's GPM metrics, of Hopper GPUs and later.
    """

    uuid: str = ""
    name: str = ""
    seconds: Figure = 0.0  # that were watched
    utilization_nvml: Share | None = None
    sm_utilization: Share | None = None
    tensor_utilization: Share | None = None
    dram_utilization: Share | None = None
    power_w: Figure | None = None
    sm_clock_mhz: Figure | None = None
    memory_clock_mhz: Figure | None = None
    not_measured: dict[str, str] = {}


class ModelWork(OpenRecord):
    """How much a trained model computes for a sample, and what its devices can compute at most."""

    flops_per_sample: Figure | None = None  # forward and backward, matrix products and convolutions
    peak_flops: Positive | None = None  # FLOP/s of one device at the model's precision, dense
    peak_source: str = ""
    devices: Count | None = None  # on which the ranks train
    not_measured: dict[str, str] = {}


def mfu_of(work: ModelWork, samples_per_s: float | None) -> tuple[float | None, str]:
    """Model FLOPs utilization at a rate, or why it is not known.

    The operations of the model for all samples over what its devices can do at most in that time
    (Chowdhery et al., PaLM, 2022, appendix B; without operations that are done again).
    """
    missing = work.not_measured.get("flops_per_sample") or work.not_measured.get("peak_flops")
    if work.flops_per_sample is None or work.peak_flops is None or not work.devices:
        return None, missing or "the operations of the model are not recorded"
    if not samples_per_s:
        return None, "no rate was measured"
    return work.flops_per_sample * samples_per_s / (work.peak_flops * work.devices), ""
