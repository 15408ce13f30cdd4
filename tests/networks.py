"""Small models for tests of training: bytes in, a loss out."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
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


class Negative(Tiny):
    """Its loss is below 0, as that of a likelihood may be."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return super().forward(data) - 100


class Broken(Tiny):
    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layers(data.float()[:, :7])  # type: ignore[no-any-return]


class FailsOnRankOne(Tiny):
    """Its second rank fails in its 40th step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.steps == 40 and distributed.is_initialized() and distributed.get_rank() == 1:
            self.fail()
        return super().forward(data)

    def fail(self) -> None:
        raise ValueError("planted")


class DiesOnRankOne(FailsOnRankOne):
    def fail(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class TellsItsSteps(Tiny):
    """Makes the empty file that IOBENCH_TEST_STEPPED names in each step."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        Path(os.environ["IOBENCH_TEST_STEPPED"]).touch()
        return super().forward(data)


class KillsItsParent(Tiny):
    """As if the process of the run had been killed for its memory."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        os.kill(os.getppid(), signal.SIGKILL)
        return super().forward(data)


def fails() -> nn.Module:
    raise RuntimeError("no weights here")


class Waits(Tiny):
    """Stands for a model on a device of its own: a step waits, and its length has slow phases."""

    def __init__(self) -> None:
        super().__init__()
        self.chance, self.level = np.random.default_rng(5), 0.0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.level = 0.9 * self.level + float(self.chance.normal(0, 0.04))
        time.sleep(0.02 * np.exp(self.level))
        return super().forward(data)


class Computes(nn.Module):
    """Steps of some 20 ms on one core, whatever the data."""

    sample_bytes = 3072

    def __init__(self) -> None:
        super().__init__()
        deep = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
        self.layers = nn.Sequential(nn.Linear(3072, 1024), nn.ReLU(), *deep, nn.Linear(1024, 8))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        brightest = data.view(len(data), 8, -1).float().mean(2).argmax(1)
        return functional.cross_entropy(self.layers(data.float() / 255), brightest)


class TooLargeForTheGpu(Tiny):
    """Fails as on a GPU whose memory is full."""

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Explodes(Tiny):
    """Its loss is no number from the 251st step on: no warm-up takes so many."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        loss = super().forward(data)
        return loss * float("nan") if self.steps > 250 else loss


def too_large() -> nn.Module:
    return nn.Linear(1 << 30, 1 << 20)
