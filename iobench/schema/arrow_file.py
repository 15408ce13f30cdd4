"""Whether an Arrow file is as plain as iobench writes it: no buffer compressed, no dictionaries.

Arrow believes what a compressed buffer says of its own length, so that a file of a few kilobytes
can take gigabytes of memory. Its tables are mapped as they lie, and none of ours is compressed.

Source: Arrow's columnar format, "IPC File Format" and the schemas File.fbs and Message.fbs;
FlatBuffers' "Internals" for how a table lies in its buffer.
"""

from __future__ import annotations

import struct

_MAGIC = b"ARROW1"
_FOOTER = struct.Struct("<i6s")  # at the end: length of the footer before it, magic
_BLOCK = struct.Struct(
    "<qi4xq"
)  # where a message lies: offset, length of its metadata, of its body
_CONTINUED = 0xFFFFFFFF

_DICTIONARIES, _BATCHES = 2, 3  # of Footer
_HEADER = 2  # of Message: the batch
_COMPRESSION = 3  # of RecordBatch


def check_plain(data: memoryview) -> None:
    """Raises ValueError for an Arrow file that is compressed, has dictionaries, or is damaged."""
    try:
        length, magic = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
        end = len(data) - _FOOTER.size
        if magic != _MAGIC or not 0 < length <= end:
            raise ValueError("it has no footer of Arrow's")
        footer = data[end - length : end]
        root = _follow(footer, 0)
        if _blocks(footer, _field(footer, root, _DICTIONARIES)):
            raise ValueError("it has dictionaries, which no table of iobench's has")
        for offset, metadata, _ in _blocks(footer, _field(footer, root, _BATCHES)):
            if not 0 <= offset <= offset + metadata <= len(data):
                raise ValueError("its footer leads out of the file")
            _check_batch(data[offset : offset + metadata])
    except (struct.error, OverflowError):
        raise ValueError("its footer is damaged") from None


def _check_batch(message: memoryview) -> None:
    (first,) = struct.unpack_from("<I", message, 0)
    table = message[8 if first == _CONTINUED else 4 :]
    header = _field(table, _follow(table, 0), _HEADER)
    if not header:
        raise ValueError("one of its messages is empty")
    if _field(table, _follow(table, header), _COMPRESSION):
        raise ValueError("it is compressed, which no table of iobench's is")


def _blocks(buffer: memoryview, field: int) -> list[tuple[int, int, int]]:
    if not field:
        return []
    start = _follow(buffer, field)
    (count,) = struct.unpack_from("<I", buffer, start)
    if count > len(buffer) // _BLOCK.size:
        raise ValueError("its footer is damaged")
    return [_BLOCK.unpack_from(buffer, start + 4 + number * _BLOCK.size) for number in range(count)]


def _follow(buffer: memoryview, place: int) -> int:
    """Where the offset that lies at ``place`` leads."""
    (offset,) = struct.unpack_from("<I", buffer, place)
    return place + int(offset)


def _field(buffer: memoryview, table: int, number: int) -> int:
    """Where a table's field lies; 0 where the table has it not."""
    (back,) = struct.unpack_from("<i", buffer, table)
    entries = table - int(back)
    if entries < 0:
        raise ValueError("its footer is damaged")
    (size,) = struct.unpack_from("<H", buffer, entries)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", buffer, entries + entry)
    return table + int(offset) if offset else 0
