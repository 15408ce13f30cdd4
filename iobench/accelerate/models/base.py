"""What a model is to iobench: the bytes of a batch in, a loss out."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 1000
"""Classes of the image models: those of ImageNet-1k, so that the parameters are those known."""

_TARGETS = 8
"""Classes that the targets really use. To know which ones they are is the first thing to learn."""


class Model(nn.Module):
    """A model and its loss. A subclass sets ``sample_bytes`` and defines ``forward``.

    ``forward`` takes the bytes of a batch, uint8 [batch, ``sample_bytes``], on the model's device,
    and returns the loss, a scalar that ``backward`` accepts. No labels are stored with the data:
    the targets are computed from the bytes, so that any data will do, and the loss can fall.
    """

    sample_bytes: ClassVar[int]
    """Bytes of each sample that the model takes."""

    channels_last: ClassVar[torch.memory_format | None] = None
    """The memory format in which channels come last; None if the model has no convolutions."""


class ImageClassifier(Model):
    """Images of 224 x 224 pixels in RGB, one byte for each value, and 1,000 classes."""

    side: ClassVar[int] = 224
    sample_bytes: ClassVar[int] = 224 * 224 * 3

    def classify(self, images: Tensor) -> Tensor:
        """Return the logits [batch, 1000] of float images [batch, 3, 224, 224]."""
        raise NotImplementedError

    def forward(self, data: Tensor) -> Tensor:
        images = data.view(-1, self.side, self.side, 3).permute(0, 3, 1, 2)
        # 127.5 and 58: about the mean and the deviation of the pixels of photographs.
        logits = self.classify((images.float() - 127.5) / 58.0)
        return functional.cross_entropy(logits.float(), targets_of(data))


def targets_of(data: Tensor) -> Tensor:
    """The class of each sample, int64 [batch], from 0 to 7: which eighth of it is the brightest.

    ``data``: uint8 [batch, bytes].
    """
    kept = data.shape[1] // _TARGETS * _TARGETS
    parts = data[:, :kept].view(len(data), _TARGETS, -1)
    return parts.float().mean(dim=2).argmax(dim=1)
