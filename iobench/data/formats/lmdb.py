"""LMDB shards, written by the library ``lmdb``: one entry per sample, whose key is its position.

Keys have nine digits, so that their order is that of the samples. A value is one range of the file
(``Tree``), so that one range read fetches a sample, and reading needs no library. LMDB
itself does not compress, so the only codec is ``none``.

A shard is built in memory in a single transaction. The unused parts of its pages are zeros, and it
has no lock file, so the same spec gives the same bytes on hosts whose pages have the same size, as
long as the version of the library stays the same.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ...base.buffers import Buffer
from ...settings.dataset import DatasetSpec
from ..codecs.base import Codec
from .base import Assembled

Read = Callable[[int, int], bytes | Buffer]
"""Returns the bytes [begin, end) of the file. Raises ValueError for a range outside of it."""

_PAGE = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_PAGE_BYTES = _PAGE.size
_META = struct.Struct("<II16x")  # magic, version
_DB = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, pages of three kinds, entries, root
_LAST = struct.Struct("<QQ")  # number of the last page, of the transaction
_NODE = struct.Struct("<HHHH")  # low and high half of the size, flags, bytes of the key
_META_BYTES = _PAGE_BYTES + _META.size + 2 * _DB.size + _LAST.size

_MAGIC = 0xBEEFC0DE
_VERSION = 1
_MIN_PAGE, _MAX_PAGE = 512, 64 << 10
_MAX_DEPTH = 32
"""CURSOR_STACK of mdb.c: no tree is deeper."""

_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_BIG, _SUB, _DUPLICATES = 1, 2, 4
_SORTED_DUPLICATES = 4
_EMPTY = (1 << 64) - 1
"""The root of a database without entries."""


class LmdbEntry(NamedTuple):
    """One entry: its key, and where its value lies in the file, in bytes."""

    key: bytes
    offset: int
    size: int


class Tree:
    """The entries of one file of ``size`` bytes, found by its pages.

    An LMDB file is a B-tree of pages. Its first two pages describe it (``MDB_meta``), and the one
    with the larger transaction number counts. Branch pages point to pages, and leaf pages hold the
    keys. A value lies in its leaf page, or, if it is longer than about half a page, in overflow
    pages, which are contiguous. So each value is one range of the file.

    Nothing that the file states is trusted: each page is visited once at most, and each range lies
    within the file. Values are never interpreted, so a pickled object in one is not loaded.

    Source: the structs MDB_meta, MDB_db, MDB_page and MDB_node in libraries/liblmdb/mdb.c of
    OpenLDAP's LMDB 0.9 (MDB_DATA_VERSION 1, 64 bits, little-endian).

    ``duplicates``: how many databases were left out so far, because their keys have several values
    each. Raises ValueError, in one line, for a file that is damaged or no LMDB.
    """

    def __init__(self, read: Read, size: int) -> None:
        self.duplicates = 0
        self._read = read
        self._size = size
        self._seen: set[int] = set()
        self._page_bytes = 0
        self._main = self._newest()

    def __iter__(self) -> Iterator[LmdbEntry]:
        """Entries in the order of their keys; those of a named database where its name is."""
        self._seen = set()
        self.duplicates = 0
        return self._database(self._main)

    def _newest(self) -> bytes:
        """The description of the main database, of the last transaction. Sets the page size."""
        found: list[tuple[int, bytes]] = []
        for number in (0, 1):
            begin = number * self._page_bytes
            if begin + _META_BYTES > self._size:
                break
            page = bytes(self._read(begin, begin + _META_BYTES))
            flags = _PAGE.unpack_from(page)[2]
            magic, version = _META.unpack_from(page, _PAGE_BYTES)
            if magic != _MAGIC or not flags & _IS_META:
                break
            if version != _VERSION:
                raise ValueError(f"its version of the LMDB format is {version}, not {_VERSION}")
            free = _PAGE_BYTES + _META.size
            if number == 0:
                (self._page_bytes,) = struct.unpack_from("<I", page, free)
                if not _plausible_page(self._page_bytes):
                    raise ValueError(f"its pages would have {self._page_bytes} bytes")
            main = page[free + _DB.size : free + 2 * _DB.size]
            found.append((_LAST.unpack_from(page, free + 2 * _DB.size)[1], main))
        if len(found) < 2:
            raise ValueError(
                f"not an LMDB file: no description of one at byte {len(found) * self._page_bytes}"
            )
        # LMDB itself takes the second one only if its transaction is newer.
        return found[1][1] if found[1][0] > found[0][0] else found[0][1]

    def _database(self, described: bytes) -> Iterator[LmdbEntry]:
        _, flags, depth, _, _, _, entries, root = _DB.unpack(described)
        if root == _EMPTY:
            return
        if flags & _SORTED_DUPLICATES:
            self.duplicates += 1
            return
        if depth > _MAX_DEPTH:
            raise ValueError(f"its tree would have {depth} levels")
        count = 0
        for key, node_flags, offset, size in self._nodes(root, depth):
            count += 1
            if node_flags & _SUB:
                if size != _DB.size:
                    raise ValueError(f"a database at byte {offset} is described by {size} bytes")
                yield from self._database(bytes(self._read(offset, offset + size)))
            else:
                yield LmdbEntry(key, offset, size)
        if count != entries:
            raise ValueError(f"it states {entries} entries, and has {count}")

    def _nodes(self, number: int, depth: int) -> Iterator[tuple[bytes, int, int, int]]:
        """(key, flags, offset, size) of each entry below a page, in the order of the keys."""
        begin = self._visit(number, 1)
        page = bytes(self._read(begin, begin + self._page_bytes))
        stated, _, flags, lower, _ = _PAGE.unpack_from(page)
        kind = _LEAF if depth <= 1 else _BRANCH
        if stated != number or flags & (_BRANCH | _LEAF | _OVERFLOW | _IS_META) != kind:
            raise ValueError(f"page {number} at byte {begin} is not the page that belongs there")
        count = (lower - _PAGE_BYTES) // 2
        if lower < _PAGE_BYTES or lower + count * _NODE.size > self._page_bytes:
            raise ValueError(f"page {number} at byte {begin} states {lower} bytes of pointers")
        for place in struct.unpack_from(f"<{count}H", page, _PAGE_BYTES):
            if place + _NODE.size > len(page):
                raise ValueError(f"an entry would begin at byte {begin + place}, outside its page")
            low, high, node_flags, key_bytes = _NODE.unpack_from(page, place)
            if kind == _BRANCH:
                yield from self._nodes(low | high << 16 | node_flags << 32, depth - 1)
                continue
            if node_flags & _DUPLICATES:
                raise ValueError(f"the entry at byte {begin + place} has several values")
            data = place + _NODE.size + key_bytes
            size, offset = low | high << 16, begin + data
            if node_flags & _BIG:
                offset = self._overflow(page, data, size, offset)
            elif data + size > len(page):
                raise ValueError(f"the value at byte {offset} ends outside its page")
            yield page[place + _NODE.size : data], node_flags, offset, size

    def _overflow(self, page: bytes, data: int, size: int, where: int) -> int:
        """Where the value lies whose first overflow page is stated at ``data`` of a leaf page."""
        if data + 8 > len(page):
            raise ValueError(f"the value at byte {where} ends outside its page")
        (number,) = struct.unpack_from("<Q", page, data)
        pages = -(-(_PAGE_BYTES + size) // self._page_bytes)
        begin = self._visit(number, pages)
        stated, _, flags, low, high = _PAGE.unpack(bytes(self._read(begin, begin + _PAGE_BYTES)))
        if stated != number or not flags & _OVERFLOW or low | high << 16 < pages:
            raise ValueError(f"page {number} at byte {begin} does not hold a value of {size} bytes")
        return begin + _PAGE_BYTES

    def _visit(self, number: int, pages: int) -> int:
        """Where page ``number`` begins. Raises ValueError outside the file, or the second time."""
        begin = number * self._page_bytes
        end = begin + pages * self._page_bytes
        if number < 2 or end > self._size:
            raise ValueError(f"page {number} would end at byte {end} of {self._size}")
        if number in self._seen:
            raise ValueError(f"page {number} at byte {begin} is used twice")
        self._seen.add(number)
        return begin


def _plausible_page(size: int) -> bool:
    return _MIN_PAGE <= size <= _MAX_PAGE and size & (size - 1) == 0


Int64 = npt.NDArray[np.int64]

_NODE_BYTES = 64
"""More than the header of an entry, its key and what points to it."""

_PIECE = 8 << 20


class Lmdb(Assembled):
    """Entries of the main database, with the keys ``000000000`` and so on."""

    name: ClassVar[str] = "lmdb"
    suffix: ClassVar[str] = ".lmdb"
    access: ClassVar = "random"
    framing_bytes: ClassVar[int] = 4096 + _NODE_BYTES  # a value may leave a page almost empty
    writes_with: ClassVar[str] = "lmdb"
    max_shard_bytes: ClassVar[int] = 2 << 30

    def check_spec(self, spec: DatasetSpec, codec: Codec) -> None:
        if not codec.plain:
            raise ValueError(
                f"format 'lmdb' cannot compress single samples, so codec '{spec.codec}' cannot be "
                "used; use codec: none"
            )
        self.check_shard(spec)

    def assemble(
        self,
        contents: Iterator[Buffer],
        sizes: Int64,
        write: Callable[[bytes | Buffer], None],
        *,
        spec: DatasetSpec,
        codec: Codec,
    ) -> tuple[Int64, Int64]:
        """Build one shard and write it; return (offset, stored) of each sample."""
        import lmdb

        # A file in memory, because LMDB writes to nothing but files.
        handle = os.memfd_create("iobench-lmdb")
        try:
            with lmdb.open(
                f"/proc/self/fd/{handle}",
                map_size=_map_bytes(sizes),
                subdir=False,
                lock=False,
                sync=False,
                writemap=True,  # pages begin as zeros, not as what malloc returns
            ) as environment:
                with environment.begin(write=True) as transaction:
                    for place, content in enumerate(contents):
                        transaction.put(b"%09d" % place, content, append=True)
                size = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
            with mmap.mmap(handle, size, prot=mmap.PROT_READ) as mapped:
                shard = memoryview(mapped)
                try:
                    found = [(entry.offset, entry.size) for entry in Tree(_reader(shard), size)]
                    for begin in range(0, size, _PIECE):
                        with shard[begin : begin + _PIECE] as piece:
                            write(piece)
                finally:
                    shard.release()
        finally:
            os.close(handle)
        places = np.array(found, np.int64).reshape(-1, 2)
        return places[:, 0].copy(), places[:, 1].copy()


def _reader(shard: Buffer) -> Callable[[int, int], Buffer]:
    return lambda begin, end: shard[begin:end]


def _map_bytes(sizes: Int64) -> int:
    """More bytes than a shard with samples of these sizes takes.

    A page that holds several entries is at least half full, since an entry takes half a page at
    most.
    """
    page = mmap.PAGESIZE
    large = sizes > page // 2 - 2 * _NODE_BYTES
    alone = int((-(-(sizes[large] + _NODE_BYTES) // page)).sum())
    shared = int(sizes[~large].sum()) + _NODE_BYTES * len(sizes)
    return (alone + 4 * (-(-shared // page)) + 64) * page
