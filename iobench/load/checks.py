"""Checks of the format's own checksums for one batch.

The thread that read a request also checks it, while the bytes are still in its CPU's cache.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from .requests import Requests


class Checks:
    """A callback for the read engine (its ``then``), which checks one request.

    The engine calls it with the position in memory (``landing``) of each request that it read in
    one piece. ``check(n)`` checks the n-th sample of the batch and raises CorruptSampleError.
    """

    def __init__(self, requests: Requests, base: int, check: Callable[[int], None]) -> None:
        landings = (requests.landing + base).tolist()
        self._left = dict(zip(landings, requests.samples(), strict=True))
        self._check = check
        self._took: list[int] = []

    def __call__(self, landing: int) -> None:
        started = time.monotonic_ns()
        self._samples(self._left[landing])
        del self._left[landing]
        self._took.append(time.monotonic_ns() - started)

    def finish(self) -> None:
        """Check the requests that the engine read in several pieces."""
        for samples in self._left.values():
            self._samples(samples)

    def share(self, wall_ns: int, threads: int) -> int:
        """Return how many of the ``wall_ns`` nanoseconds of reading were spent on checks.

        The time of all checks is divided by the number of ``threads`` that took part.
        """
        return min(wall_ns, sum(self._took) // max(1, threads))

    def _samples(self, samples: tuple[int, int]) -> None:
        for position in range(*samples):
            self._check(position)
