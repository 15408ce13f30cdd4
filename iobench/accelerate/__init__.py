"""What consumes batches. The table of the kinds of accelerators that iobench has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Accelerator

ACCELERATORS: Registry[Accelerator] = Registry(
    "accelerator",
    "iobench.accelerators",
    __name__,
    {
        "emulated": PlugIn(
            ".emulated:EmulatedAccelerator", "each step takes the stated time, kept by deadlines"
        ),
        "null": PlugIn(".emulated:NullAccelerator", "takes batches as fast as they come"),
        "recorded": PlugIn(
            ".emulated:RecordedAccelerator",
            "each step takes the time that 'iobench train --record' found for a real model",
        ),
        "model": PlugIn(
            ".model:ModelAccelerator", "trains a real model on each batch, on a CPU or a GPU"
        ),
    },
)
