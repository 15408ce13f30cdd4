"""The small training state that golden checkpoints hold."""

from __future__ import annotations

from typing import Any

import torch

WRITERS = ("torch", "safetensors", "dcp", "stream")
STEP = 3


def tiny_state() -> dict[str, Any]:
    """A few kilobytes with every kind of leaf; the same numbers with every version of torch."""
    return {
        "model": {
            "weight": torch.arange(1021, dtype=torch.float32).reshape(1021, 1) / 8,
            "half": torch.arange(33).to(torch.bfloat16),
            "mask": torch.arange(101) % 3 == 0,
            "scalar": torch.tensor(3.5),
        },
        "optimizer": {"step": torch.arange(5), "exp_avg": torch.arange(1021, dtype=torch.float64)},
        "epoch": 7,
        "rate": 0.125,
        "name": "résumé",
    }
