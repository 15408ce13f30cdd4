"""The zip and npy layout of an .npz: written byte by byte, and read without a copy.

Zip: APPNOTE.TXT 6.3; npy: numpy.lib.format, version 1.0. Stored (uncompressed) members whose header
states their size are parsed here, which is several times faster than np.load. All others (deflated
or streamed) are read with zipfile.
"""

from __future__ import annotations

import io
import math
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import cast

import numpy as np

from ...base.buffers import Buffer
from ...base.limits import MAX_EXPANSION, MAX_NPY_HEADER

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_ZIP64_EXTRA = struct.Struct("<HHQQ")
_MAX32 = 0xFFFFFFFF
_DOS_EPOCH = (0 << 9 | 1 << 5 | 1, 0)
"""1980-01-01 00:00 as a (date, time) of DOS, so that the bytes do not depend on the clock."""
_NAME = b"x.npy"
_LOCAL_BYTES = 64  # padded by an extra field, so that the array starts at a multiple of 64
_NPY_BYTES = 128
_PADDING_ID = 0xD935  # the extra field that Android's zipalign uses

DATA_OFFSET = _LOCAL_BYTES + _NPY_BYTES
_TRAILER = _CENTRAL.size + len(_NAME) + _END.size
_TRAILER64 = _TRAILER + _ZIP64_EXTRA.size + _END64.size + _LOCATOR.size
OVERHEAD = DATA_OFFSET + _TRAILER

_SHAPE = re.compile(
    rb"\{'descr': '([<>|=][biufcSUmMV]\d+)', 'fortran_order': (?:False|True), "
    rb"'shape': \(([\d, ]*)\), \}\s*"
)


def data_bytes(total: int) -> int:
    """Elements of the uint8 array in a file of ``total`` bytes."""
    small = total - OVERHEAD
    return small if small + _NPY_BYTES < _MAX32 else total - DATA_OFFSET - _TRAILER64


def write_around(out: Buffer, crc_of: Callable[[int], int]) -> None:
    """Write the whole file around the array's bytes, which are in place from DATA_OFFSET on.

    ``crc_of`` extends the CRC-32 of the npy header over the array's bytes.
    """
    size = data_bytes(len(out))
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d,), }" % size
    out[_LOCAL_BYTES:DATA_OFFSET] = (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", _NPY_BYTES - 10)
        + header.ljust(_NPY_BYTES - 11)
        + b"\n"
    )
    member = size + _NPY_BYTES
    zip64 = member >= _MAX32
    crc = crc_of(zlib.crc32(out[_LOCAL_BYTES:DATA_OFFSET]))
    extra = _ZIP64_EXTRA.pack(1, 16, member, member) if zip64 else b""
    room = _LOCAL_BYTES - _LOCAL.size - len(_NAME)
    padding = struct.pack("<HH", _PADDING_ID, room - len(extra) - 4) + bytes(room - len(extra) - 4)
    stated = _MAX32 if zip64 else member
    common = (
        45 if zip64 else 20,
        0,
        zipfile.ZIP_STORED,
        _DOS_EPOCH[1],
        _DOS_EPOCH[0],
        crc,
        stated,
        stated,
        len(_NAME),
    )
    out[:_LOCAL_BYTES] = _LOCAL.pack(b"PK\x03\x04", *common, room) + _NAME + extra + padding

    central = (
        _CENTRAL.pack(b"PK\x01\x02", 45 if zip64 else 20, *common, len(extra), 0, 0, 0, 0, 0)
        + _NAME
        + extra
    )
    start = _LOCAL_BYTES + member
    tail = central
    if zip64:
        tail += _END64.pack(
            b"PK\x06\x06", _END64.size - 12, 45, 45, 0, 0, 1, 1, len(central), start
        )
        tail += _LOCATOR.pack(b"PK\x06\x07", 0, start + len(central), 1)
    tail += _END.pack(b"PK\x05\x06", 0, 0, 1, 1, len(central), _MAX32 if zip64 else start, 0)
    out[start:] = tail


def stored_arrays(content: Buffer) -> list[tuple[int, int]] | None:
    """Begin and end of each array's bytes in a stored npz.

    None if the file is not a plain stored npz, and has to be read with ``open_arrays``.
    """
    arrays: list[tuple[int, int]] = []
    position, total = 0, len(content)
    while position + _LOCAL.size <= total:
        signature, _, flags, method, _, _, _, packed, size, name_bytes, extra_bytes = (
            _LOCAL.unpack_from(content, position)
        )
        if signature != b"PK\x03\x04":
            break
        start = position + _LOCAL.size + name_bytes + extra_bytes
        if flags & 0x9 or method != zipfile.ZIP_STORED:  # encrypted, or the sizes follow the data
            return None
        if size == _MAX32:
            size = packed = _zip64_size(content[start - extra_bytes : start])
        position = start + size
        if packed != size or position > total:
            return None
        begin = _array_begin(content, start, position)
        if begin < 0:
            return None
        arrays.append((begin, position))
    return arrays if arrays and bytes(content[position : position + 4]) == b"PK\x01\x02" else None


def _zip64_size(extra: Buffer) -> int:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == 1 and length >= 8 and position + 12 <= len(extra):
            return int(struct.unpack_from("<Q", extra, position + 4)[0])
        position += 4 + length
    return -1


def _array_begin(content: Buffer, start: int, end: int) -> int:
    """Where the bytes begin behind a plain npy header that agrees with its member's length.

    -1 if there is no such header. ``start`` and ``end``: of the member in ``content``.
    """
    head = bytes(content[start : min(start + 4096, end)])
    if len(head) < 12 or not head.startswith(b"\x93NUMPY"):
        return -1
    wide = head[6] > 1
    before = 12 if wide else 10
    begin = before + int.from_bytes(head[8:before], "little")
    match = _SHAPE.fullmatch(head, before, min(begin, len(head)))
    if match is None:
        return -1
    kind, shape = match.groups()
    try:
        size = _item_bytes(kind)
    except TypeError:  # for example '<f3', which matches the pattern
        return -1
    for part in shape.replace(b" ", b"").split(b","):
        size *= int(part or b"1")
    return start + begin if size == end - start - begin else -1


@lru_cache
def _item_bytes(descr: bytes) -> int:
    return np.dtype(descr.decode()).itemsize


def open_arrays(content: Buffer) -> Iterator[tuple[int, zipfile.ZipExtFile]]:
    """Yield (bytes, reader at the start of the data) for each array of any npz, with zipfile.

    Use it inside ``with readable()``.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        left = len(content)
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            # Members that overlap could decompress to far more than the file holds.
            left -= info.compress_size
            most = info.compress_size * (
                MAX_EXPANSION if info.compress_type == zipfile.ZIP_DEFLATED else 1
            )
            if (
                info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                or left < 0
                or info.file_size > most
            ):
                raise ValueError(
                    f"npz member claims a size of {info.file_size} bytes, which it can't hold "
                    f"({info.compress_size} stored)"
                )
            with cast(zipfile.ZipExtFile, archive.open(info)) as member:
                yield _array_size(member, info.file_size), member


@contextmanager
def readable() -> Iterator[None]:
    """Convert the errors of zipfile and numpy for a damaged file to a ValueError of one line."""
    try:
        yield
    except ValueError as error:
        raise ValueError(" ".join(str(error).split())[:200]) from None
    except _DAMAGED as error:
        raise ValueError(
            f"not a readable npz: {' '.join(str(error).split())[:200] or type(error).__name__}"
        ) from None


_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, OverflowError),
    # NumPy raises these for a header that is no literal or no dtype, or is nested too deep.
    *(TypeError, LookupError, SyntaxError, tokenize.TokenError, MemoryError),
)


def _array_size(stream: zipfile.ZipExtFile, file_size: int) -> int:
    """Bytes of the array that follows, from its header, which must agree with the member's size.

    The size of the header is limited before it is read, so neither the array nor the header can
    claim more memory than the file justifies.
    """
    version = np.lib.format.read_magic(stream)
    read, length_bytes = {
        (1, 0): (np.lib.format.read_array_header_1_0, 2),
        (2, 0): (np.lib.format.read_array_header_2_0, 4),
    }.get(version, (None, 0))
    if read is None:
        raise ValueError(f"npy version {version[0]}.{version[1]} is not supported")
    length = int.from_bytes(stream.peek(length_bytes)[:length_bytes], "little")
    if length > MAX_NPY_HEADER:
        raise ValueError(
            f"npz member's header claims {length} bytes; the limit is {MAX_NPY_HEADER}"
        )
    shape, _, dtype = read(stream)
    if dtype.hasobject:
        raise ValueError("npz holds Python objects, which are never unpickled")
    size = dtype.itemsize * math.prod(shape)
    if stream.tell() + size != file_size:
        raise ValueError("npz member's header does not agree with its size")
    return size
