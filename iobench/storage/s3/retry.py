"""Retries requests where that can help.

Exponential back-off with full jitter, the same limits for every client, and every retry counted.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from threading import Event, Lock
from typing import TypeVar

from ..base import Retries
from .errors import TRANSIENT, Failure, Kind
from .options import S3Options

T = TypeVar("T")

log = logging.getLogger(__name__)

_FIRST_PAUSE_S = 0.1
_MAX_PAUSE_S = 5.0
_NAME_ATTEMPTS = 3
"""A host name that could not be resolved in three attempts is taken for a wrong name."""


class Retrier:
    """Retries the requests of one storage in one process."""

    def __init__(self, options: S3Options) -> None:
        self._options = options
        self._lock = Lock()
        self._retries = 0
        self._throttled = 0

    @property
    def counts(self) -> Retries:
        return Retries(self._retries, self._throttled)

    def run(
        self, attempt: Callable[[int], T], *, stop: Event | None = None, began: float | None = None
    ) -> T:
        """The result of ``attempt(n)``, where n counts from 0.

        Raises the last Failure if a retry can't help, or if the retries or the time are used up.
        An attempt starts only if it could time out before the deadline. ``stop``, once set, ends
        the pause and the attempts. ``began``: when the first attempt did, by ``time.monotonic``;
        None: now.
        """
        started = time.monotonic() if began is None else began
        number = 0
        while True:
            try:
                return attempt(number)
            except Failure as failure:
                failure.attempts, failure.elapsed_s = number + 1, time.monotonic() - started
                if not self._may_retry(failure):
                    raise
                # Full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS 2015), with a
                # floor, so that a retry never fires immediately.
                ceiling = min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**number)
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
                raise Failure(Kind.OTHER, detail="stopped while waiting to retry")
            number += 1

    def _may_retry(self, failure: Failure) -> bool:
        if failure.kind is Kind.NAME and failure.attempts >= _NAME_ATTEMPTS:
            return False
        return failure.kind in TRANSIENT and failure.attempts <= self._options.retries
