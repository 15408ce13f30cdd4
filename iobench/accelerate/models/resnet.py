"""Residual networks for images: ResNet-18 and ResNet-50.

He et al., Deep Residual Learning for Image Recognition, CVPR 2016. As in most implementations, the
3 x 3 convolution of a bottleneck has its stride, not the 1 x 1 convolution before it.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .base import CLASSES, ImageClassifier


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


class _Residual(nn.Module):
    """A body and a shortcut around it, which is a projection where the shape changes."""

    def __init__(self, body: list[nn.Module], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_conv(inputs, outputs, 1, stride))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.body(x) + self.shortcut(x))  # type: ignore[no-any-return]


def _basic(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    body = [*_conv(inputs, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, width, 3)]
    return _Residual(body, inputs, width, stride), width


def _bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Module, int]:
    outputs = 4 * width
    body = [*_conv(inputs, width, 1), nn.ReLU(inplace=True)]
    body += [*_conv(width, width, 3, stride), nn.ReLU(inplace=True), *_conv(width, outputs, 1)]
    return _Residual(body, inputs, outputs, stride), outputs


class ResNet(ImageClassifier):
    channels_last: ClassVar[torch.memory_format | None] = torch.channels_last
    bottlenecks: ClassVar[bool]
    depths: ClassVar[tuple[int, int, int, int]]

    def __init__(self) -> None:
        super().__init__()
        layers = [*_conv(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, padding=1)]
        make, inputs = _bottleneck if self.bottlenecks else _basic, 64
        for stage, depth in enumerate(self.depths):
            for block in range(depth):
                stride = 2 if stage and not block else 1
                layer, inputs = make(inputs, 64 << stage, stride)
                layers.append(layer)
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, CLASSES)

    def classify(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))  # type: ignore[no-any-return]


class ResNet18(ResNet):
    bottlenecks = False
    depths = (2, 2, 2, 2)


class ResNet50(ResNet):
    bottlenecks = True
    depths = (3, 4, 6, 3)
