"""What one sample's bytes look like, each to the byte of the size that was asked for."""

from __future__ import annotations

from typing import ClassVar, Protocol

from ..buffers import Buffer


class Content(Protocol):
    """What one sample's bytes look like, to the byte.

    Optional: ``build_for_columns``, which makes samples for a format that cuts them into columns,
    where ``build`` would put bytes that are alike in all samples at the same place.
    """

    name: ClassVar[str]
    suffix: ClassVar[str]
    min_bytes: ClassVar[int]  # the smallest sample that this content can make
    in_place: ClassVar[
        bool
    ]  # the decoded bytes are a slice of the content, which ``locate`` finds without copying
    max_expansion: ClassVar[
        int
    ]  # upper bound of decoded bytes over content bytes, for what ``build`` makes

    @classmethod
    def build(cls, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        """Fill all of ``out`` (its length is the sample's size) with sample ``index`` of the dataset with this seed.

        A pure function of (len(out), seed, index, compress_ratio): same arguments, same bytes, in any process.
        No two samples share a 4 KiB block, and with compress_ratio 1 no codec finds anything to compress.
        Raises ValueError for a length below ``min_bytes``, and for a compress_ratio that this content cannot have.
        """

    @classmethod
    def locate(cls, content: Buffer) -> tuple[int, int]:
        """Where the decoded bytes begin and end within ``content`` (only where ``in_place``). Raises ValueError."""

    @classmethod
    def identify(cls, content: Buffer) -> tuple[int, int] | None:
        """(seed, index) that a sample of ``build`` says of itself.

        None where it is too short to say, or was not built here.
        """

    @classmethod
    def decoded_bytes(cls, content: Buffer) -> int:
        """Bytes that ``decode`` will deliver for this sample. Raises ValueError for what is not of this content."""

    @classmethod
    def decode(cls, content: Buffer, out: Buffer) -> int:
        """Decode into ``out`` (at least ``decoded_bytes``); the number of bytes written. Raises ValueError."""


def at_least(name: str, least: int, out: Buffer) -> None:
    """Raises ValueError where ``out`` has fewer bytes than a sample of content ``name`` needs."""
    if len(out) < least:
        raise ValueError(f"content '{name}' needs at least {least} bytes, not {len(out)}")


def fits(size: int, out: Buffer) -> None:
    """Raises ValueError where ``size`` bytes do not fit into ``out``."""
    if size > len(out):
        raise ValueError(f"{size} decoded bytes do not fit a buffer of {len(out)}")
