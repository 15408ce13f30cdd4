"""Look at an archive of ``torch.save`` before ``torch.load`` reads it.

An archive is a zip file of a pickle, ``data.pkl``, and one member for each tensor's memory. torch
never compresses members; a compressed one may expand to a thousand times its length. ``torch.load``
with ``weights_only`` runs no code of the pickle, but has no limit for its length, nor for the time
that it takes.

A pickle is a program: it names functions and classes, calls them, and sets attributes. Here no name
is looked up. What is called, made or filled is a ``StandIn``, which remembers its arguments and its
state and does nothing. The caller then takes the values that it expects.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from typing import Any, ClassVar

from ..limits import header_limit


class StandIn:
    """What a pickle made of a class or a function: ``kind`` is its module and name."""

    kind: ClassVar[tuple[str, str]] = ("", "")
    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any) -> StandIn:
        made = super().__new__(cls)
        made.args = args
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Items of a class that is a dict, such as OrderedDict, are of no use here."""


def unpickled(data: bytes) -> Any:
    """Return the value of a pickle, in which everything but plain values is a stand-in.

    Raises ValueError if it is damaged, or made to take very long.
    """
    try:
        return _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise ValueError(
            f"its pickle can't be read ({type(error).__name__}); nothing was executed"
        ) from None


_USUAL: dict[int, Any] = pickle._Unpickler.dispatch
_SETS = (pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET)


# Python's own unpickler, not the one in C: that one allocates as much memory as an index states.
class _Unpickler(pickle._Unpickler):
    stack: list[Any]

    def find_class(self, module: str, name: str) -> Any:
        return type("StandIn", (StandIn,), {"kind": (str(module), str(name))})

    def persistent_load(self, pid: Any) -> Any:
        return StandIn(pid)

    def set_item(self) -> None:
        _check_keys(self.stack[-2:-1])
        _USUAL[pickle.SETITEM[0]](self)

    def set_items(self) -> None:
        _check_keys(self.stack[::2])
        _USUAL[pickle.SETITEMS[0]](self)

    dispatch: ClassVar[dict[int, Any]] = {
        code: run for code, run in _USUAL.items() if bytes([code]) not in _SETS
    } | {pickle.SETITEM[0]: set_item, pickle.SETITEMS[0]: set_items}


def _check_keys(keys: list[Any]) -> None:
    """Tuples of the same tuples, many times over, are few bytes, and take forever to hash."""
    if any(isinstance(key, tuple) for key in keys):
        raise ValueError("a tuple is a key of a dict")


Read = Callable[[int, int], bytes]
"""(start, end) -> these bytes of the archive; both lie within it."""

_LOCAL = struct.Struct("<26sHH")
"""A member's own header: it ends with the lengths of its name and its extra field."""

_TAIL = 4 << 10
"""Bytes at the end that hold the whole directory of an archive of one tensor."""


def check(read: Read, size: int, names: list[str]) -> None:
    """Check an archive of ``size`` bytes, which should hold tensors of these ``names``.

    Raises ValueError if it may take more memory than its own size to read, or very long.
    """
    limit = header_limit(names)
    try:
        with zipfile.ZipFile(_ArchivePart(read, size, limit)) as archive:
            members = archive.infolist()
            wrong = next((m for m in members if m.compress_type or m.file_size > size), None)
            if wrong is not None:
                raise ValueError(
                    f"its member '{wrong.filename}' is compressed, which torch.save never does"
                )
            if len({member.filename for member in members}) < len(members):
                raise ValueError("it has two members of one name")
            pickled = next((m for m in members if m.filename.endswith("/data.pkl")), None)
            if pickled is None:
                raise ValueError("it is not an archive of torch.save: it has no pickle")
            if pickled.file_size > limit:
                raise ValueError(f"its pickle has {pickled.file_size} bytes; the limit is {limit}")
            unpickled(_content(read, pickled, size))
    except (zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError) as error:
        raise ValueError(f"it is not an archive of torch.save: {error}") from None


def _content(read: Read, member: zipfile.ZipInfo, size: int) -> bytes:
    """The bytes of a member. (zipfile would compare the checksum, which torch can leave out.)"""
    begin = member.header_offset + _LOCAL.size
    if begin > size:
        raise ValueError("its directory is damaged")
    *_, name_bytes, extra_bytes = _LOCAL.unpack(read(begin - _LOCAL.size, begin))
    begin += name_bytes + extra_bytes
    if begin + member.file_size > size:
        raise ValueError("its directory is damaged")
    return read(begin, begin + member.file_size)


class _ArchivePart(io.RawIOBase):
    """Bytes of an archive as a file, whose end, with the directory, is read once.

    No more than ``limit`` bytes are read at once: a damaged directory states any length.
    """

    def __init__(self, read: Read, size: int, limit: int) -> None:
        self._read, self._size, self._limit = read, size, limit
        self._begin = max(0, size - _TAIL)
        self._tail = read(self._begin, size)
        self._position = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("its directory is damaged")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, count: int | None = -1) -> bytes:
        left = max(0, self._size - self._position)
        count = left if count is None or count < 0 else min(count, left)
        if count > self._limit:
            raise ValueError(f"its directory has {count} bytes; the limit is {self._limit}")
        start, end = self._position, self._position + count
        self._position = end
        if start >= self._begin:
            return self._tail[start - self._begin : end - self._begin]
        return self._read(start, end)
