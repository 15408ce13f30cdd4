"""A run's directory: made fresh, written atomically, and not lost to a second Ctrl-C."""

from __future__ import annotations

import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from ..errors import IobenchError
from ..spec.result import RunDocument

RUN_FILE = "run.json"


def new_directory(results: Path, name: str) -> Path:
    """A fresh run directory; an existing one is never reused."""
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    directory = results / f"{name}-{stamp}-{secrets.token_hex(2)}"
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise IobenchError(
            f"cannot make the run directory {directory}: {error.strerror}", remedy="choose another with --results"
        ) from error
    return directory


def write_document(directory: Path, doc: RunDocument) -> None:
    """``run.json``, atomically."""
    path = directory / RUN_FILE
    part = directory / f".{RUN_FILE}.part"
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(doc.model_dump_json(indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise IobenchError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def undisturbed(*, swallow: bool = False) -> Iterator[None]:
    """Ctrl-C must not cost what was measured: pressed meanwhile, it takes effect at the end (``swallow``: it has had its effect before)."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread gets Ctrl-C, or may say what it does
        yield
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if pressed and not swallow:
        raise KeyboardInterrupt
