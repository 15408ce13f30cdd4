"""A directory of limited size on a local disk, in front of any storage.

The first read of an object copies all of it into the directory, and later reads are served from
there. An object is whole or absent: a shard of many samples is copied by the first read of one of
them. With ``eviction=lru``, the object whose last read is longest ago makes room for a new one;
with ``none`` the directory is filled once, and what did not fit is always read from the storage.
While one process copies an object, others read what they need of it from the storage.

Which objects are there, and the order of their last reads, is in memory that all forked ranks and
workers share, so that the order is exact. Each object has a number; a list that is linked in both
directions holds those that are there. A copy is read once it is complete, so a process that is
killed leaves nothing that would be read.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import numpy as np

from ..base import buffers, pagecache
from ..base.errors import ShortObjectError, StorageError
from ..record.training import CacheUse
from ..settings.workload import LocalCacheSpec
from .base import Buffer, Storage
from .local.storage import ALIGNMENT, LocalStorage
from .scratch import scratch
from .shared import SharedNumber
from .wrapper import Wrapper

_ABSENT, _COPYING, _THERE = range(3)

_BLOCK = 8 << 20
"""Bytes of a request that copies a part of an object."""

_COUNTS = ("hits", "misses", "hit_bytes", "storage_bytes", "evicted", "bypassed")


class LocalCache(Wrapper):
    """``inner`` behind a cache of ``limit`` bytes in ``files``, for objects of these sizes."""

    scheme = "cached"

    def __init__(
        self,
        inner: Storage,
        files: LocalStorage,
        sizes: Mapping[str, int],
        *,
        limit: int,
        evicts: bool = True,
        keep: bool = False,
    ) -> None:
        super().__init__(inner)
        self.files, self.limit, self.keep = files, limit, keep
        self.alignment = max(inner.alignment, files.alignment)
        self._evicts = evicts
        self._keys = list(sizes)
        self._sizes = list(sizes.values())
        self._numbers = {key: number for number, key in enumerate(self._keys)}
        count = len(self._keys)
        self._end = count  # the list begins and ends here: newest after it, oldest before it
        shared = np.frombuffer(mmap.mmap(-1, 8 * (3 * count + 2 + len(_COUNTS))), np.int64)
        self._state, links, self._counts = np.split(shared, (count, 3 * count + 2))
        self._newer, self._older = np.split(links, 2)
        self._used = SharedNumber(ctypes.c_int64)  # bytes, of copies that are being made, too
        self._newer[count] = self._older[count] = count

    # Reading

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        number = self._numbers.get(key)
        if number is None:
            return self.inner.read_into(key, offset, buffer, once=once)
        wanted = max(0, min(len(buffer), self._sizes[number] - offset))
        with self._used.alone():
            fd = self._open(number, wanted)
            copies = fd is None and self._reserve(number, wanted)
        if copies:
            return self._copy(number, offset, buffer, once=once)
        if fd is None:
            return self.inner.read_into(key, offset, buffer, once=once)
        try:
            return self._read(fd, key, offset, buffer)
        finally:
            os.close(fd)

    def _open(self, number: int, wanted: int) -> int | None:
        """The descriptor of an object that is there, which is now the newest."""
        if self._state[number] != _THERE:
            return None
        self._unlink(number)
        self._link(number)
        self._count(hits=1, hit_bytes=wanted)
        return self.files.open_file(self._keys[number])

    def _reserve(self, number: int, wanted: int) -> bool:
        """Make room for a copy. False: it does not fit, or another process is making it."""
        size = self._sizes[number]
        fits = self._state[number] == _ABSENT and self._made_room(size)
        if fits:
            self._state[number] = _COPYING
            self._used.value += size
        self._count(misses=1, storage_bytes=size if fits else wanted, bypassed=int(not fits))
        return fits

    def _made_room(self, size: int) -> bool:
        if size > self.limit:
            return False
        while self._used.value + size > self.limit:
            oldest = int(self._newer[self._end])
            if oldest == self._end or not self._evicts:
                return False
            self._unlink(oldest)
            self.files.delete(self._keys[oldest])
            self._state[oldest] = _ABSENT
            self._used.value -= self._sizes[oldest]
            self._count(evicted=1)
        return True

    def _copy(self, number: int, offset: int, buffer: Buffer, *, once: bool) -> int:
        """Copy an object, and fill ``buffer`` with the part that was asked for."""
        key, size, state = self._keys[number], self._sizes[number], _ABSENT
        whole = offset == 0 and len(buffer) >= size
        try:
            with self.files.create(key, size_hint=size, durable=False) as sink:
                memory = (
                    buffer if whole else buffers.private(min(_BLOCK, _aligned(size))).array.data
                )
                done = 0
                while done < size:
                    count = self.inner.read_into(key, done, memory, once=once and whole)
                    if count < min(len(memory), size - done):
                        raise ShortObjectError(
                            f"{key} has {size - done - count} bytes fewer than the manifest says",
                            remedy="find all damage with: iobench verify",
                        )
                    sink.write(memory[: min(count, size - done)])
                    done += count
            state = _THERE
        finally:
            with self._used.alone():
                self._state[number] = state
                if state == _THERE:
                    self._link(number)
                    fd = None if whole else self.files.open_file(key)
                else:
                    self._used.value -= size
        if fd is None:
            return size
        try:
            return self._read(fd, key, offset, buffer)
        finally:
            os.close(fd)

    def _read(self, fd: int, key: str, offset: int, buffer: Buffer) -> int:
        done = 0
        try:
            while done < len(buffer):
                count = os.preadv(fd, (buffer[done:],), offset + done)
                done += count
                if not count or (self.files.direct and done % ALIGNMENT):
                    break
        except OSError as error:
            raise self.files.failed("read", key, error) from error
        return done

    # The list, and the counts: only within ``self._used.alone()``

    def _link(self, number: int) -> None:
        """Put an object before all others, as the newest."""
        newest = self._older[self._end]
        self._older[number], self._newer[number] = newest, self._end
        self._newer[newest] = self._older[self._end] = number

    def _unlink(self, number: int) -> None:
        older, newer = self._older[number], self._newer[number]
        self._newer[older], self._older[newer] = newer, older

    def _count(self, **more: int) -> None:
        for name, number in more.items():
            self._counts[_COUNTS.index(name)] += number

    # While no rank reads

    def counted(self) -> CacheUse:
        """What all processes have read so far."""
        return CacheUse(**dict(zip(_COUNTS, self._counts.tolist(), strict=True)))

    def held(self) -> list[str]:
        """The keys of the objects that are there."""
        return [self._keys[number] for number in np.flatnonzero(self._state == _THERE).tolist()]

    def empty(self) -> None:
        """Remove all copies, and what a killed process has left of one."""
        for entry in self.files.list():
            self.files.delete(entry.key)
        with self._used.alone():
            self._state[:] = _ABSENT
            self._newer[self._end] = self._older[self._end] = self._end
            self._used.value = 0

    def forget_pages(self) -> float | None:
        """Drop the copies from the page cache; return the share of them that it still holds.

        None if there are none, or nobody can tell.
        """
        paths = [self.files.local_path(key) for key in self.held()]
        if not paths:
            return None
        try:
            pagecache.evict(paths)
            return pagecache.residency(paths).ratio
        except StorageError:
            return None

    def fill(self, keys: list[str]) -> None:
        """Copy these objects, as far as there is room."""
        memory = buffers.private(ALIGNMENT).array.data
        for key in keys:
            self.read_into(key, 0, memory)


def _aligned(size: int) -> int:
    return max(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)


@contextmanager
def local_cache(
    spec: LocalCacheSpec, inner: Storage, sizes: Mapping[str, int], *, direct: bool
) -> Iterator[LocalCache]:
    """A cache in a new directory below the one that ``spec`` names, which is removed at the end.

    With ``spec.keep`` it stays. Nothing else there is touched. ``direct``: read the copies with
    O_DIRECT, if the file system can. Raises StorageError.
    """
    with ExitStack() as held:
        try:
            above = Path(spec.directory)
            if spec.keep:
                place = Path(mkdtemp(prefix="iobench-cache-", dir=above))
            else:
                place = held.enter_context(scratch("cache", within=above))
            tried = place / "direct"
            tried.write_bytes(bytes(ALIGNMENT))
            direct = direct and LocalStorage(place).supports_direct(tried.name)
            tried.unlink()
        except OSError as error:
            raise StorageError(
                f"the cache can't be made in {spec.directory}: {error.strerror}",
                remedy="name another directory with --cache-dir",
            ) from error
        files = LocalStorage(place, direct=direct)
        held.callback(files.close)
        evicts = spec.eviction == "lru"
        yield LocalCache(inner, files, sizes, limit=spec.size, evicts=evicts, keep=spec.keep)
