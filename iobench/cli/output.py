"""``--output FILE``: the document goes to a file instead of standard output."""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path

from ..errors import UsageError


@contextmanager
def output_to(file: str | None) -> Iterator[None]:
    """What is printed meanwhile goes to ``file``, in UTF-8; None leaves standard output as it is.

    The place is looked at before, so that no verb works for hours and can't write then. The file
    is replaced as a whole when the verb has ended, whatever its exit code; a verb that raises
    leaves what was there. Raises UsageError for a place that can't be written.
    """
    if file is None:
        yield
        return
    try:
        path = Path(file).resolve()  # through a link of the user's, to what it names
        new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode)
        if special and path.is_dir():
            raise IsADirectoryError(21, "it is a directory", file)
        # In a folder that others write to, nobody's link or file is followed ("x").
        handle = (
            path.open("w", encoding="utf-8", errors="backslashreplace")
            if special
            else new.open("x", encoding="utf-8", errors="backslashreplace")
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(
            f"--output {file} can't be written: {why}", remedy="name a file in a folder of yours"
        ) from None
    text = io.StringIO()
    try:
        with handle:
            with redirect_stdout(text):
                yield
            handle.write(text.getvalue())
        if not special:
            os.replace(new, path)
    finally:
        if not special:
            with suppress(OSError):
                new.unlink()
