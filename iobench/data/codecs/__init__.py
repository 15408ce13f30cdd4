"""Codecs: how the bytes of a sample are compressed. The table of those that iobench has."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...base.errors import SpecError
from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Codec


class CodecRegistry(Registry["Codec"]):
    """Codecs, which are created with a level: ``open("zstd:3")`` is ``Zstd(level=3)``."""

    def open(self, name: str) -> Codec:
        """Create the codec of a specification: a name, or a name and a level.

        Raises the same errors as ``load``, and SpecError for a level that is not a number or that
        the codec does not have.
        """
        name, level = split_level(name)
        try:
            return self.load(name)(level)
        except ValueError as error:
            raise SpecError(str(error)) from None


def split_level(text: str) -> tuple[str, int | None]:
    """Split ``"zstd:3"`` to ("zstd", 3), and ``"zstd"`` to ("zstd", None).

    Raises SpecError for a level that is not a number.
    """
    name, colon, level = text.partition(":")
    if colon and not re.fullmatch(r"-?[0-9]{1,9}", level):
        raise SpecError(f"codec '{text}': the level after ':' must be a whole number")
    return name, int(level) if colon else None


CODECS = CodecRegistry(
    "codec",
    "iobench.data.codecs",
    __name__,
    {
        "none": PlugIn(".base:Identity", "stored as is"),
        "gzip": PlugIn(".gzip:Gzip", "gzip (RFC 1952), levels 1 to 9"),
        "zstd": PlugIn(".zstd:Zstd", "Zstandard (RFC 8878), levels 1 to 22"),
        "lz4": PlugIn(".lz4:Lz4", "LZ4 frames, levels 0 to 16"),
    },
    base=".base:Codec",
)
