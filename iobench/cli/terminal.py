"""Everything that a verb prints goes through here: one place that knows about terminals.

Standard output carries the result, standard error everything else. What is not ours to send
(control and bidirectional characters in names, errors and documents from others) becomes a visible
escape, what the terminal's encoding lacks as well, lines are broken between words where a terminal
is narrow, and colour is used only where it is wanted (https://no-color.org).
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import time
import warnings
from typing import Any, TextIO

from ..documents import json_text
from ..text import printable

DEFAULT_COLUMNS = 100
MIN_COLUMNS = 20

_COLOR = re.compile("(\x1b\\[[0-9]{1,2}m)")
"""What ``report.lines.painter`` puts around a text, and nothing else."""

_SIMPLE = str.maketrans(
    {"█": "#", "▶": ">", "µ": "u", "·": ".", "–": "-", "…": "...", "’": "'", "×": "x"}
)
"""Our own symbols for terminals whose encoding has not got them (Latin-1, ASCII)."""


class _Log(logging.Handler):
    """Log records for which nobody has a handler, of libraries as well: one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        note(self.format(record).replace("\n", " "))


def _format_warning(
    message: Warning | str, category: type[Warning], *_: object, **__: object
) -> str:
    """``warnings.formatwarning`` in one line, without the line of code that gave the warning."""
    return f"{category.__name__}: {printable(str(message))}\n"


def prepare_streams() -> None:
    """No character can end in an error: what a stream can't encode it shows as an escape.

    Log records and warnings of libraries quote names and answers from others, so they go the way
    of every other text.
    """
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")
    logging.lastResort = _Log(logging.WARNING)
    warnings.formatwarning = _format_warning


def use_color() -> bool:
    """Whether standard output is a terminal that wants colour: NO_COLOR, or TERM=dumb, say no."""
    return (
        sys.stdout.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM", "") != "dumb"
    )


def columns() -> int:
    """Of the terminal; DEFAULT_COLUMNS where standard output is none."""
    return _terminal_columns() if sys.stdout.isatty() else DEFAULT_COLUMNS


def _terminal_columns() -> int:
    return max(MIN_COLUMNS, shutil.get_terminal_size((DEFAULT_COLUMNS, 24)).columns)


def say(line: str = "") -> None:
    """One line on standard output; a newline within it is shown as an escape."""
    _write(sys.stdout, printable(line))


def show(text: str) -> None:
    """Lines on standard output, as a renderer of ``report`` made them, with its colours."""
    for line in text.removesuffix("\n").split("\n"):
        parts = _COLOR.split(line) if use_color() else [line]
        plain = (printable(part) for part in parts[::2])
        _write(sys.stdout, "".join(_interleaved(plain, parts[1::2])))


def show_json(document: Any, *, indent: int | None = 2) -> None:
    """One JSON document, in ASCII: of a record (pydantic model, dataclass) or plain data."""
    sys.stdout.write(json_text(document, indent=indent) + "\n")


def show_data(text: str) -> None:
    """CSV, Markdown or JSON as a renderer made it, for another program: lines are not broken."""
    lines = text.removesuffix("\n").split("\n")
    sys.stdout.write("".join(f"{_encodable(sys.stdout, printable(line))}\n" for line in lines))


def warn(message: str) -> None:
    """One line on standard error that begins with the program's name."""
    _write(sys.stderr, f"iobench: {printable(message)}")


def note(line: str, *, quiet: bool = False) -> None:
    """One line on standard error about what is going on; nothing with ``--quiet``."""
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
    """``line`` as lines of at most ``width`` columns, broken between words alone.

    A word that is longer stays whole. What follows is indented two columns more than the first
    line, which keeps its indentation up to a third of the width. Colour codes take no columns.
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


class Live:
    """One line on stderr that is written over, four times a second at most; else nothing.

    It is there where stderr is a terminal, unless ``quiet`` or TERM=dumb.
    """

    def __init__(self, *, quiet: bool) -> None:
        dumb = os.environ.get("TERM", "") == "dumb"
        self._on = not quiet and not dumb and sys.stderr.isatty()
        self._title = ""
        self._began = time.monotonic()
        self._shown = 0.0

    def phase(self, title: str) -> None:
        """A new phase of the work."""
        self._title, self._began, self._shown = printable(title), time.monotonic(), 0.0
        self._show("")

    def steps(self, done: int) -> None:
        """``done`` steps of the phase."""
        now = time.monotonic()
        if now - self._shown >= 0.25:
            self._shown = now
            self._show(f"{done} steps, {now - self._began:.0f} s")

    def _show(self, detail: str) -> None:
        if self._on:
            line = _encodable(sys.stderr, f"{self._title} ... {detail}")
            sys.stderr.write(f"\r\x1b[K{line[: min(110, _terminal_columns() - 1)]}")
            sys.stderr.flush()

    def close(self) -> None:
        """Take the line away."""
        if self._on:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
