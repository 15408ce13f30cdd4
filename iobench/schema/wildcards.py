"""Names with ``*`` in them, matched in a time that their lengths bound.

Patterns and names may come from one hand. A regular expression of a few stars takes seconds over
one name of 255 letters, and one record may have as many patterns as fit into a file.
"""

from __future__ import annotations


def matches(pattern: str, name: str) -> bool:
    """Whether ``name`` is as ``pattern`` says: ``*`` is any characters but a slash, none included.

    The first place where a piece fits is the best one, so nothing is ever tried again.
    """
    wanted, parts = pattern.split("/"), name.split("/")
    return len(wanted) == len(parts) and all(map(_matches, wanted, parts))


def _matches(pattern: str, part: str) -> bool:
    first, *pieces = pattern.split("*")
    if not pieces:
        return part == first
    last = pieces.pop()
    position, end = len(first), len(part) - len(last)
    if position > end or not part.startswith(first) or not part.endswith(last):
        return False
    for piece in pieces:
        found = part.find(piece, position, end)
        if found < 0:
            return False
        position = found + len(piece)
    return True
