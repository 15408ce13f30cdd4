"""``--output FILE``: write the document to a file instead of standard output."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path

from ..errors import UsageError

COMMAND: ContextVar[tuple[str, ...]] = ContextVar("command", default=())
"""The command line that runs. A page of what has no recorded command ends with it."""


@contextmanager
def output_to(file: str | None) -> Iterator[None]:
    """Write standard output to ``file`` in UTF-8 inside the context; None changes nothing.

    A temporary file is created next to it first, so that no verb runs for hours and then cannot
    write. When the verb has ended, with any exit code, the file is replaced as a whole. If the verb
    raises, the old file stays. Raises UsageError if the file cannot be written.
    """
    if file is None:
        yield
        return
    try:
        path = Path(file).resolve()  # if the user names a link, its target is replaced
        new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        if special and path.is_dir():
            raise IsADirectoryError(21, "it is a directory", file)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        # "x": in a folder to which others can write, no existing link or file is used.
        handle = (
            path.open("w", encoding="utf-8", errors="backslashreplace")
            if special
            else new.open("x", encoding="utf-8", errors="backslashreplace")
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"--output {file} can't be written: {why}", remedy="name a file that you may write"
        ) from None
    try:
        with handle:
            with redirect_stdout(handle):
                yield
            if mode is not None and not special:
                os.fchmod(handle.fileno(), mode)  # the new file gets the mode of the old one
        if not special:
            os.replace(new, path)
    finally:
        if not special:
            with suppress(OSError):
                new.unlink()
