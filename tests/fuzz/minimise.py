"""Make an input smaller that crashes: ``python -m tests.fuzz.minimise TARGET INPUT OUTPUT``.

Pieces are left out, large ones first, as long as the exception and the line that raised it stay.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz.targets import TARGETS

SECONDS = 20


def main() -> None:
    name, whole, smaller = sys.argv[1:]
    data = Path(whole).read_bytes()
    Path(smaller).write_bytes(minimised(TARGETS[name], data, seconds=SECONDS))


def minimised(target: Callable[[bytes], None], data: bytes, *, seconds: float) -> bytes:
    """A part of ``data`` over which ``target`` fails in the same way."""
    wanted, end = _failure(target, data), time.monotonic() + seconds
    if wanted is None:
        return data
    size = len(data) // 2
    while size:
        start = 0
        while start < len(data):
            if time.monotonic() > end:
                return data
            shorter = data[:start] + data[start + size :]
            if _failure(target, shorter) == wanted:
                data = shorter
            else:
                start += size
        size //= 2
    return data


def _failure(target: Callable[[bytes], None], data: bytes) -> tuple[str, str, int] | None:
    """The exception's type, and the file and line that raised it; None for no exception."""
    try:
        target(data)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return type(error).__name__, last.filename, last.lineno or 0
    return None


if __name__ == "__main__":
    main()
