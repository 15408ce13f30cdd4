"""POSIX tar shards, as the webdataset library reads them.

ustar (POSIX.1-1988), pax (POSIX.1-2001) and GNU long names. Everything happens in memory and
nothing is ever extracted, so a member's name ('../x', '/etc/x') can do no harm.
"""

from __future__ import annotations

from typing import ClassVar, Self

from ...base.buffers import Buffer
from ...record.packing import label_of
from .base import Frame, Framed

_BLOCK = 512
_END = bytes(2 * _BLOCK)
_OCTAL_LIMIT = 8**11


_LABEL = ".cls"
_LABEL_BYTES = 2 * _BLOCK
"""A label's member: its header, and its decimal digits."""


class Tar(Framed):
    """Each sample is one member, ``000000042.npz``: the webdataset key is the sample's number.

    With ``labels``, a member ``000000042.cls`` follows it: the sample's class, as webdataset has it
    (decimal digits).
    """

    name: ClassVar[str] = "tar"
    suffix: ClassVar[str] = ".tar"
    has_checksums: ClassVar[bool] = True

    def __init__(self, labels: int | None = None) -> None:
        self.labels = labels

    def labelled(self, labels: int) -> Self:
        return type(self)(labels)

    def frame(self, index: int, suffix: str, stored: Buffer) -> Frame:
        head, tail = _header(index, suffix or ".bin", len(stored)), bytes(-len(stored) % _BLOCK)
        if self.labels is None:
            return Frame(head, tail)
        label = str(label_of(index, self.labels)).encode()
        return Frame(head, tail + _header(index, _LABEL, len(label)) + label.ljust(_BLOCK, b"\0"))

    def margins(self, index: int, suffix: str, stored: int) -> tuple[int, int]:
        return _BLOCK, -stored % _BLOCK + self._label_bytes

    @property
    def _label_bytes(self) -> int:
        return 0 if self.labels is None else _LABEL_BYTES

    def finish(self, size: int) -> bytes:
        return _END

    def check(self, framed: Buffer) -> None:
        if len(framed) < _BLOCK:
            raise ValueError(f"tar member of {len(framed)} bytes is shorter than its header")
        size = _stated_size(framed[:_BLOCK])
        if _BLOCK + -(-size // _BLOCK) * _BLOCK + self._label_bytes != len(framed):
            raise ValueError(
                f"tar header says {size} bytes, which do not fill a member of {len(framed)}"
            )


def _header(index: int, suffix: str, size: int) -> bytes:
    name = f"{index:09d}{suffix}".encode()
    header = bytearray(_BLOCK)
    header[0 : len(name)] = name
    header[100:108] = b"0000644\0"
    header[108:124] = b"0000000\0" * 2  # uid, gid
    header[124:136] = (
        b"%011o\0" % size if size < _OCTAL_LIMIT else b"\x80" + size.to_bytes(11, "big")
    )
    header[136:148] = b"%011o\0" % 0  # mtime 0, so that the bytes never depend on the clock
    header[156:157] = b"0"
    header[257:265] = b"ustar\x0000"
    header[148:156] = b"%06o\0 " % _checksum(header)
    return bytes(header)


def _stated_size(header: Buffer) -> int:
    """A member's bytes by its header, after the header's checksum has been verified."""
    try:
        stated = int(bytes(header[148:156]).rstrip(b" \0") or b"0", 8)
        field = bytes(header[124:136])
        size = (
            int.from_bytes(field[1:], "big")
            if field[0] == 0x80
            else int(field.strip(b" \0") or b"0", 8)
        )
    except ValueError:
        raise ValueError("no tar header: a number field is not octal") from None
    if stated != _checksum(header):
        raise ValueError(
            f"its tar header is damaged: checksum {stated}, computed {_checksum(header)}"
        )
    return size


def _checksum(header: Buffer | bytearray) -> int:
    """Sum of the header's bytes, with its own checksum field counted as spaces."""
    return sum(header) - sum(header[148:156]) + 8 * 32
