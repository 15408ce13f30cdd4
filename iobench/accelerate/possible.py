"""Whether this host can train with some settings, before anything is started for it."""

from __future__ import annotations

from ..errors import IobenchError
from ..schema.workload import AcceleratorSpec
from .bind import allocator_environment, nodes


def why_not(spec: AcceleratorSpec) -> str:
    """Why a model can't be trained as ``spec`` says on this host; empty if nothing is known.

    Only what can be told without a device is looked at: an accelerator other than the CPU tells it
    when it is prepared.
    """
    if spec.kind != "model":
        return ""
    if spec.bind == "node" and (there := len(nodes())) < 2:
        return "this host has one NUMA node" if there else "this host shows no NUMA nodes"
    try:
        allocator_environment(spec.allocator)
        if (spec.device or "cpu") == "cpu" and spec.precision != "float32":
            import torch

            from .model import check_precision

            check_precision(spec.precision, torch.device("cpu"))
    except IobenchError as error:
        return error.what
    return ""
