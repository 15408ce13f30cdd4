"""The metadata of torch.distributed.checkpoint (DCP), which the library itself would unpickle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch.distributed.checkpoint import metadata

from . import archive
from .archive import StandIn
from .dcp_compat import StorageInfo

T = TypeVar("T")
_LIMIT = 1 << 63


def read(data: bytes) -> metadata.Metadata:
    """Return what a restore needs of a ``.metadata`` file: each tensor's pieces, and their places.

    Nothing of the file is executed. Raises ValueError if it isn't metadata, or is damaged.
    """
    found = _fields(archive.unpickled(data), metadata.Metadata)
    return metadata.Metadata(
        state_dict_metadata={
            _is(name, str): _leaf(leaf)
            for name, leaf in _is(found.get("state_dict_metadata"), dict).items()
        },
        storage_data={
            _index(index): _place(place)
            for index, place in _is(found.get("storage_data"), dict).items()
        },
        storage_meta=metadata.StorageMeta(),
    )


def _leaf(leaf: Any) -> metadata.TensorStorageMetadata | metadata.BytesStorageMetadata:
    if _name(leaf) == metadata.BytesStorageMetadata.__qualname__:
        return metadata.BytesStorageMetadata()
    fields = _fields(leaf, metadata.TensorStorageMetadata)
    pieces = [
        _fields(piece, metadata.ChunkStorageMetadata) for piece in _is(fields.get("chunks"), list)
    ]
    return metadata.TensorStorageMetadata(
        properties=metadata.TensorProperties(),  # a restore goes by the state's own
        size=_size(fields.get("size")),
        chunks=[
            metadata.ChunkStorageMetadata(_size(piece.get("offsets")), _size(piece.get("sizes")))
            for piece in pieces
        ],
    )


def _index(index: Any) -> metadata.MetadataIndex:
    fields = _fields(index, metadata.MetadataIndex)
    offset, number = fields.get("offset"), fields.get("index")
    return metadata.MetadataIndex(
        _is(fields.get("fqn"), str),
        None if offset is None else _size(offset),
        None if number is None else _count(number),
    )


def _place(place: Any) -> Any:
    fields = _fields(place, StorageInfo)
    if fields.get("transform_descriptors"):
        raise ValueError("bytes need a transformation when they are read")
    return StorageInfo(
        _is(fields.get("relative_path"), str),
        _count(fields.get("offset")),
        _count(fields.get("length")),
    )


def _name(made: Any) -> str:
    return made.kind[1] if isinstance(made, StandIn) else ""


def _fields(made: Any, kind: type) -> dict[str, Any]:
    """The fields of a stand-in for an instance of ``kind``."""
    if _name(made) != kind.__qualname__ or not isinstance(made.state, dict):
        raise ValueError(
            f"it holds something else where its {kind.__qualname__} should be; nothing was executed"
        )
    return made.state


def _size(made: Any) -> torch.Size:
    if _name(made) != "Size" or len(made.args) != 1:
        raise ValueError("a shape is not a tuple of whole numbers")
    return torch.Size(_counts(_is(made.args[0], tuple)))


def _counts(values: Iterable[Any]) -> list[int]:
    return [_count(value) for value in values]


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ValueError("a count is not a whole number")
    return value


def _is(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is a {type(value).__name__}")
    return value
