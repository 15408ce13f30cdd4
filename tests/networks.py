"""Small models for tests of training: bytes in, a loss out."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Tiny(nn.Module):
    """Learns which eighth of a sample is the brightest, from its first 3,072 bytes."""

    sample_bytes = 3072

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3072, 32), nn.ReLU(), nn.Linear(32, 8))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        brightest = data.view(len(data), 8, -1).float().mean(2).argmax(1)
        return functional.cross_entropy(self.layers(data.float() / 255), brightest)


class NotANumber(Tiny):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return super().forward(data) * float("nan")


class Broken(Tiny):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layers(data.float()[:, :7])  # type: ignore[no-any-return]


def no_model() -> str:
    return "not a model"


def fails() -> nn.Module:
    raise RuntimeError("no weights here")
