"""Make text of others (names, errors, documents) safe to show on a terminal and in tables.

A run, a dataset or a file name may come from anyone. Control characters in it can change a
terminal's title, write to the clipboard (OSC 52) or erase what was printed, and bidirectional
controls make a line read as another one (CVE-2021-42574). Such text must go through ``printable``
before it is shown. A renderer with the decorator ``renders`` gets all of its arguments escaped.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

MAX_SHOWN = 4000
"""Characters of one text in a report; iobench's own texts are much shorter."""

_ESCAPED = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories: controls, format characters, unassigned codes, private use, lone surrogates,
separators.
"""

_KEPT = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Format characters that have a visible glyph (number signs of Arabic, Syriac and Kaithi)."""

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}

T = TypeVar("T")
P = ParamSpec("P")


def printable(text: str, limit: int | None = None) -> str:
    r"""``text`` on one line, with invisible characters and terminal commands as visible escapes.

    Escaped are control characters (C0, DEL, C1), format characters (bidirectional controls, zero
    width, soft hyphen, byte order mark ...; those with a visible glyph are kept), line and
    paragraph separators, private use and lone surrogates: ``\n``, ``\x1b``, ``\u202e``, ``\udcff``.
    With ``limit`` the result has at most that many characters; ``...`` at its end means that some
    were cut off.
    """
    if limit is not None and len(text) > limit:
        text = text[: limit + 1]
    if not text.isprintable():
        text = "".join(map(_shown, text))
    if limit is not None and len(text) > limit:
        text = f"{text[: max(0, limit - 3)]}..."
    return text


def _shown(character: str) -> str:
    if unicodedata.category(character) not in _ESCAPED or character in _KEPT:
        return character
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_MARKDOWN = {
    "\\": "&#92;",
    "`": "&#96;",
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
    **{each: f"\\{each}" for each in "|[*_~"},
}

_MARKUP = re.compile(
    r"\\(?=[|\[*_~\\])"  # in the text, it must not take the place of the one that escapes
    r"|&(?=#?\w+;)"
    r"|(?<![^\W_])_|_(?![^\W_])"  # within a word, it is no emphasis
    r"|[|\[`<>*~]"
)


def markdown(text: str, limit: int | None = None) -> str:
    """``printable`` text that Markdown shows as it is.

    No cell, code, HTML, character reference, emphasis, strikethrough or link.
    """
    return _MARKUP.sub(lambda found: _MARKDOWN[found[0]], printable(text, limit))


_GITHUB = str.maketrans({each: f"&#{ord(each)};" for each in "&<>|[]`*_~#\\@$"})


def github(text: str, limit: int | None = None) -> str:
    """``printable`` text that GitHub's Markdown shows as it is, also within HTML and cells.

    Each character that could begin markup is a character reference, which never is markup.
    """
    return printable(text, limit).translate(_GITHUB)


_FORMULA = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
"""First characters that make a spreadsheet take a cell for a formula (OWASP, "CSV Injection"),
full-width ones included."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def csv_cell(value: object) -> object:
    """A cell of a CSV file; text that a spreadsheet would take for a formula gets a leading ``'``.

    Numbers stay unchanged, also negative ones; None is an empty cell.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    if value[:1] and value[0] in _FORMULA and not _NUMBER.fullmatch(value):
        return f"'{value}"
    return value


def escaped(value: T, escape: Callable[..., str] = printable, limit: int | None = MAX_SHOWN) -> T:
    """A copy of ``value`` with all texts escaped: in mappings (keys too), sequences and records.

    Records are dataclasses, named tuples and pydantic models. Parts without text are not copied.
    """
    changed: Any = _escaped(value, functools.partial(escape, limit=limit))
    result: T = changed
    return result


def _escaped(value: Any, escape: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return escape(value)
    if value is None or isinstance(value, int | float | bytes):
        return value
    if isinstance(value, Mapping):
        return {_escaped(key, escape): _escaped(each, escape) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_escaped(each, escape) for each in value))
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_escaped(each, escape) for each in value)
    if (names := getattr(type(value), "model_fields", None)) is not None:
        if value.model_extra is not None:  # a key that was not given stays so: its default is safe
            names = [name for name in names if name in value.model_fields_set]
        update = _changes(value, names, escape)
        for name, each in (value.model_extra or {}).items():  # of a later version; names stay
            if (new := _escaped(each, escape)) is not each:
                update[name] = new
        return value.model_copy(update=update) if update else value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.init]
        update = _changes(value, names, escape)
        return dataclasses.replace(value, **update) if update else value
    return value


def _changes(value: Any, names: Any, escape: Callable[[str], str]) -> dict[str, Any]:
    found = {name: getattr(value, name) for name in names}
    new = {name: _escaped(each, escape) for name, each in found.items()}
    return {name: each for name, each in new.items() if each is not found[name]}


def renders(
    escape: Callable[..., str], limit: int | None = MAX_SHOWN
) -> Callable[[Callable[P, str]], Callable[P, str]]:
    """Decorator for a function that renders records as text: escapes all of its arguments.

    So no renderer has to remember that a text may come from others. The attribute ``escape`` of the
    decorated function is the function that escapes.
    """

    def decorate(render: Callable[P, str]) -> Callable[P, str]:
        @functools.wraps(render)
        def safe(*args: P.args, **kwargs: P.kwargs) -> str:
            shown = [escaped(each, escape, limit) for each in args]
            named = {name: escaped(each, escape, limit) for name, each in kwargs.items()}
            return render(*shown, **named)  # type: ignore[arg-type]

        safe.escape = escape  # type: ignore[attr-defined]
        return safe

    return decorate


def capital(text: str) -> str:
    """The text with a capital letter at its beginning, and no other change."""
    return text[:1].upper() + text[1:]


_MARKER = re.compile("@([A-Z]+)")


def filled(file: Path, /, **values: object) -> str:
    """The text of a file with a value in place of each ``@NAME``.

    A line that has nothing but a marker, whose value is empty, is left out.
    """
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [_MARKER.sub(lambda marker: str(values[marker[1]]), line) for line in lines]
    return "".join(f"{new}\n" for new, line in zip(found, lines, strict=True) if new or not line)


def quoted(word: str) -> str:
    r"""A word for a POSIX shell; with ``$'...'`` of bash if it has invisible characters.

    https://www.gnu.org/software/bash/manual/html_node/ANSI_002dC-Quoting.html
    """
    if printable(word) == word:
        return shlex.quote(word)
    try:
        data = word.encode("utf-8", "surrogateescape")  # bytes of a file name that are not UTF-8
    except UnicodeEncodeError:
        data = word.encode("utf-8", "surrogatepass")
    kept = {byte: chr(byte) for byte in range(0x20, 0x7F) if byte not in b"\\'"}
    return f"$'{''.join(kept.get(byte, f'{chr(92)}x{byte:02x}') for byte in data)}'"


def flag_values(words: Sequence[str], flag: str) -> list[str]:
    """The values of a flag among the words of a command."""
    found = [value for word, value in pairwise(words) if word == flag]
    return found + [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]


def without_flag(words: Sequence[str], flag: str, key: str = "") -> list[str]:
    """The words without a flag and its value; with ``key`` only where the value sets that key."""
    kept: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        value, taken = (words[at + 1], 2) if at + 1 < len(words) else ("", 1)
        if word.startswith(f"{flag}="):
            word, value, taken = flag, word.partition("=")[2], 1
        if word == flag and (not key or value.partition("=")[0].strip() == key):
            at += taken
        else:
            kept.append(words[at])
            at += 1
    return kept


def wrapped(text: str, width: int, first: str = "", rest: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` columns; a longer word stays whole.

    No line begins with the sign of a percentage, such as that of "90 %".
    """
    lines = textwrap.wrap(
        re.sub(r"(?<=\d) (?=%)", "\xa0", text),
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines] or [first]
