"""Contents: what the bytes of a sample are. The table of those that iobench has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Content

CONTENTS: Registry[Content] = Registry(
    "content",
    "iobench.data.contents",
    {
        "raw": PlugIn(
            target="iobench.data.contents.base:Raw",
            summary="opaque bytes, unique and incompressible",
        ),
        "npz": PlugIn(
            target="iobench.data.contents.npz:Npz",
            summary="NumPy .npz (stored) holding one uint8 array 'x'",
        ),
        "arrays": PlugIn(
            target="iobench.data.contents.npz:Arrays",
            summary="any .npz: its arrays, inflated, one after another",
        ),
        "jpeg": PlugIn(
            target="iobench.data.contents.jpeg:Jpeg",
            summary="a JPEG that decodes, padded to the exact size",
        ),
    },
    base="iobench.data.contents.base:Content",
)
