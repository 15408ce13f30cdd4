"""What the metadata of torch.distributed.checkpoint may hold: shapes, types and places.

The library pickles its metadata. ``read`` builds the library's own objects from such a pickle, by
functions that check each value, so that each field has the type that it should have.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint import metadata

from .dcp_compat import MemoryFormat, StorageInfo
from .pickles import Build, Grammar, Name, Refused, interpret

_MODULE = metadata.__name__
_ENUM = (_MODULE, "_MEM_FORMAT_ENCODING")
_LIMIT = 1 << 63


def read(data: bytes) -> metadata.Metadata:
    """The metadata. Raises Refused if it asks for anything else, ValueError if it is damaged."""
    found = interpret(data, _GRAMMAR)
    if not isinstance(found, metadata.Metadata):
        raise ValueError("it is not DCP metadata")
    return found


def _size(*arguments: object) -> torch.Size:
    (numbers,) = arguments
    if type(numbers) is not tuple or not all(
        type(number) is int and 0 <= number < _LIMIT for number in numbers
    ):
        raise ValueError("a shape is not a tuple of whole numbers")
    return torch.Size(numbers)


def _path(*parts: object) -> pathlib.PurePosixPath:
    return pathlib.PurePosixPath(*(_text(part) for part in parts))


def _layout(*arguments: object) -> torch.layout:
    if arguments != ("torch.strided",):
        raise Refused("a layout that no checkpoint's tensor has")
    return torch.strided


def _memory_format(*arguments: object) -> Any:
    (number,) = arguments
    if type(number) is not int:
        raise ValueError("a memory format is not a whole number")
    return MemoryFormat(number)


def _member(*arguments: object) -> Any:
    """Replaces ``getattr``, by which early versions of Python 3.11 pickle members of an Enum."""
    enum, name = arguments
    members = MemoryFormat.__members__
    if not isinstance(enum, Name) or enum.name != _ENUM or type(name) is not str:
        raise Refused("builtins.getattr")
    if name not in members:
        raise Refused(f"builtins.getattr of {name}"[:200])
    return members[name]


# Checks of fields. Each returns the value to keep, or raises ValueError.

Check = Callable[[object], object]


def _is(*kinds: type) -> Check:
    def check(value: object) -> object:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"a field holds a {type(value).__name__}")
        return value

    return check


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"a text field holds a {type(value).__name__}")
    return value


def _count(value: object) -> object:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise ValueError("a count is not a whole number")
    return value


def _each(check: Check) -> Check:
    def checked(value: object) -> object:
        if type(value) is not list:
            raise ValueError("a list field does not hold a list")
        for item in value:
            check(item)
        return value

    return checked


def _by(key: type, check: Check) -> Check:
    """Check a dict: the type of its keys, and its values."""

    def checked(value: object) -> object:
        if type(value) is not dict or not all(type(name) is key for name in value):
            raise ValueError("a dict field does not hold a dict with the right keys")
        for item in value.values():
            check(item)
        return value

    return checked


def _or_none(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _place(value: object) -> object:
    """A leaf's place in the state: the keys that lead to it."""
    if type(value) is not tuple or not all(type(part) in (str, int) for part in value):
        raise ValueError("a leaf's place is not a tuple of keys")
    return value


def _nothing(value: object) -> object:
    if value is not None and value != ():
        raise Refused("bytes that need a transformation when they are read")
    return value


_FIELDS: dict[type, dict[str, Check]] = {
    metadata.Metadata: {
        "state_dict_metadata": _by(
            str, _is(metadata.TensorStorageMetadata, metadata.BytesStorageMetadata)
        ),
        "planner_data": _or_none(_by(str, _place)),
        "storage_data": _by(metadata.MetadataIndex, _is(StorageInfo)),
        "storage_meta": _or_none(_is(metadata.StorageMeta)),
        "version": _or_none(_text),
    },
    metadata.TensorStorageMetadata: {
        "properties": _is(metadata.TensorProperties),
        "size": _is(torch.Size),
        "chunks": _each(_is(metadata.ChunkStorageMetadata)),
    },
    metadata.ChunkStorageMetadata: {"offsets": _is(torch.Size), "sizes": _is(torch.Size)},
    metadata.BytesStorageMetadata: {},
    metadata.MetadataIndex: {
        "fqn": _text,
        "offset": _or_none(_is(torch.Size)),
        "index": _or_none(_count),
    },
    metadata.StorageMeta: {
        "checkpoint_id": _or_none(_is(str, pathlib.PurePosixPath)),
        "save_id": _or_none(_text),
        "load_id": _or_none(_text),
        "modules": _each(_text),
    },
    StorageInfo: {
        "relative_path": _text,
        "offset": _count,
        "length": _count,
        "transform_descriptors": _nothing,
    },
}
"""The fields of each class, as torch 2.4 to 2.13 pickle them."""


def _fields(kind: Any) -> Build:
    """Set each field of an instance; fields that its state lacks get the class's default."""
    checks = _FIELDS[kind]
    defaults = {field.name: field for field in dataclasses.fields(kind)}

    def build(made: Any, state: object) -> None:
        if type(state) is not dict or not checks.keys() >= state.keys():
            raise Refused(f"a {kind.__name__} with unknown fields")
        for name, field in defaults.items():
            if name in state:
                value = checks[name](state[name])
            elif field.default is not dataclasses.MISSING:
                value = field.default
            elif field.default_factory is not dataclasses.MISSING:
                value = field.default_factory()
            else:
                raise ValueError(f"a {kind.__name__} without '{name}'")
            object.__setattr__(made, name, value)

    return build


_PROPERTIES: tuple[Check, ...] = (
    _is(torch.dtype),
    _is(torch.layout),
    _is(bool),
    _is(MemoryFormat),
    _is(bool),
)


def _properties(made: Any, state: object) -> None:
    if type(state) is not tuple or len(state) != len(_PROPERTIES):
        raise ValueError("a tensor's properties are not the expected tuple")
    for check, value in zip(_PROPERTIES, state, strict=True):
        check(value)
    made.__setstate__(state)


def _objects(kinds: Iterable[Any]) -> dict[tuple[str, str], tuple[Callable[[], object], Build]]:
    found: dict[tuple[str, str], tuple[Callable[[], object], Build]] = {}
    for kind in kinds:
        build = _properties if kind is metadata.TensorProperties else _fields(kind)
        found[kind.__module__, kind.__qualname__] = partial(kind.__new__, kind), build
    return found


_GRAMMAR = Grammar(
    constants={
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    },
    calls={
        ("torch", "Size"): _size,
        ("torch.serialization", "_get_layout"): _layout,
        _ENUM: _memory_format,
        ("builtins", "getattr"): _member,
        ("__builtin__", "getattr"): _member,  # its name in pickles of protocol 2
        ("pathlib", "PosixPath"): _path,
        ("pathlib", "PurePosixPath"): _path,
        ("pathlib._local", "PosixPath"): _path,
    },
    objects=_objects([*_FIELDS, metadata.TensorProperties]),
    optional=(metadata.BytesStorageMetadata,),
    keys=(str, metadata.MetadataIndex),
)
