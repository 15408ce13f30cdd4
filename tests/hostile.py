"""Text as an attacker would write it, and a look at what a command printed of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from iobench.cli import main
from tests.processes import in_process

HOSTILE = (
    "=cmd|' /C calc'!A0\x1b]0;PWNED\x07\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202eevil\u2066\u200b"
    "\ud800\n</script>\r\t`|*[x](http://evil.example)\x9b31m\ufeff\U000e0041" + "A" * 10_000
)
"""Terminal titles, clipboard and erasing, bidirectional controls, half a pair, formulas, HTML."""

NAME = "=cmd|'\x1b]0;PWNED\x07\x1b[2J\u202e\u2066\u200b\n<b>`x"
"""The same as far as a file name can have it; ``BYTES`` is one that is not UTF-8."""

BYTES = b"\xff\xfe\x1b[2J\xe2\x80\xae.bin"

RAW = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""What must not reach a terminal: controls (but the newline), bidirectional and invisible ones."""


def strings(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all that is or may be a text in a document (null as well).

    Of each list those in its first and last entry.
    """
    if document is None or isinstance(document, str):
        yield path
    elif isinstance(document, dict):
        for key, value in document.items():
            yield from strings(value, (*path, key))
    elif isinstance(document, list):
        for index in sorted({0, len(document) - 1} if document else ()):
            yield from strings(document[index], (*path, index))


def leaves(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of everything in a document, the groups too, of each list the first entry."""
    if path:
        yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from leaves(value, (*path, key))
    elif isinstance(document, list) and document:
        yield from leaves(document[0], (*path, 0))


def replaced(document: Any, path: Sequence[Any], value: Any) -> Any:
    """A copy of ``document`` with ``value`` at ``path``."""
    if not path:
        return value
    changed = dict(document) if isinstance(document, dict) else list(document)
    changed[path[0]] = replaced(changed[path[0]], path[1:], value)
    return changed


_parsed = cache(main.parse)


def run(*words: object) -> tuple[int, str, str]:
    """``iobench WORDS`` in this process. Of the same words each time, parsing was the half."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "parse", lambda words: _parsed(tuple(words)))
        return in_process(*words)


def check(told: tuple[int, str, str], codes: Sequence[int], what: object) -> str:
    """Standard output of a command that ended well: as documented, and with nothing raw."""
    code, out, err = told
    assert code in codes, (what, code, ascii(err[:500]))
    for text in (out, err):
        raw = RAW.search(text)
        assert raw is None, (what, raw, ascii(text[max(0, raw.start() - 60) : raw.end() + 20]))
        assert "Traceback" not in text, (what, ascii(text[:500]))
    assert err.count("\n") <= 1, (what, ascii(err[:500]))
    return out
