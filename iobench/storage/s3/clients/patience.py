"""How long one request may take, for clients that wait as long as a byte comes now and then."""

from __future__ import annotations

import re

LEAST_RATE = 64 << 10
"""Bytes per second. A request of many bytes gets the time that it takes at this rate."""


def allowed_s(deadline_s: float, length: int) -> float:
    """How long a request that moves so many bytes may take."""
    return deadline_s + length / LEAST_RATE


def longest_s(deadline_s: float, method: str, extent: str | None, sent: str | None) -> float | None:
    """The same by a request's method and its headers Range and Content-Length; None: no limit.

    POST completes an upload, for which S3 takes minutes and sends a space now and then.
    """
    if method == "POST":
        return None
    if extent is not None:
        found = re.fullmatch(r"bytes=(\d{1,19})-(\d{1,19})", extent)
        return None if found is None else allowed_s(deadline_s, int(found[2]) - int(found[1]) + 1)
    return allowed_s(deadline_s, int(sent) if sent else 0)
