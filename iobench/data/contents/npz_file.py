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


def stored_arrays(content: Buffer) -> list[Buffer] | None:
    """The bytes of each array of a stored npz, as views.

    None if the file is not a plain stored npz, and has to be read with ``open_arrays``.
    """
    arrays: list[Buffer] = []
    position = 0
    while (
        bytes(content[position : position + 4]) == b"PK\x03\x04"
        and len(content) >= position + _LOCAL.size
    ):
        _, _, flags, method, _, _, _, packed, size, name_bytes, extra_bytes = _LOCAL.unpack_from(
            content, position
        )
        start = position + _LOCAL.size + name_bytes + extra_bytes
        if flags & 0x9 or method != zipfile.ZIP_STORED:  # encrypted, or the sizes follow the data
            return None
        if size == _MAX32:
            size = packed = _zip64_size(content[start - extra_bytes : start])
        if packed != size or start + size > len(content):
            return None
        array = _array_bytes(content[start : start + size])
        if array is None:
            return None
        arrays.append(array)
        position = start + size
    return arrays if arrays and bytes(content[position : position + 4]) == b"PK\x01\x02" else None


def _zip64_size(extra: Buffer) -> int:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == 1 and length >= 8 and position + 12 <= len(extra):
            return int(struct.unpack_from("<Q", extra, position + 4)[0])
        position += 4 + length
    return -1


def _array_bytes(member: Buffer) -> Buffer | None:
    """The bytes behind a plain npy header that agrees with the member's length, else None."""
    if len(member) < 12 or bytes(member[:6]) != b"\x93NUMPY":
        return None
    wide = member[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", member, 8)
    start = (12 if wide else 10) + length
    match = _SHAPE.fullmatch(bytes(member[start - length : min(start, 4096)]))
    if match is None:
        return None
    shape = [int(part) for part in match.group(2).replace(b" ", b"").split(b",") if part]
    try:
        each = np.dtype(match.group(1).decode()).itemsize
    except TypeError:  # for example '<f3', which matches the pattern
        return None
    if each * math.prod(shape) != len(member) - start:
        return None
    return member[start:]


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
