"""The format's checksums of a batch, each request's checked by the thread that read it: the bytes are still in its cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from .requests import Request


class Checks:
    """Given to the read engine, which calls it with the landing of each request that it read in one piece.

    ``check``: of the batch's n-th sample, raises CorruptSampleError.
    """

    def __init__(
        self, requests: Sequence[Request], base: int, check: Callable[[int], None]
    ) -> None:
        self._left = {request.landing + base: request for request in requests}
        self._check = check
        self._took: list[int] = []

    def __call__(self, landing: int) -> None:
        started = time.monotonic_ns()
        self._samples(self._left[landing])
        del self._left[landing]
        self._took.append(time.monotonic_ns() - started)

    def finish(self) -> None:
        """Check what the engine had to read in several pieces."""
        for request in self._left.values():
            self._samples(request)

    def share(self, wall_ns: int, threads: int) -> int:
        """How much of the time that reading took went into checking, where ``threads`` took part."""
        return min(wall_ns, sum(self._took) // max(1, threads))

    def _samples(self, request: Request) -> None:
        for position in range(request.start, request.stop):
            self._check(position)
