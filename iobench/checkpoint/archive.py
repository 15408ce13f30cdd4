"""What ``torch.save`` writes, looked into before ``torch.load`` is let near it.

An archive is a zip file (APPNOTE.TXT 6.3) of a pickle, ``data.pkl``, and a member for each
tensor's memory. torch writes members as they are; a deflated one may hold a thousand times its
length. The pickle may call constructors that take as much memory as they are told. So members must
be stored, and the pickle must describe tensors that lie within them, and plain values.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from ..limits import header_limit
from .pickles import Grammar, Refused, interpret

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
_STORED = 0
_ENCRYPTED = 1
_TAIL = 4 << 10
"""Bytes: the directory of an archive of one tensor, and what comes behind it, are shorter."""

_SMALL = 64
"""Bytes of members that torch reads beside the pickle and the tensors: versions, byte order."""

_DATA = re.compile(r"data/(\d{1,10})")

Read = Callable[[int, int], bytes]
"""Bytes of the archive from one place to another, which lie within it."""


class Member(NamedTuple):
    offset: int  # of its header
    size: int


class Described(NamedTuple):
    """A tensor by its type and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def kind(self) -> str:
        """As ``leaves.kind`` has it."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}".replace(" ", "")


class _Storage(NamedTuple):
    dtype: torch.dtype
    elements: int


def described(read: Read, size: int, names: list[str]) -> Any:
    """What an archive of ``size`` bytes holds, with each tensor ``Described``.

    ``names`` are those of the tensors that it should hold. Raises Refused, ValueError.
    """
    read = _with_tail(read, size)
    members = _members(read, size)
    pickled = members.get("data.pkl")
    limit = header_limit(names)
    if pickled is None or pickled.size > limit:
        raise ValueError(
            f"its pickle has {pickled.size} bytes; the limit is {limit}"
            if pickled is not None
            else "it is no archive of torch.save: it has no pickle"
        )
    tensors = {
        match[1]: member.size
        for name, member in members.items()
        if (match := _DATA.fullmatch(name)) is not None
    }
    return interpret(_content(read, pickled, size), _grammar(tensors))


def flat(value: Any, prefix: str = "") -> dict[str, str]:
    """Name -> kind of each leaf of a described state, as ``leaves.kind`` has it.

    Raises ValueError for what no state holds.
    """
    found: dict[str, str] = {}
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__} where a state should be")
    for key, item in value.items():
        name = f"{prefix}{key}"
        if isinstance(item, dict):
            found |= flat(item, f"{name}/")
        elif isinstance(item, Described):
            found[name] = item.kind
        elif isinstance(item, int | float | str):
            found[name] = type(item).__name__
        else:
            raise ValueError(f"'{name}' is a {type(item).__name__}")
    return found


# The zip file


def _with_tail(read: Read, size: int) -> Read:
    """The same with the end in memory, where the directory is, mostly in one piece."""
    start = max(0, size - _TAIL)
    tail = read(start, size)
    return lambda begin, end: (
        tail[begin - start : end - start] if begin >= start else read(begin, end)
    )


def _members(read: Read, size: int) -> dict[str, Member]:
    """By their names below the archive's one folder."""
    begin, length, count = _directory(read, size)
    data = read(begin, begin + length)
    found: dict[str, Member] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > length:
            raise ValueError("its directory ends too early")
        entry = _ENTRY.unpack_from(data, position)
        flags, method, packed, plain = entry[3], entry[4], entry[8], entry[9]
        name_bytes, extra_bytes, comment_bytes, offset = entry[10], entry[11], entry[12], entry[16]
        position += _ENTRY.size
        name = data[position : position + name_bytes].decode("utf-8", "replace")
        extra = data[position + name_bytes : position + name_bytes + extra_bytes]
        position += name_bytes + extra_bytes + comment_bytes
        if entry[0] != b"PK\x01\x02" or position > length:
            raise ValueError("its directory is damaged")
        plain, packed, offset = _wide(extra, [plain, packed, offset])
        if method != _STORED or flags & _ENCRYPTED or packed != plain:
            raise ValueError(f"its member '{name}' is compressed, which torch.save never does")
        if offset + _LOCAL.size + plain > begin:
            raise ValueError(f"its member '{name}' would end behind the members")
        name = name.partition("/")[2]
        if name in found:
            raise ValueError(f"it has two members '{name}'")
        if name in ("byteorder", "version", ".format_version", ".storage_alignment"):
            if plain > _SMALL:
                raise ValueError(f"its member '{name}' has {plain} bytes")
        elif name == "constants.pkl":
            raise Refused("a TorchScript program")
        found[name] = Member(offset, plain)
    if sum(member.size for member in found.values()) > begin:
        raise ValueError("its members lie upon one another")
    return found


def _directory(read: Read, size: int) -> tuple[int, int, int]:
    """Where the directory begins, its length, and the number of its entries."""
    if size < _END.size:
        raise ValueError("it is no archive of torch.save")
    end = size - _END.size
    magic, _, _, _, count, length, begin, comment = _END.unpack(read(end, size))
    if magic != b"PK\x05\x06" or comment:
        raise ValueError("it is no archive of torch.save: it does not end as a zip file")
    if count == _MAX16 or _MAX32 in (length, begin):
        if end < _LOCATOR.size:
            raise ValueError("its directory is damaged")
        magic, _, wide, _ = _LOCATOR.unpack(read(end - _LOCATOR.size, end))
        if magic != b"PK\x06\x07" or wide + _END64.size > end:
            raise ValueError("its directory is damaged")
        found = _END64.unpack(read(wide, wide + _END64.size))
        if found[0] != b"PK\x06\x06":
            raise ValueError("its directory is damaged")
        count, length, begin, end = found[7], found[8], found[9], wide
    if begin + length > end or count * _ENTRY.size > length:
        raise ValueError("its directory is damaged")
    return begin, length, count


def _wide(extra: bytes, numbers: list[int]) -> list[int]:
    """Numbers of more than 32 bits, which an entry has in its extra field, in their order."""
    position = 0
    while position + 4 <= len(extra) and _MAX32 in numbers:
        kind, length = struct.unpack_from("<HH", extra, position)
        position += 4
        if kind == 1:
            wide = [
                int.from_bytes(extra[place : place + 8], "little")
                for place in range(position, min(position + length, len(extra)), 8)
            ]
            numbers = [wide.pop(0) if n == _MAX32 and wide else n for n in numbers]
        position += length
    return numbers


def _content(read: Read, member: Member, size: int) -> bytes:
    header = _LOCAL.unpack(read(member.offset, member.offset + _LOCAL.size))
    begin = member.offset + _LOCAL.size + header[9] + header[10]
    if header[0] != b"PK\x03\x04" or begin + member.size > size:
        raise ValueError("its pickle is not where its directory says")
    return read(begin, begin + member.size)


# The pickle


def _grammar(sizes: dict[str, int]) -> Grammar:
    """Of an archive whose members of tensors have these ``sizes`` in bytes."""

    def storage(*arguments: object) -> _Storage:
        kind, dtype, key, _, count = arguments
        if kind != "storage" or type(key) is not str or type(count) is not int:
            raise Refused("an object that is no tensor's memory")
        if not isinstance(dtype, torch.dtype) or not 0 <= count * dtype.itemsize <= sizes[key]:
            raise ValueError(f"a tensor's memory claims {count} elements of {sizes[key]} bytes")
        return _Storage(dtype, count)

    return Grammar(constants=_CONSTANTS, calls=_CALLS, storage=storage)


def _tensor(*arguments: object) -> Described:
    """``_rebuild_tensor_v2``: storage, offset, shape, strides, requires_grad, hooks."""
    storage, offset, shape, strides, grad, hooks = arguments
    if not isinstance(storage, _Storage) or type(grad) is not bool or hooks != {}:
        raise Refused("a tensor with more than numbers")
    return _within(storage, offset, shape, strides, storage.dtype)


def _tensor_v3(*arguments: object) -> Described:
    """``_rebuild_tensor_v3``: the same of types that have no storage of their own."""
    storage, offset, shape, strides, grad, hooks, dtype = arguments
    if not isinstance(storage, _Storage) or type(grad) is not bool or hooks != {}:
        raise Refused("a tensor with more than numbers")
    if not isinstance(dtype, torch.dtype):
        raise ValueError("a tensor has no type")
    return _within(storage, offset, shape, strides, dtype)


def _within(
    storage: _Storage, offset: object, shape: object, strides: object, dtype: torch.dtype
) -> Described:
    if type(offset) is not int or offset < 0:
        raise ValueError("a tensor's place is none")
    sizes, steps = _numbers(shape), _numbers(strides)
    if len(sizes) != len(steps):
        raise ValueError("a tensor's shape and strides do not fit")
    nbytes = storage.elements * storage.dtype.itemsize
    last = offset + sum((size - 1) * step for size, step in zip(sizes, steps, strict=True))
    if 0 not in sizes and (last + 1) * dtype.itemsize > nbytes:
        raise ValueError(f"a tensor would end behind its {nbytes} bytes of memory")
    return Described(dtype, sizes)


def _numbers(value: object) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(n) is int and 0 <= n < 1 << 63 for n in value):
        raise ValueError("a tensor's shape is none")
    return value


def _parameter(*arguments: object) -> Described:
    """``_rebuild_parameter``: tensor, requires_grad, hooks."""
    tensor, _, hooks = arguments
    if not isinstance(tensor, Described) or hooks != {}:
        raise Refused("a parameter with more than numbers")
    return tensor


def _hooks(*arguments: object) -> dict[str, object]:
    if arguments:
        raise Refused("an OrderedDict that is not empty")
    return {}


def _storages() -> dict[tuple[str, str], object]:
    """The names of types that pickles of tensors have."""
    found: dict[tuple[str, str], object] = {
        ("torch", name): value
        for name, value in vars(torch).items()
        if isinstance(value, torch.dtype)
    }
    for name, dtype in (
        ("Double", torch.float64),
        ("Float", torch.float32),
        ("Half", torch.float16),
        ("BFloat16", torch.bfloat16),
        ("Long", torch.int64),
        ("Int", torch.int32),
        ("Short", torch.int16),
        ("Char", torch.int8),
        ("Byte", torch.uint8),
        ("Bool", torch.bool),
        ("ComplexFloat", torch.complex64),
        ("ComplexDouble", torch.complex128),
    ):
        found["torch", f"{name}Storage"] = dtype
    found["torch.storage", "UntypedStorage"] = torch.uint8
    return found


_CONSTANTS = _storages()
_CALLS = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): _hooks,
}
