"""Match names with ``*`` patterns, in a time that their lengths limit.

An attacker may control both patterns and names. A regular expression with a few stars can take
seconds for one name of 255 letters, and one record may have as many patterns as fit into a file.
"""

from __future__ import annotations


def matches(pattern: str, name: str) -> bool:
    """Return whether ``name`` matches ``pattern``.

    ``*`` stands for any number of characters except a slash, also for none. The first position
    where a piece between stars fits is always the best one, so that no backtracking is needed.
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
