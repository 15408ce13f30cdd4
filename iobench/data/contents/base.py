"""Contents: what the bytes of one sample are; and opaque bytes.

Each sample has exactly the requested size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from ...base import payload
from ...base.buffers import Buffer


class Content(ABC):
    """Makes and decodes the bytes of one sample. Keeps no state; many threads use it at once.

    A subclass sets the class attributes and defines the methods.
    """

    name: ClassVar[str]

    suffix: ClassVar[str]
    """Suffix of a file that holds one sample, with its dot."""

    min_bytes: ClassVar[int] = 1
    """Bytes of the smallest sample that ``build`` can make."""

    plain: ClassVar[bool] = False
    """Whether the decoded bytes are the content itself, so that there is nothing to decode."""

    in_place: ClassVar[bool] = False
    """Whether the decoded bytes are a slice of the content, which ``locate`` finds."""

    max_expansion: ClassVar[int] = 1
    """Upper limit of decoded bytes / content bytes, for samples that ``build`` makes."""

    def labelled(self, labels: int) -> Self:
        """Return this content for samples of ``labels`` classes (``record.packing.label_of``).

        Its ``build`` makes samples that show their class in a way that a model can learn. Raises
        ValueError if it can't.
        """
        raise ValueError(f"samples of content '{self.name}' cannot show a label")

    has_shape: ClassVar[bool] = False
    """Whether the decoded bytes are an array of uint8, whose shape ``shape`` finds."""

    def shape(self, content: Buffer) -> tuple[int, ...]:
        """Return the shape of the decoded bytes, computed from the content's header.

        Only for contents with ``has_shape``. Raises ValueError for bytes that are not of this
        content.
        """
        raise ValueError(f"the decoded bytes of content '{self.name}' have no shape")

    @abstractmethod
    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        """Fill all of ``out``, whose length is the sample's size, with sample number ``index``.

        A pure function of (len(out), seed, index, compress_ratio): the same arguments give the same
        bytes, in any process. No two samples of a dataset (a seed) share a block of 4 KiB, and with
        compress_ratio 1 no codec finds anything to compress.

        Raises ValueError for a length below ``min_bytes``, and for a compress_ratio that this
        content does not support.
        """

    def build_for_columns(
        self, out: Buffer, *, seed: int, index: int, compress_ratio: float
    ) -> None:
        """Like ``build``, for a format that stores one column of many samples together.

        A content overrides this method if its ``build`` puts similar bytes at the same place in all
        samples, which would compress well within a column, and if it can avoid them.
        """
        self.build(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def locate(self, content: Buffer) -> tuple[int, int]:
        """Return where the decoded bytes begin and end within ``content``.

        Only for contents with ``in_place``. Raises ValueError for bytes that are not of this
        content.
        """
        raise ValueError(f"content '{self.name}' must be decoded")

    def locate_alike(
        self, memory: Buffer, starts: npt.NDArray[np.int64], size: int
    ) -> tuple[int, int] | None:
        """As ``locate``, for samples of ``size`` bytes each that begin at ``starts`` in ``memory``.

        None if it is not known that one answer is true of all of them. A content overrides this
        method if it can compare many samples faster than it locates each.
        """
        return None

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        """Return the (seed, index) that is stored in a sample which ``build`` made.

        None if the sample is too short to hold them, or if ``build`` did not make it.
        """
        return None

    @abstractmethod
    def decoded_bytes(self, content: Buffer) -> int:
        """Bytes that ``decode`` will write for this sample, computed from its header alone.

        Raises ValueError for bytes that are not of this content.
        """

    @abstractmethod
    def decode(self, content: Buffer, out: Buffer) -> int:
        """Decode into ``out``, which has at least ``decoded_bytes``; return the bytes written.

        Nothing is unpickled or executed. Raises ValueError for bytes that are not of this content.
        """


def at_least(name: str, least: int, out: Buffer) -> None:
    """Raise ValueError if ``out`` has fewer bytes than a sample of content ``name`` needs."""
    if len(out) < least:
        raise ValueError(f"content '{name}' needs at least {least} bytes, not {len(out)}")


def fits(size: int, out: Buffer) -> None:
    """Raise ValueError if ``size`` bytes do not fit into ``out``."""
    if size > len(out):
        raise ValueError(f"{size} decoded bytes do not fit a buffer of {len(out)}")


class Raw(Content):
    """Opaque bytes. Decoding copies them once, which any consumer has to do."""

    name: ClassVar[str] = "raw"
    suffix: ClassVar[str] = ".bin"
    plain: ClassVar[bool] = True
    in_place: ClassVar[bool] = True

    def locate(self, content: Buffer) -> tuple[int, int]:
        return 0, len(content)

    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        payload.fill(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def build_for_columns(
        self, out: Buffer, *, seed: int, index: int, compress_ratio: float
    ) -> None:
        payload.fill_for_columns(out, seed=seed, index=index, compress_ratio=compress_ratio)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content)

    def decoded_bytes(self, content: Buffer) -> int:
        return len(content)

    def decode(self, content: Buffer, out: Buffer) -> int:
        fits(len(content), out)
        out[: len(content)] = content
        return len(content)
