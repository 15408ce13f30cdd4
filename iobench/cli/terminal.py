"""The output of verbs: every line that a verb prints goes through this module.

Standard output has the result, standard error everything else. Control and bidirectional characters
in names, errors and documents from others are printed as visible escapes. So are characters that
the terminal's encoding lacks. Lines are broken between words if the terminal is narrow. Colour is
used only if the user wants it (https://no-color.org).
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import secrets
import shutil
import socket
import stat
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..base.documents import json_text
from ..base.errors import IobenchError, UsageError
from ..base.processes import rank
from ..base.text import printable, wrapped
from ..base.units import format_duration

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

DEFAULT_COLUMNS = 100
MIN_COLUMNS = 20

_COLOR = re.compile("(\x1b\\[[0-9]{1,2}m)")
"""The colour codes of ``report.render_text.painter``; no other escape codes are printed."""

_SIMPLE = str.maketrans(
    {"█": "#", "▶": ">", "µ": "u", "·": ".", "–": "-", "…": "...", "’": "'", "×": "x"}
)
"""Replacements for iobench's own symbols on terminals without them (Latin-1, ASCII)."""


class _Log(logging.Handler):
    """Prints each log record that has no other handler in one line, also those of libraries."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record).replace("\n", " "))


def _format_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> str:
    """``warnings.formatwarning`` in one line, without the source line of the warning."""
    return f"{category.__name__}: {printable(str(message))}\n"


def prepare_streams() -> None:
    """Make the streams print an escape for each character that they cannot encode.

    Log records and warnings of libraries are printed through this module, too, since they can quote
    names and replies from others.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    logging.lastResort = _Log(logging.WARNING)
    warnings.formatwarning = _format_warning


def is_drawable() -> bool:
    """Whether standard error is a terminal on which lines can be drawn in place."""
    return os.environ.get("TERM", "") not in ("", "dumb") and sys.stderr.isatty()


def has_blocks(stream: TextIO) -> bool:
    """Whether a terminal has block characters: in its encoding, and not the Linux console."""
    try:
        "▁▂▃▄▅▆▇█".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM", "") != "linux"


def use_color() -> bool:
    """Return whether to print colour: on a terminal, without NO_COLOR and TERM=dumb."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def columns() -> int:
    """Return the terminal's columns, or DEFAULT_COLUMNS if standard output is no terminal."""
    return _terminal_columns() if sys.stdout.isatty() else DEFAULT_COLUMNS


def _terminal_columns() -> int:
    return max(MIN_COLUMNS, shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns)


def say(line: str = "") -> None:
    """Print one line on standard output; a newline inside it is printed as an escape."""
    _write(sys.stdout, printable(line))


def show(text: str) -> None:
    """Print the lines of a renderer of ``report`` on standard output, with its colours."""
    for line in text.removesuffix("\n").split("\n"):
        parts = _COLOR.split(line) if use_color() else [line]
        safe = (each if at % 2 else printable(each) for at, each in enumerate(parts))
        _write(sys.stdout, "".join(safe))


TAKEN: ContextVar[list[str] | None] = ContextVar("TAKEN", default=None)
"""Where JSON documents go that a caller in Python takes, and that are not printed."""


def show_json(document: Any, *, indent: int | None = 2) -> None:
    """Print a JSON document in ASCII, from a pydantic model, a dataclass or plain data."""
    text, taken = json_text(document, indent=indent), TAKEN.get()
    if taken is None:
        sys.stdout.write(text + "\n")
    else:
        taken.append(text)


def show_lines(document: Any, lines: Iterable[str], *, json: bool) -> None:
    """Print a document as JSON, or what it says in lines."""
    if json:
        show_json(document)
        return
    for line in lines:
        say(line)


def show_data(text: str) -> None:
    """Print CSV, Markdown or JSON for other programs, without breaking lines."""
    lines = text.removesuffix("\n").split("\n")
    sys.stdout.write("".join(f"{_encodable(sys.stdout, printable(line))}\n" for line in lines))


def show_pieces(pieces: Iterable[str]) -> None:
    """Print a long document in ASCII piece by piece, as it is made."""
    for piece in pieces:
        sys.stdout.write(piece)


def warn(message: str) -> None:
    """Print one line on standard error that begins with the program's name."""
    _write(sys.stderr, f"iobench: {printable(message)}")


def warn_of_left_out(lines: Sequence[str]) -> None:
    """Say that records do not count, in one line: the first, and how many there are."""
    if lines:
        others = f" (the first of {len(lines)}; --details has all)" if len(lines) > 1 else ""
        warn(f"left out{others}: {lines[0]}")


def note(line: str, *, quiet: bool = False) -> None:
    """Print one line about the progress on standard error; nothing if ``quiet``."""
    if not quiet:
        _write(sys.stderr, printable(line))


def _write(stream: TextIO, line: str) -> None:
    line = _encodable(stream, line)
    lines = folded(line, _terminal_columns()) if stream.isatty() else [line]
    stream.write("\n".join(lines) + "\n")


def _encodable(stream: TextIO, text: str) -> str:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return text.translate(_SIMPLE)
    return text


def folded(line: str, width: int) -> list[str]:
    """Break ``line`` between words into lines of at most ``width`` columns.

    A longer word stays whole. The first line keeps its indentation, up to a third of the width; the
    following lines are indented by two more columns. A line with colours that fits stays whole.
    """
    if len(_COLOR.sub("", line)) <= width:
        return [line]
    text = line.lstrip(" ")
    indent = " " * min(len(line) - len(text), width // 3)
    return wrapped(text, width, indent, f"{indent}  ")


def whole_seconds(seconds: float) -> str:
    """A time that need not be exact: ``8 s``, ``2 min 5 s``; at least one second."""
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 100 else format_duration(float(whole))


_OUTPUT, _ERRORS = 1, 2


class _Descriptor(io.FileIO):
    """A file descriptor that is replaced by /dev/null when it can't be written to any more.

    That its reader has closed it is no error; ``any_error``: nor is anything else (a full disk, a
    closed terminal).
    """

    def __init__(self, fd: int, *, any_error: bool) -> None:
        super().__init__(fd, "wb", closefd=False)
        self._forgiven = OSError if any_error else BrokenPipeError

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            # An error is raised once. Python writes what is left again when it ends, to nowhere.
            _discard(self.fileno())
            if not isinstance(error, self._forgiven):
                raise
            return memoryview(data).nbytes


def survive_closed_readers() -> None:
    """Keep a verb running when the reader of one of this process's streams has closed it.

    Any other failure to write to standard output (a full disk) stays an error, since the user does
    not get the document. A failure to write to standard error is never an error, since it could not
    be reported. A stream that was closed before the process began (``>&-``) becomes /dev/null, so
    that no file that is opened later gets its number. Streams that a program or a test has set in
    place of Python's own are not changed.
    """
    if sys.stdout is None or sys.stdout is sys.__stdout__:
        sys.stdout = _surviving(sys.__stdout__, _OUTPUT, any_error=False)
    if sys.stderr is None or sys.stderr is sys.__stderr__:
        sys.stderr = _surviving(sys.__stderr__, _ERRORS, any_error=True)


def _surviving(stream: TextIO | None, fd: int, *, any_error: bool) -> TextIO:
    if stream is None:
        try:
            os.fstat(fd)
        except OSError:
            _discard(fd)
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    with suppress(OSError):  # earlier output is lost, too, if this fails
        stream.flush()
    raw = _Descriptor(stream.fileno(), any_error=any_error)
    return io.TextIOWrapper(
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard(fd: int) -> None:
    """Replace a descriptor by /dev/null, for this process and its child processes."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != fd:
        os.dup2(null, fd)
        os.close(null)


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
        raise _not_writable("--output", file, error) from None
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


def _not_writable(flag: str, file: str | None, error: OSError | ValueError) -> UsageError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return UsageError(
        f"{flag} {file} can't be written: {why}", remedy="name a file that you may write"
    )


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
    from ..checkpoint.place import CHECKPOINTS
    from ..record.ab import AB_FILE
    from ..record.manifest import MANIFEST, MARKER, SAMPLES, SHARDS
    from ..record.run import EVENTS_FILE, RUN_FILE, SAMPLES_FILE
    from ..record.sweep import SWEEP_FILE
    from ..serve.weights import WEIGHTS

    if path.name in (RUN_FILE, EVENTS_FILE, SAMPLES_FILE, SWEEP_FILE, AB_FILE):
        return "a record"
    tables = (MANIFEST, SAMPLES, SHARDS)
    if path.name in tables and all((path.parent / name).exists() for name in tables):
        return "a dataset"
    for folder in path.parents:
        owners = ((MARKER, "a dataset"), *((k.marker, k.what) for k in (CHECKPOINTS, WEIGHTS)))
        for marker, what in owners:
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


class _Formatter(logging.Formatter):
    """Formats each record as one line, with the time in UTC."""

    def __init__(self) -> None:
        super().__init__()
        self._host = socket.gethostname()

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        number = rank()
        who = "" if number is None else f" rank={number}"
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        return printable(
            f"{seconds}.{int(record.msecs):03d}Z host={self._host}{who} pid={os.getpid()} "
            f"{record.levelname.lower()} {record.name}: {text}"
        )


class _Stderr(logging.Handler):
    """Writes to what standard error is at that moment: with a screen, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
        except Exception:
            self.handleError(record)


class _LogFile(logging.FileHandler):
    """A file that is said once not to be writable, such as on a full disk, and then goes without.

    Nothing else fails because of it.
    """

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            warn(f"the log {self.baseFilename} can't be written: {error.strerror}")

    def close(self) -> None:
        with suppress(OSError):  # what is not written yet
            super().close()


@contextmanager
def logging_to(level: str | None, file: str | None) -> Iterator[None]:
    """Write the log to ``file`` inside the context, or to standard error if it is None.

    iobench's own modules log from ``level`` on, libraries from warnings on. Processes that are
    forked inside the context write to the same file. Raises UsageError if the file cannot be
    written.
    """
    if level is None and file is None:
        yield
        return
    handler: logging.Handler
    try:
        handler = (
            _Stderr()
            if file is None
            else _LogFile(file, encoding="utf-8", errors="backslashreplace")
        )
    except (OSError, ValueError) as error:
        raise _not_writable("--log-file", file, error) from None
    handler.setFormatter(_Formatter())
    root, own = logging.getLogger(), logging.getLogger("iobench")
    before = own.level
    own.setLevel((level or "info").upper())
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        own.setLevel(before)
        handler.close()
