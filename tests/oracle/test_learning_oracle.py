"""Models that ``iobench train`` trains learn: their loss falls on the bytes that they are given.

``tests/unit/test_training.py`` has the two small ones, ResNet-18 and ViT-S/16.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from iobench.accelerate.base import RankPlace, Samples
from iobench.accelerate.model import ModelAccelerator
from iobench.accelerate.models import unet3d, vit
from iobench.schema.workload import AcceleratorSpec


@pytest.mark.parametrize(
    ("model", "samples", "rate", "steps"),
    [
        ("resnet50", 2, 1e-3, 6),
        ("vit-b16", 1, 1e-3, 6),
        ("gpt2", 1, 1e-2, 4),
        ("unet3d", 1, 1e-1, 4),
    ],
)
def test_a_large_model_learns(
    model: str, samples: int, rate: float, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPT-2 in windows of 64 tokens, and the U-Net on 64 voxels a side: a CPU is enough then."""
    monkeypatch.setattr(vit, "_WINDOW", 64)
    monkeypatch.setattr(vit.GPT2, "sample_bytes", 2 * 64)
    monkeypatch.setattr(unet3d, "_SIDE", 64)
    monkeypatch.setattr(unet3d.UNet3D, "sample_bytes", 64**3)
    spec = {"kind": "model", "model": model, "warm_up": "1ms", "learning_rate": rate}
    accelerator = ModelAccelerator(AcceleratorSpec.model_validate(spec))
    accelerator.prepare(RankPlace(0, 1, samples, 1))
    size = accelerator.sample_bytes
    drawn = np.random.default_rng(0).integers(0, 256, samples * size, dtype=np.uint8)
    offsets = np.arange(samples, dtype=np.int64) * size
    batch = Samples(torch.from_numpy(drawn), offsets, np.full(samples, size, np.int64))
    for _ in range(steps):
        accelerator.step(batch, 0)
    facts = accelerator.facts()
    assert facts.first_loss is not None
    assert facts.last_loss is not None
    assert facts.last_loss < 0.9 * facts.first_loss
