"""Files of NumPy arrays (.npz): written byte by byte, and read without a copy.

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
from typing import ClassVar, cast

import numpy as np
import numpy.typing as npt

from ...base import payload
from ...base.buffers import Buffer
from ...base.limits import MAX_EXPANSION, MAX_NPY_HEADER
from .base import Content, at_least, fits

_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_BEGINS = b"PK\x01\x02"
_CRC = slice(14, 18)
"""Where a local header has the CRC-32 of its member, which is not looked at."""
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
        _CENTRAL.pack(_CENTRAL_BEGINS, 45 if zip64 else 20, *common, len(extra), 0, 0, 0, 0, 0)
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
    follows = bytes(content[position : position + len(_CENTRAL_BEGINS)])
    return arrays if arrays and follows == _CENTRAL_BEGINS else None


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
    head = bytes(content[start : start + 12])
    if len(head) < 12 or not head.startswith(b"\x93NUMPY"):
        return -1
    before = 12 if head[6] > 1 else 10
    begin = start + before + int.from_bytes(head[8:before], "little")
    if begin > min(start + 4096, end):
        return -1
    size = _array_bytes(bytes(content[start + before : begin]))
    return begin if size == end - begin else -1


@lru_cache(maxsize=4096)
def _array_bytes(header: bytes) -> int:
    """The bytes of the array that the text of a plain npy header describes, -1 for any other.

    It is kept, since arrays of one shape have the same header, and parsing costs more than reading.
    """
    match = _SHAPE.fullmatch(header)
    if match is None:
        return -1
    kind, shape = match.groups()
    try:
        size = np.dtype(kind.decode()).itemsize
    except TypeError:  # for example '<f3', which matches the pattern
        return -1
    for part in shape.replace(b" ", b"").split(b","):
        size *= int(part or b"1")
    return size


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


_ONES = 0xFFFFFFFF
_U32 = npt.NDArray[np.uint32]


def extend_over_blocks(
    crc: int, *, seed: int, index: int, first: int, count: int, compress_ratio: float
) -> int:
    """Extend a ``zlib.crc32`` by whole blocks of a sample's payload, which is not read.

    Returns the CRC-32 of bytes whose CRC-32 is ``crc``, followed by ``count`` blocks of sample
    ``index``, starting at block number ``first`` (1 or more).

    Reading the payload would take longer than making the bytes. A CRC is linear over XOR. A
    payload's block is a pool block XORed with a repeated key, so its CRC is the XOR of the pool
    block's (known) and the key's (eight table look-ups). The blocks' CRCs are then combined
    pairwise with the CRC's own "append zeros" operator. ``_raw`` is the CRC register with neither
    the initial nor the final complement, because only that part is linear.
    """
    zero_words = payload.zero_words(compress_ratio)
    pool_raw, key_tables = _tables(seed, zero_words)
    blocks = np.arange(first, first + count, dtype=np.int64)
    keys = payload.keys(seed, index, first, count)
    raw = pool_raw[blocks % len(pool_raw)]
    for byte in range(8):
        raw = raw ^ key_tables[byte, (keys >> np.uint64(8 * byte)).astype(np.uint8)]
    # The preceding bytes act as one more block in front; zeros in front of that change nothing.
    size = 1 << count.bit_length()
    folded = np.zeros(size, dtype=np.uint32)
    folded[size - count :] = raw
    folded[size - count - 1] = crc ^ _ONES
    shift = _shift_tables()
    while len(folded) > 1:
        folded = _apply(shift, folded[0::2]) ^ folded[1::2]
        shift = _squared(shift)
    return int(folded[0]) ^ _ONES


def _raw(data: bytes | memoryview, register: int = 0) -> int:
    return zlib.crc32(data, register ^ _ONES) ^ _ONES


@lru_cache(maxsize=4)
def _tables(seed: int, zero_words: int) -> tuple[_U32, _U32]:
    """(raw CRC of each pool block, raw CRC of repeated key bytes [8, 256]), uint32.

    The second table is for each of the 8 bytes of a key, and each of its 256 values. The leading
    zeros of a block contribute nothing.
    """
    pool = payload.pool(seed)[:, zero_words:]
    pool_raw = np.array([_raw(block.tobytes()) for block in pool], dtype=np.uint32)
    bits = [_raw((1 << bit).to_bytes(8, "little") * pool.shape[1]) for bit in range(64)]
    return pool_raw, np.stack([_span(bits[8 * byte : 8 * byte + 8]) for byte in range(8)])


@lru_cache(maxsize=1)
def _shift_tables() -> _U32:
    """The register after one block of zeros, for each value of each of its bytes: [4, 256]."""
    zeros = bytes(payload.BLOCK)
    bits = [_raw(zeros, 1 << bit) for bit in range(32)]
    return np.stack([_span(bits[8 * byte : 8 * byte + 8]) for byte in range(4)])


def _span(bits: list[int]) -> _U32:
    """The XOR of every subset of eight words: entry v combines the words of the bits set in v."""
    table = np.zeros(1, dtype=np.uint32)
    for word in bits:
        table = np.concatenate((table, table ^ np.uint32(word)))
    return table


def _apply(tables: _U32, register: _U32) -> _U32:
    """Apply a linear operator, given as tables, to each register."""
    low = register.astype("<u4").view(np.uint8).reshape(-1, 4)
    result: _U32 = (
        tables[0, low[:, 0]] ^ tables[1, low[:, 1]] ^ tables[2, low[:, 2]] ^ tables[3, low[:, 3]]
    )
    return result


def _squared(tables: _U32) -> _U32:
    """The operator applied twice."""
    return _apply(tables, tables.reshape(-1)).reshape(tables.shape)


_CRC_BLOCKS = 64
"""From this number of blocks on, deriving a CRC is cheaper than computing it from the bytes."""


class Npz(Content):
    """A stored .npz of one uint8 array ``x``.

    Any npz of plain arrays can be read; decoded, their bytes follow one another.
    """

    name: ClassVar[str] = "npz"
    suffix: ClassVar[str] = ".npz"
    min_bytes: ClassVar[int] = OVERHEAD + payload.STAMP_BYTES
    in_place: ClassVar[bool] = True

    def locate(self, content: Buffer) -> tuple[int, int]:
        arrays = stored_arrays(content)
        if arrays is None or len(arrays) != 1:
            raise ValueError("npz does not hold one stored array")
        return arrays[0]

    def locate_alike(
        self, memory: Buffer, starts: npt.NDArray[np.int64], size: int
    ) -> tuple[int, int] | None:
        """As ``Content.locate_alike``: all that ``locate`` looks at is the same in each sample."""
        arrays = stored_arrays(memory[starts[0] : starts[0] + size])
        if arrays is None or len(arrays) != 1:
            return None
        begin, end = arrays[0]
        seen = np.r_[: _CRC.start, _CRC.stop : begin, end : end + len(_CENTRAL_BEGINS)]
        found = np.frombuffer(memory, np.uint8)[starts[:, np.newaxis] + seen]
        return (begin, end) if (found == found[0]).all() else None

    def build(self, out: Buffer, *, seed: int, index: int, compress_ratio: float) -> None:
        at_least(self.name, self.min_bytes, out)
        data = out[DATA_OFFSET : DATA_OFFSET + data_bytes(len(out))]
        payload.fill(data, seed=seed, index=index, compress_ratio=compress_ratio)

        def crc_of(before: int) -> int:
            whole = len(data) // payload.BLOCK - 1
            if whole < _CRC_BLOCKS:
                return zlib.crc32(data, before)
            end = (whole + 1) * payload.BLOCK
            before = zlib.crc32(data[: payload.BLOCK], before)  # the first block contains the stamp
            before = extend_over_blocks(
                before, seed=seed, index=index, first=1, count=whole, compress_ratio=compress_ratio
            )
            return zlib.crc32(data[end:], before)

        write_around(out, crc_of)

    def identify(self, content: Buffer) -> tuple[int, int] | None:
        return payload.identify(content[DATA_OFFSET:])

    def decoded_bytes(self, content: Buffer) -> int:
        stored = stored_arrays(content)
        if stored is not None:
            return sum(end - begin for begin, end in stored)
        with readable():
            return sum(size for size, _ in open_arrays(content))

    def decode(self, content: Buffer, out: Buffer) -> int:
        done = 0
        stored = stored_arrays(content)
        if stored is not None:
            fits(sum(end - begin for begin, end in stored), out)
            for begin, end in stored:
                out[done : done + end - begin] = content[begin:end]
                done += end - begin
            return done
        with readable():
            for size, member in open_arrays(content):
                fits(done + size, out)
                end = done + size
                while done < end:
                    count = member.readinto(out[done:end])
                    if not count:
                        raise ValueError("npz is truncated")
                    done += count
        return done


class Arrays(Npz):
    """Any .npz: the raw bytes of its arrays, decompressed, one after another.

    ``build`` makes the same file as for ``npz``.
    """

    name: ClassVar[str] = "arrays"
    in_place: ClassVar[bool] = False

    def locate(self, content: Buffer) -> tuple[int, int]:
        raise ValueError("the arrays of an npz file are not one slice of it: they must be decoded")
