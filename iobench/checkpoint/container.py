"""The file format of the ``stream`` writer: a header, then the tensors' bytes as in memory.

::

    "IOBCKPT1"                    8 bytes
    length of the JSON            8 bytes, little-endian
    XXH3 of the JSON              8 bytes, big-endian
    JSON, then zeros up to a multiple of 4096 bytes
    data

The JSON has ``size`` (of the file in bytes), ``tensors`` (name -> dtype, shape, offset, bytes) and
``values`` (name -> int, float or str). The offset of a large tensor equals its memory address
modulo 4096, so that whole pages of the file are whole pages of memory and O_DIRECT needs no copy.
Small tensors are packed at multiples of 64 bytes.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import torch
import xxhash

from ..base.limits import header_limit
from ..storage.base import Storage
from ..storage.files import ReadWindow
from .leaves import Bytes, Leaves, leaves, raw

MAGIC = b"IOBCKPT1"
PAGE = 4096
_PREFIX = struct.Struct(">8s8s8s")
_LARGE = 1 << 20  # bytes; see above


class Segment(NamedTuple):
    """``memory`` holds, or will receive, the file's bytes from ``offset``."""

    offset: int
    memory: Bytes


class ContainerLayout(NamedTuple):
    size: int  # of the file, bytes
    segments: list[Segment]  # by offset; gaps are zeros


def lay_out(state: dict[str, Any]) -> ContainerLayout:
    """Where each byte of a state's file comes from.

    Nothing is copied, except tensors that are not contiguous.
    """
    found = leaves(state)
    memory = {name: raw(leaf) for name, leaf in found.items() if isinstance(leaf, torch.Tensor)}
    place, relative = 0, {}
    # The small ones first: together they fill the blocks that have to be copied.
    for name in sorted(memory, key=lambda name: memory[name].nbytes >= _LARGE):
        data = memory[name]
        place += (data.ctypes.data - place) % PAGE if data.nbytes >= _LARGE else -place % 64
        relative[name] = place
        place += data.nbytes
    header = _header(found, relative, place)
    segments = [Segment(0, header)]
    segments += sorted(
        (
            Segment(len(header) + relative[name], data)
            for name, data in memory.items()
            if data.nbytes
        ),
        key=lambda s: s.offset,
    )
    return ContainerLayout(len(header) + place, segments)


def _header(found: Leaves, relative: dict[str, int], data_size: int) -> Bytes:
    """The file's header.

    It contains offsets that depend on its own length, so it grows by whole pages until it fits.
    """
    start = PAGE
    while True:
        tensors = {
            name: {
                "dtype": str(leaf.dtype),
                "shape": list(leaf.shape),
                "offset": start + relative[name],
                "bytes": leaf.nbytes,
            }
            for name, leaf in found.items()
            if isinstance(leaf, torch.Tensor)
        }
        values = {name: leaf for name, leaf in found.items() if not isinstance(leaf, torch.Tensor)}
        text = json.dumps(
            {"size": start + data_size, "tensors": tensors, "values": values}
        ).encode()
        needed = _PREFIX.size + len(text)
        if needed <= start:
            break
        start = needed + -needed % PAGE
    prefix = _PREFIX.pack(MAGIC, len(text).to_bytes(8, "little"), xxhash.xxh3_64_digest(text))
    return raw(
        torch.frombuffer(bytearray(prefix + text + bytes(start - needed)), dtype=torch.uint8)
    )


def read_header(storage: Storage, key: str, names: list[str]) -> dict[str, Any]:
    """The header of a file with tensors of these ``names``. Raises ValueError, StorageError."""
    window = ReadWindow(storage, PAGE, nbytes=1 << 18)
    size = window.open(key)
    if size < _PREFIX.size:
        raise ValueError("the file ends within its header")
    magic, length, digest = _PREFIX.unpack(window.read(0, _PREFIX.size))
    count = int.from_bytes(length, "little")
    if magic != MAGIC or count > min(size - _PREFIX.size, header_limit(names)):
        raise ValueError("the file does not begin with a valid header")
    text = bytes(window.apart(_PREFIX.size, _PREFIX.size + count))
    if xxhash.xxh3_64_digest(text) != digest:
        raise ValueError("the header is damaged (XXH3 differs)")
    try:
        header = json.loads(text)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    parts = header if isinstance(header, dict) else {}
    if not all(isinstance(parts.get(part), dict) for part in ("tensors", "values")):
        raise ValueError("the header has no 'tensors' and 'values'")
    if parts.get("size") != size:
        said = str(parts.get("size"))[:20]
        raise ValueError(f"the file has {size} bytes, but its header says {said}")
    return dict(parts)


def layout_from_header(
    state: dict[str, Any], header: dict[str, Any]
) -> tuple[ContainerLayout, list[tuple[torch.Tensor, Bytes]]]:
    """Where each byte of the file goes, and the tensors that need a copy afterwards.

    ``header`` comes from ``read_header``. The second result has each tensor that is not contiguous,
    with the memory that its bytes are read into. Raises ValueError for a header of another state.
    """
    segments, copies = [], []
    size = int(header["size"])
    for name, leaf in leaves(state).items():
        if not isinstance(leaf, torch.Tensor):
            continue
        entry = header["tensors"].get(name)
        memory = raw(leaf)
        offset = entry.get("offset") if isinstance(entry, dict) else None
        if (
            type(offset) is not int
            or entry.get("dtype") != str(leaf.dtype)
            or entry.get("shape") != list(leaf.shape)
            or not 0 <= offset <= size - memory.nbytes
        ):
            raise ValueError(f"the header contradicts the manifest about '{name}'")
        if not leaf.is_contiguous():
            copies.append((leaf, memory))
        if memory.nbytes:
            segments.append(Segment(offset, memory))
    return ContainerLayout(size, sorted(segments, key=lambda s: s.offset)), copies
