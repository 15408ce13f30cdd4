"""The output of verbs: every line that a verb prints goes through this module.

Standard output has the result, standard error everything else. Control and bidirectional characters
in names, errors and documents from others are printed as visible escapes. So are characters that
the terminal's encoding lacks. Lines are broken between words if the terminal is narrow. Colour is
used only if the user wants it (https://no-color.org).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from ..documents import json_text
from ..text import printable
from ..units import format_duration

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
        plain = (printable(part) for part in parts[::2])
        _write(sys.stdout, "".join(_interleaved(plain, parts[1::2])))


def show_json(document: Any, *, indent: int | None = 2) -> None:
    """Print a JSON document in ASCII, from a pydantic model, a dataclass or plain data."""
    sys.stdout.write(json_text(document, indent=indent) + "\n")


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


def note(line: str, *, quiet: bool = False) -> None:
    """Print one line about the progress on standard error; nothing if ``quiet``."""
    if not quiet:
        _write(sys.stderr, printable(line))


def _interleaved(texts: Any, between: list[str]) -> Any:
    for text, code in zip(texts, [*between, ""], strict=True):
        yield text
        yield code


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
    following lines are indented by two more columns. Colour codes take no columns.
    """
    if _columns(line) <= width:
        return [line]
    text = line.lstrip(" ")
    indent = min(len(line) - len(text), width // 3)
    rest = " " * (indent + 2)
    lines = [" " * indent]
    for word in re.findall(r" *[^ ]+", text):
        if lines[-1].strip() and _columns(lines[-1] + word) > width:
            lines.append(rest + word.lstrip(" "))
        else:
            lines[-1] += word
    return lines


def _columns(text: str) -> int:
    return len(_COLOR.sub("", text))


def whole_seconds(seconds: float) -> str:
    """A time that need not be exact: ``8 s``, ``2 min 5 s``; at least one second."""
    whole = max(1, round(seconds))
    return f"{whole} s" if whole < 100 else format_duration(float(whole))


QUIET_S, FIRST_LINES_S, LINE_S, LATER_LINE_S = 10.0, 60.0, 5.0, 30.0
"""Without a terminal: nothing for QUIET_S, a line each LINE_S until FIRST_LINES_S have passed, and
then each LATER_LINE_S."""


class Live:
    """The progress of a verb on stderr.

    On a terminal it is one line, which is overwritten at most four times per second. With
    ``lines`` and without a terminal (or with TERM=dumb) it is a new line every few seconds.
    Nothing is shown with ``quiet``.
    """

    def __init__(self, *, quiet: bool, lines: bool = False) -> None:
        dumb = os.environ.get("TERM", "") == "dumb"
        self._on = not quiet and not dumb and sys.stderr.isatty()
        self._lines = lines and not quiet and not self._on
        self._title = self._detail = ""
        self._started = self._began = self._told = time.monotonic()
        self._shown = 0.0

    def phase(self, title: str) -> None:
        """Start a new phase of the work."""
        self._title, self._began, self._shown = printable(title), time.monotonic(), 0.0
        self._detail = ""
        self._show("")
        self._tell()

    def steps(self, done: int) -> None:
        """Show that ``done`` steps of the phase are done."""
        self.detail(f"{done} steps" if done else "")

    def detail(self, text: str) -> None:
        """Show how far the phase is."""
        now = time.monotonic()
        self._detail = text
        if now - self._shown >= 0.25:
            self._shown = now
            shown = [text, f"{now - self._began:.0f} s", self.left()]
            self._show(", ".join(filter(None, shown)))
        self._tell()

    def left(self) -> str:
        """How much time is left of everything, in words; empty if that is not known."""
        return ""

    def _show(self, detail: str) -> None:
        if self._on:
            line = _encodable(sys.stderr, f"{self._title} ... {detail}")
            sys.stderr.write(f"\r\x1b[K{line[: min(110, _terminal_columns() - 1)]}")
            sys.stderr.flush()

    def _tell(self) -> None:
        """Write a line where there is no terminal, if the last one is long ago."""
        now = time.monotonic()
        passed = now - self._started
        pause = LINE_S if passed < FIRST_LINES_S else LATER_LINE_S
        if not self._lines or passed < QUIET_S or now - self._told < pause:
            return
        self._told = now
        shown = [self._detail, f"{whole_seconds(passed)} passed", self.left()]
        note(f"{self._title}: {', '.join(filter(None, shown))}")

    def close(self) -> None:
        """Remove the line."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
