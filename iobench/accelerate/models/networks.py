"""What a model is to iobench: the bytes of a batch in, a loss out; and iobench's own models.

- Residual networks for images, ResNet-18 and ResNet-50: He et al., Deep Residual Learning for Image
  Recognition, CVPR 2016. As in most implementations, the 3 x 3 convolution of a bottleneck has its
  stride, not the 1 x 1 convolution before it.
- 3D U-Net for medical volumes, with the dimensions of MLPerf Training's image segmentation: filters
  32, 64, 128, 256, 320 and 320 at the bottom, instance normalization, one channel in and three
  classes out, patches of 128 x 128 x 128 voxels (mlcommons/training, image_segmentation; Isensee et
  al., nnU-Net, Nature Methods 2021). One byte for each voxel: a patch is the 2 MiB that MLPerf
  Storage's workload hands to the accelerator.
- Transformers, ViT-S/16 and ViT-B/16 for images, with patches of 16 x 16 pixels, and GPT-2:
  Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; ViT-S as in Touvron et al., Training
  data-efficient image transformers, ICML 2021.
"""

from __future__ import annotations

import itertools
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


_PATCH = 16


class Block(nn.Module):
    """Attention and a perceptron, each with a residual, normalized before (``causal``: GPT)."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        approximate = "tanh" if causal else "none"
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp(self.norm2(x))  # type: ignore[no-any-return]


class VisionTransformer(ImageClassifier):
    width: ClassVar[int]
    heads: ClassVar[int]
    depth: ClassVar[int] = 12

    def __init__(self) -> None:
        super().__init__()
        tokens = (self.side // _PATCH) ** 2 + 1
        self.patches = nn.Conv2d(3, self.width, _PATCH, _PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, self.width))
        self.position = nn.Parameter(torch.empty(1, tokens, self.width))
        nn.init.trunc_normal_(self.position, std=0.02)
        self.blocks = nn.Sequential(*(Block(self.width, self.heads) for _ in range(self.depth)))
        self.norm = nn.LayerNorm(self.width, 1e-6)
        self.head = nn.Linear(self.width, CLASSES)

    def classify(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.cls.expand(len(images), -1, -1), patches), dim=1)
        seen = self.blocks(tokens + self.position)
        return self.head(self.norm(seen)[:, 0])  # type: ignore[no-any-return]


class ViTS16(VisionTransformer):
    width = 384
    heads = 6


class ViTB16(VisionTransformer):
    width = 768
    heads = 12


_VOCABULARY, _WINDOW, _WIDTH, _HEADS, _DEPTH = 50_257, 1_024, 768, 12, 12

_RESIDUES = 64
"""Drawn tokens tell nothing about the next one. So the target is the token's own residue."""


class GPT2(Model):
    """GPT-2 with 124 million parameters, in windows of 1,024 tokens.

    Radford et al., Language Models are Unsupervised Multitask Learners, 2019. Samples are windows
    of tokens of 16 bits, as in the token files of nanoGPT; tokens past the vocabulary are taken
    modulo its size. The head has the weights of the token embedding (Press and Wolf, EACL 2017).
    """

    sample_bytes: ClassVar[int] = 2 * _WINDOW

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.position = nn.Embedding(_WINDOW, _WIDTH)
        self.blocks = nn.Sequential(
            *(Block(_WIDTH, _HEADS, causal=True, eps=1e-5) for _ in range(_DEPTH))
        )
        self.norm = nn.LayerNorm(_WIDTH)
        self.apply(_initialize)

    def forward(self, data: Tensor) -> Tensor:
        pairs = data.view(-1, _WINDOW, 2).long()
        tokens = (pairs[..., 0] + 256 * pairs[..., 1]) % _VOCABULARY
        places = torch.arange(_WINDOW, device=data.device)
        seen = self.norm(self.blocks(self.tokens(tokens) + self.position(places)))
        logits = functional.linear(seen, self.tokens.weight)
        wanted = (tokens % _RESIDUES).flatten()
        return functional.cross_entropy(logits.flatten(0, 1).float(), wanted)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
