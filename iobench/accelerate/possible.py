"""Whether this host can train with some settings, before anything is started for it."""

from __future__ import annotations

import os
import shutil

from ..base.errors import IobenchError
from ..settings.workload import AcceleratorSpec
from .bind import allocator_environment, nodes

_COMPILER = "g++"
"""What torch.compile calls for a CPU where the variable CXX names no other compiler."""


def why_not(spec: AcceleratorSpec) -> str:
    """Why a model can't be trained as ``spec`` says on this host; empty if nothing is known.

    Only what can be told without a device is looked at: an accelerator other than the CPU tells it
    when it is prepared. A setting that changes nothing for this model can't be tried either.
    """
    if spec.kind != "model":
        return ""
    if spec.bind == "node" and (there := len(nodes())) < 2:
        return "this host has one NUMA node" if there else "this host shows no NUMA nodes"
    on_cpu = (spec.device or "cpu") == "cpu"
    compiler = os.environ.get("CXX", _COMPILER)
    if spec.compile and on_cpu and shutil.which(compiler) is None:
        return f"torch.compile needs the C++ compiler {compiler}: apt-get install g++"
    try:
        allocator_environment(spec.allocator)
        if on_cpu and spec.precision != "float32":
            import torch

            from .model import check_precision

            check_precision(spec.precision, torch.device("cpu"))
        if spec.memory_format == "channels_last":
            from .model import has_channels_last

            if not has_channels_last(spec.model or ""):
                return f"the model '{spec.model}' has no format with its channels last"
    except IobenchError as error:
        return error.what
    return ""
