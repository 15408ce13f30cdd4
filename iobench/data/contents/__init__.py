"""Contents: what the bytes of a sample are. The table of those that iobench has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...plugins import PlugIn, Registry

if TYPE_CHECKING:  # who asks for names alone needs nothing heavy
    from .base import Content

CONTENTS: Registry[Content] = Registry(
    "content",
    "iobench.data.contents",
    __name__,
    {
        "raw": PlugIn(".base:Raw", "opaque bytes, unique and incompressible"),
        "npz": PlugIn(".npz:Npz", "NumPy .npz (stored) holding one uint8 array 'x'"),
        "arrays": PlugIn(".npz:Arrays", "any .npz: its arrays, inflated, one after another"),
        "jpeg": PlugIn(".jpeg:Jpeg", "a JPEG that decodes, padded to the exact size"),
    },
    base=".base:Content",
)
