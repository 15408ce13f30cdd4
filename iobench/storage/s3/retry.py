"""Sends requests again where that can help: exponential back-off with full jitter, one budget for every client, all of it counted."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from ..base import Retries
from .errors import PASSING, Failure, Kind
from .options import S3Options

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_NAME_ATTEMPTS = 3
"""A name that is not known thrice is a wrong name."""


class Retrier:
    """The requests of one storage in one process."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = Lock()
        self._retries = 0
        self._throttled = 0

    @property
    def counts(self) -> Retries:
        return Retries(self._retries, self._throttled)

    def run(self, attempt: Callable[[int], T], *, stop: Event | None = None) -> T:
        """What ``attempt(n)`` returns, n = 0 for the first. Raises the last Failure when it can't pass, or retries or time are used up.

        No attempt begins that could not time out before the deadline. ``stop`` ends the pauses, and with them the attempts.
        """
        started = time.monotonic()
        number = 0
        while True:
            try:
                return attempt(number)
            except Failure as failure:
                failure.attempts, failure.elapsed_s = number + 1, time.monotonic() - started
                if not self._again(failure):
                    raise
                # Full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS 2015), above a floor so that no pause is none.
                ceiling = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**number)
                pause = random.uniform(ceiling / 4, ceiling)
                if failure.elapsed_s + pause + self._options.timeout > self._options.deadline:
                    raise
                throttled = failure.kind is Kind.THROTTLED
                log.info(
                    "attempt %d failed (%s), the next one in %.3f s",
                    *(number + 1, failure.kind.name.lower(), pause),
                )
            with self._lock:
                self._retries += 1
                self._throttled += throttled
            if stop is None:
                time.sleep(pause)
            elif stop.wait(pause):
                raise Failure(Kind.OTHER, detail="given up")
            number += 1

    def _again(self, failure: Failure) -> bool:
        if failure.kind is Kind.NAME and failure.attempts >= _NAME_ATTEMPTS:
            return False
        return failure.kind in PASSING and failure.attempts <= self._options.retries
