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
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from ..base.documents import json_text
from ..base.text import printable
from ..base.units import format_duration

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
