"""What one sample's bytes look like, each to the byte of the size that was asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ..buffers import Buffer


class Content(ABC):
    """What one sample's bytes look like. It keeps no state, and is used from many threads at once.

    A subclass states the class attributes, and defines the methods.
    """

    name: ClassVar[str]

    suffix: ClassVar[str]
    """Of a file that holds one sample, with its dot."""

    min_bytes: ClassVar[int] = 1
    """The smallest sample that ``build`` can make."""

    plain: ClassVar[bool] = False
    """Whether the content itself is what decoding delivers, so that there is nothing to decode."""

    in_place: ClassVar[bool] = False
    """Whether the decoded bytes are a slice of the content, which ``locate`` finds."""

    max_expansion: ClassVar[int] = 1
    """Upper bound of decoded bytes over content bytes, for what ``build`` makes."""

    @abstractmethod
    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        """Fill all of ``out``, whose length is the sample's size, with sample number ``index``.

        A pure function of (len(out), seed, index, compress_ratio): the same arguments give the
        same bytes, in any process. No two samples of a dataset (a seed) share a block of 4 KiB, and
        with compress_ratio 1 no codec finds anything to compress.
        Raises ValueError for a length below ``min_bytes``, and for a compress_ratio that this
        content can't have.
        """

    def build_for_columns(
        self, out: Buffer, *, seed: int, index: int, compress_ratio: float
    ) -> None:
        """The same for a format that cuts samples into columns and stores a column of many samples.

        A content overrides it where ``build`` puts bytes that are alike in all samples at the same
        place, and it can do without them.
        """
        self.build(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def locate(self, content: Buffer) -> tuple[int, int]:
        """Where the decoded bytes begin and end within ``content``. Raises ValueError.

        Defined where ``in_place``.
        """
        raise ValueError(f"content '{self.name}' has to be decoded")

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        """(seed, index) that a sample of ``build`` says of itself.

        None where it is too short to say, or was not built here.
        """
        return None

    @abstractmethod
    def decoded_bytes(self, content: Buffer) -> int:
        """Bytes that ``decode`` will deliver for this sample, from its header alone.

        Raises ValueError for what is not of this content.
        """

    @abstractmethod
    def decode(self, content: Buffer, out: Buffer) -> int:
        """Decode into ``out``, of at least ``decoded_bytes``; the number of bytes written.

        Nothing is unpickled or executed. Raises ValueError for what is not of this content.
        """


def at_least(name: str, least: int, out: Buffer) -> None:
    """Raises ValueError where ``out`` has fewer bytes than a sample of content ``name`` needs."""
    if len(out) < least:
        raise ValueError(f"content '{name}' needs at least {least} bytes, not {len(out)}")


def fits(size: int, out: Buffer) -> None:
    """Raises ValueError where ``size`` bytes do not fit into ``out``."""
    if size > len(out):
        raise ValueError(f"{size} decoded bytes do not fit a buffer of {len(out)}")
