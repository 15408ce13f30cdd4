"""``--output FILE``: write the document to a file instead of standard output."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path

from ..base.errors import IobenchError, UsageError

COMMAND: ContextVar[tuple[str, ...]] = ContextVar("command", default=())
"""The command line that runs. A page of what has no recorded command ends with it."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


@contextmanager
def output_to(file: str | None) -> Iterator[None]:
    """Write standard output to ``file`` in UTF-8 inside the context; None changes nothing.

    A temporary file is created next to it first, so that no verb runs for hours and then cannot
    write. When the verb has ended, with any exit code, the file is replaced as a whole. If the verb
    raises, the old file stays. Raises UsageError if the file cannot be written, is a link, or is a
    part of what iobench has written: a dataset, checkpoints, a record.
    """
    if file is None:
        yield
        return
    try:
        _refuse(Path(file))
        path = Path(file).resolve()
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
        with _named(file), handle:
            with redirect_stdout(handle):
                yield
                handle.flush()
            if mode is not None and not special:
                os.fchmod(handle.fileno(), mode)  # the new file gets the mode of the old one
        if not special:
            os.replace(new, path)
    finally:
        if not special:
            with suppress(OSError):
                new.unlink()


def _refuse(path: Path) -> None:
    """Raise UsageError for a file that a document must not replace. Raises OSError, ValueError."""
    if not path.exists() and not path.is_symlink():
        return
    special = path.exists() and not path.is_file()
    if path.is_symlink() and not special:  # such as /dev/stdout
        raise UsageError(
            f"--output {path} is a link, and what it points to is not replaced",
            remedy="name the file itself",
        )
    if not special and (whose := _owner(path.resolve())):
        raise UsageError(
            f"--output {path} is a file of {whose}, which is not replaced",
            remedy="name another file",
        )


def _owner(path: Path) -> str:
    """What an existing file is a part of, if iobench has written that; else the empty text."""
    from ..checkpoint.place import MARKER as CHECKPOINTS
    from ..record.ab import AB_FILE
    from ..record.manifest import MANIFEST, MARKER, SAMPLES, SHARDS
    from ..record.run import EVENTS_FILE, RUN_FILE, SAMPLES_FILE
    from ..record.sweep import SWEEP_FILE

    if path.name in (RUN_FILE, EVENTS_FILE, SAMPLES_FILE, SWEEP_FILE, AB_FILE):
        return "a record"
    tables = (MANIFEST, SAMPLES, SHARDS)
    if path.name in tables and all((path.parent / name).exists() for name in tables):
        return "a dataset"
    for folder in path.parents:
        for marker, what in ((MARKER, "a dataset"), (CHECKPOINTS, "checkpoints")):
            if (folder / marker).exists():
                return what
    return ""


@contextmanager
def _named(file: str) -> Iterator[None]:
    """Turn the failure of a write to the file, which does not name it, into an error that does."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _FULL:
            raise
        raise IobenchError(
            f"cannot write {file}: {error.strerror}", remedy="free some space, or name another file"
        ) from error
