"""Inspect archives of ``torch.save`` before ``torch.load`` reads them.

An archive is a zip file (APPNOTE.TXT 6.3) of a pickle, ``data.pkl``, and one member for each
tensor's memory. torch never compresses members; a compressed one may expand to a thousand times its
length. The pickle may call constructors that allocate as much memory as it says. So all members
must be uncompressed, and the pickle may describe only plain values, and tensors inside the members.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ..limits import header_limit
from .described import grammar
from .pickles import Refused, interpret

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MAX32, _MAX16 = 0xFFFFFFFF, 0xFFFF
_STORED = 0
_ENCRYPTED = 1
_TAIL = 4 << 10
"""Bytes at the end that hold the whole directory of an archive of one tensor."""

_SMALL = 64
"""Largest size in bytes of the small members that torch reads: versions, byte order."""

_DATA = re.compile(r"data/(\d{1,10})")

Read = Callable[[int, int], bytes]
"""(start, end) -> these bytes of the archive; both lie within it."""


class Member(NamedTuple):
    offset: int  # of its header
    size: int


def described(read: Read, size: int, names: list[str]) -> Any:
    """The content of an archive of ``size`` bytes, each tensor as ``Described``.

    ``names``: the tensors that it should hold. Raises Refused, ValueError.
    """
    read = _with_tail(read, size)
    members = _members(read, size)
    pickled = members.get("data.pkl")
    limit = header_limit(names)
    if pickled is None or pickled.size > limit:
        raise ValueError(
            f"its pickle has {pickled.size} bytes; the limit is {limit}"
            if pickled is not None
            else "it is not an archive of torch.save: it has no pickle"
        )
    tensors = {
        match[1]: member.size
        for name, member in members.items()
        if (match := _DATA.fullmatch(name)) is not None
    }
    return interpret(_content(read, pickled, size), grammar(tensors))


# The zip file


def _with_tail(read: Read, size: int) -> Read:
    """``read`` with the end of the archive, where the directory is, in memory."""
    start = max(0, size - _TAIL)
    tail = read(start, size)
    return lambda begin, end: (
        tail[begin - start : end - start] if begin >= start else read(begin, end)
    )


def _members(read: Read, size: int) -> dict[str, Member]:
    """The members by name, without the archive's one folder."""
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
            raise ValueError(f"its member '{name}' ends beyond the members")
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
        raise ValueError("its members overlap")
    return found


def _directory(read: Read, size: int) -> tuple[int, int, int]:
    """The directory's begin and length in bytes, and the number of its entries."""
    if size < _END.size:
        raise ValueError("it is not an archive of torch.save")
    end = size - _END.size
    magic, _, _, _, count, length, begin, comment = _END.unpack(read(end, size))
    if magic != b"PK\x05\x06" or comment:
        raise ValueError("it is not an archive of torch.save: it does not end as a zip file")
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
    """Replace numbers of more than 32 bits, in order, by those in the entry's extra field."""
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
