"""A file object over an object in a storage, for parsers whose metadata is scattered over it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from ..errors import StorageError
from ..storage.files import Seekable
from ..storage.window import ReadWindow

_PAGE = 16 << 10
_PAGES = 1024


class Pages(Seekable):
    """Caches pages of the object. Not thread-safe.

    ``failure``: the last error of the storage.
    """

    def __init__(self, window: ReadWindow, size: int) -> None:
        super().__init__(size)
        # Kept to be raised again, because a library may replace it by an error of its own.
        self.failure: StorageError | None = None
        self._window = window
        self._pages: OrderedDict[int, bytes] = OrderedDict()

    def between(self, begin: int, end: int) -> bytes:
        """Bytes from ``begin`` to ``end``. Raises ValueError for a range outside the file."""
        if not 0 <= begin <= end <= self.size:
            raise ValueError(f"something would lie at bytes {begin} to {end} of {self.size}")
        self.seek(begin)
        return self.read(end - begin) or b""

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        begin = self.position
        end = min(begin + len(target), self.size)
        done = 0
        while begin + done < end:
            page, skip = divmod(begin + done, _PAGE)
            data = self._page(page, -(-end // _PAGE))[skip : end - page * _PAGE]
            target[done : done + len(data)] = data
            done += len(data)
        self.position = begin + done
        return done

    def _page(self, number: int, before: int) -> bytes:
        """Return one page; read the missing pages up to ``before`` with it, in one request."""
        if number not in self._pages:
            last = number + 1
            while last < min(before, number + _PAGES // 2) and last not in self._pages:
                last += 1
            begin, end = number * _PAGE, min(last * _PAGE, self.size)
            try:
                data = bytes(self._window.apart(begin, end))
            except StorageError as error:
                self.failure = error
                raise OSError(str(error)) from None
            for place in range(number, last):
                self._pages[place] = data[(place - number) * _PAGE : (place - number + 1) * _PAGE]
            while len(self._pages) > _PAGES:
                self._pages.popitem(last=False)
        self._pages.move_to_end(number)
        return self._pages[number]
