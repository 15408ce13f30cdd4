"""3D U-Net for medical volumes, with the dimensions of MLPerf Training's image segmentation.

Filters 32, 64, 128, 256, 320 and 320 at the bottom, instance normalization, one channel in and
three classes out, patches of 128 x 128 x 128 voxels (mlcommons/training, image_segmentation;
Isensee et al., nnU-Net, Nature Methods 2021). One byte for each voxel: a patch is the 2 MiB that
MLPerf Storage's workload hands to the accelerator.
"""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Model

_FILTERS = (32, 64, 128, 256, 320, 320)
_SIDE = 128
_CLASSES = 3


def _convs(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels, step in ((inputs, stride), (outputs, 1)):
        layers += [
            nn.Conv3d(channels, outputs, 3, step, padding=1, bias=False),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


class UNet3D(Model):
    sample_bytes: ClassVar[int] = _SIDE**3
    channels_last: ClassVar[torch.memory_format | None] = torch.channels_last_3d

    def __init__(self) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(_FILTERS))
        self.first = _convs(1, _FILTERS[0])
        self.down = nn.ModuleList(_convs(upper, lower, 2) for upper, lower in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose3d(lo, up, 2, 2) for up, lo in reversed(pairs))
        self.merge = nn.ModuleList(_convs(2 * upper, upper) for upper, _ in reversed(pairs))
        self.head = nn.Conv3d(_FILTERS[0], _CLASSES, 1)

    def segment(self, volumes: Tensor) -> Tensor:
        """Return the logits [batch, 3, 128, 128, 128] of volumes [batch, 1, 128, 128, 128]."""
        skips = [self.first(volumes)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat((up(x), skips.pop()), dim=1))
        return self.head(x)  # type: ignore[no-any-return]

    def forward(self, data: Tensor) -> Tensor:
        volumes = data.view(-1, 1, _SIDE, _SIDE, _SIDE)
        logits = self.segment((volumes.float() - 127.5) / 74.0)  # 74: deviation of uniform bytes
        wanted = torch.div(volumes[:, 0].long() * _CLASSES, 256, rounding_mode="floor")
        return functional.cross_entropy(logits.float(), wanted)
