"""LMDB shards, written by the library ``lmdb``: one entry per sample, whose key is its position.

Keys have nine digits, so that their order is that of the samples. A value is one range of the file
(``lmdb_tree.py``), so that one range read fetches a sample, and reading needs no library. LMDB
itself does not compress, so the only codec is ``none``.

A shard is built in memory in a single transaction. The unused parts of its pages are zeros, and it
has no lock file, so the same spec gives the same bytes on hosts whose pages have the same size, as
long as the version of the library stays the same.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..buffers import Buffer
from ..codecs.base import Codec
from ..schema.dataset import DatasetSpec
from .base import Assembled
from .lmdb_tree import Tree

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

    def unpack(self, shard: Buffer, *, check: bool) -> Iterator[Buffer]:
        """Yield the value of each entry in the order of the keys, also of named databases.

        Databases whose keys have several values each are left out.
        """
        for entry in Tree(_reader(shard), len(shard)):
            yield shard[entry.offset : entry.offset + entry.size]


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
