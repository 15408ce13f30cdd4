"""Which rank a line of the log is of: every process knows its own, and loader workers inherit it.

Modules log through ``logging.getLogger(__name__)``; ``cli/logs.py`` decides where that goes.
"""

from __future__ import annotations

_rank: int | None = None


def set_rank(number: int) -> None:
    """From now on this process, and what it forks, is of this rank."""
    global _rank
    _rank = number


def rank() -> int | None:
    """Of this process; None where it is of no rank."""
    return _rank
