"""Transformers: ViT-S/16 and ViT-B/16 for images, with patches of 16 x 16 pixels, and GPT-2.

Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; ViT-S as in Touvron et al., Training
data-efficient image transformers, ICML 2021.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import CLASSES, ImageClassifier, Model

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
