"""Token files, as nanoGPT and Megatron read them: one flat array of uint16 or uint32, nothing else.

A sample is a window of (sequence length + 1) tokens. Windows follow one another without framing, so
the file does not record where one begins: readers map the file into memory and choose.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec
from .base import Framed

TOKEN_BYTES = 2
"""Bytes of a token of the smaller type (uint16). The size of every window is a multiple of it."""


class Tokens(Framed):
    """Windows of equal length, read in random order.

    ``reader.access: auto`` means random access here, however many windows a shard holds.
    """

    name: ClassVar[str] = "tokens"
    suffix: ClassVar[str] = ".bin"
    access: ClassVar[Literal["auto", "random"]] = "random"
    framing_bytes: ClassVar[int] = 0

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        if not codec.plain:
            raise ValueError(
                "format 'tokens' is a flat array that is mapped into memory, and can't be "
                "compressed; remove the codec"
            )
        if spec.content != "raw":
            raise ValueError(
                f"format 'tokens' holds only numbers (content raw), not content '{spec.content}'"
            )
        size = spec.sample_size
        if size.distribution != "constant" or (size.mean or 0) % TOKEN_BYTES:
            raise ValueError(
                "format 'tokens' needs samples (windows) of one size, a multiple of "
                f"{TOKEN_BYTES} bytes: set sample_size.mean to (sequence length + 1) x bytes of a "
                "token"
            )
