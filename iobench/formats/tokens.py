"""Token files, as nanoGPT and Megatron read them: one flat array of uint16 or uint32, and nothing else.

A sample is a window of the sequence length + 1 tokens. Windows follow one another without framing, so the file says nothing of
where one begins: readers map the file into memory and choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ..buffers import Buffer
from .base import Frame

_BARE = Frame(b"", b"")
TOKEN_BYTES = 2
"""Of the smaller of the two kinds (uint16); a window of any kind is a multiple of it."""


class Tokens:
    """Windows of equal length, drawn at random: ``reader.access: auto`` means random here, however many windows a shard holds."""

    name: ClassVar[str] = "tokens"
    suffix: ClassVar[str] = ".bin"
    one_sample_per_shard: ClassVar[bool] = False
    has_checksums: ClassVar[bool] = False
    access: ClassVar[str] = "random"
    framing: ClassVar[int] = 0

    @classmethod
    def check_spec(cls, spec: Any) -> None:
        if spec.codec != "none":
            raise ValueError(
                "format 'tokens' is a flat array that is mapped into memory, and can't be compressed; remove the codec"
            )
        if spec.content != "raw":
            raise ValueError(f"format 'tokens' holds numbers only, not content '{spec.content}'")
        size = spec.sample_size
        if size.distribution != "constant" or size.mean % TOKEN_BYTES:
            raise ValueError(
                f"format 'tokens' has windows of one size, a multiple of {TOKEN_BYTES} bytes: set sample_size.mean to "
                "(sequence length + 1) x bytes of a token"
            )

    @classmethod
    def frame(cls, index: int, suffix: str, stored: Buffer) -> Frame:
        return _BARE

    @classmethod
    def margins(cls, index: int, suffix: str, stored: int) -> tuple[int, int]:
        return 0, 0

    @classmethod
    def finish(cls, size: int) -> bytes:
        return b""

    @classmethod
    def unpack(cls, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """The whole array: only who reads it knows how long a window is."""
        if len(shard) % TOKEN_BYTES:
            raise ValueError(
                f"no array of tokens: it ends at byte {len(shard)}, in the middle of one"
            )
        yield shard

    @classmethod
    def check(cls, framed: Buffer) -> None:
        """Nothing to check: there is no framing."""
