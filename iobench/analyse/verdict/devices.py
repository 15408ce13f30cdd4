"""Figures of a repetition that are of its GPUs and its model, and no accelerator utilization."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from ...schema.device import DeviceUse, ModelWork, mfu_of
from ...schema.metrics import METRICS
from ...schema.training import Repetition

DEVICE_METRICS = tuple(each.name for each in METRICS if each.device)

COUNTERS = {
    "device_utilization_nvml": "utilization_nvml",
    "sm_utilization": "sm_utilization",
    "device_power_w": "power_w",
    "sm_clock_mhz": "sm_clock_mhz",
}
"""Metrics that are means of these figures over the GPUs of the job."""

NOT_RECORDED = "the counters of the GPU were not recorded"
NO_MODEL = "no model was trained"


def with_device_figures(repetition: Repetition, work: ModelWork | None) -> Repetition:
    """``repetition`` with the means over its GPUs, and with model FLOPs utilization."""
    figures: dict[str, float | None] = {}
    missing = {
        key: why for key, why in repetition.not_measured.items() if key not in DEVICE_METRICS
    }
    for metric, counter in COUNTERS.items():
        figures[metric], why = _mean(repetition.devices, counter)
        if why:
            missing[metric] = missing.get("devices", why)
    figures["mfu"], why = (
        (None, NO_MODEL) if work is None else mfu_of(work, repetition.samples_per_s)
    )
    if why:
        missing["mfu"] = why
    return repetition.model_copy(update={**figures, "not_measured": missing})


def _mean(devices: Sequence[DeviceUse], counter: str) -> tuple[float | None, str]:
    """The mean over all GPUs; None with the reason where one of them has no such figure."""
    values = [getattr(each, counter) for each in devices]
    known = [value for value in values if value is not None]
    if not values or len(known) < len(values):
        reasons = [why for each in devices if (why := each.not_measured.get(counter))]
        return None, reasons[0] if reasons else NOT_RECORDED
    return mean(known), ""
