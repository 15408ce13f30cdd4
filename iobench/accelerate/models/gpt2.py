"""GPT-2 with 124 million parameters, in windows of 1,024 tokens.

Radford et al., Language Models are Unsupervised Multitask Learners, 2019. Samples are windows of
tokens of 16 bits, as in the token files of nanoGPT; tokens past the vocabulary are taken modulo its
size. The head has the weights of the token embedding (Press and Wolf, EACL 2017).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Model
from .vit import Block

_VOCABULARY, _WINDOW, _WIDTH, _HEADS, _DEPTH = 50_257, 1_024, 768, 12, 12

_RESIDUES = 64
"""Drawn tokens tell nothing about the next one. So the target is the token's own residue."""


class GPT2(Model):
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
