"""Local files read through memory maps, as trainings on token files read them.

A read copies out of the map and faults its pages in. A map has limits: it can't bypass the page
cache, and a failing device, or a file that is truncated while it is read, raises SIGBUS, which
ends the worker. Pages that a living process has mapped stay in the page cache when they are
evicted, so the process must call ``release_maps`` before.
"""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base import Buffer
from .storage import LocalStorage

_MAX_MAPS = 1024
"""Files mapped at a time. The kernel allows a process 65,530 maps (vm.max_map_count)."""


class _Map(NamedTuple):
    memory: mmap.mmap | None  # None for an empty file, which can't be mapped
    array: npt.NDArray[np.uint8]


class MappedStorage(LocalStorage):
    """Files below ``root``, mapped.

    ``random`` turns the kernel's read-ahead off (MADV_RANDOM): only touched pages are read.
    """

    def __init__(self, root: str | Path, *, random: bool = False) -> None:
        super().__init__(root)
        self.random = random
        self._maps: OrderedDict[str, _Map] = OrderedDict()
        self._maps_lock = Lock()

    def after_fork(self) -> None:
        super().after_fork()
        self._maps_lock = Lock()  # the maps themselves survive a fork

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "random": self.random}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"], random=state["random"])  # type: ignore[misc]

    def facts(self) -> dict[str, Any]:
        return {**super().facts(), "mmap": True}

    def read_into(self, key: str, offset: int, buffer: Buffer, *, once: bool = False) -> int:
        source = self._map(key).array[offset : offset + len(buffer)]
        # numpy releases the GIL while it copies, so several threads can wait for pages at once.
        np.copyto(np.frombuffer(buffer, np.uint8)[: len(source)], source)
        return len(source)

    def release_maps(self) -> None:
        # On a shared file map MADV_DONTNEED only unmaps the pages (madvise(2)).
        with self._maps_lock:
            for memory, _ in self._maps.values():
                if memory is not None:
                    memory.madvise(mmap.MADV_DONTNEED)

    def _map(self, key: str) -> _Map:
        with self._maps_lock:
            found = self._maps.get(key)
            if found is None:
                found = self._maps[key] = self._open_map(key)
                if len(self._maps) > _MAX_MAPS:
                    self._maps.popitem(last=False)  # unmapped when its last reader has finished
            else:
                self._maps.move_to_end(key)
            return found

    def _open_map(self, key: str) -> _Map:
        fd = self._open(key)
        try:
            size = os.fstat(fd).st_size
            if not size:
                return _Map(None, np.empty(0, np.uint8))
            memory = mmap.mmap(fd, size, access=mmap.ACCESS_READ)
            if self.random:
                memory.madvise(mmap.MADV_RANDOM)
            return _Map(memory, np.frombuffer(memory, np.uint8))
        except OSError as error:
            raise self.failed("map", key, error) from error
        finally:
            os.close(fd)

    def close(self) -> None:
        self._maps = OrderedDict()
        self._maps_lock = Lock()
        super().close()
