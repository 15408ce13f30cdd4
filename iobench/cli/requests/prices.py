"""Prices on the command line: ``1.2``, or ``TYPE=USD,TYPE=USD``."""

from __future__ import annotations

from ...base.errors import UsageError
from .flags import number


def prices_by_type(text: str) -> dict[str, float]:
    """Parse ``1.2``, or ``g5.xlarge=1.0,g5.2xlarge=1.2``; without a type the key is ''.

    Raises UsageError.
    """
    found: dict[str, float] = {}
    for each in text.split(","):
        name, _, usd = each.rpartition("=")
        if name.strip() in found:
            raise UsageError(f"{text[:40]!r} has two prices of the same type")
        found[name.strip()] = number(usd.strip())
    if len(found) > 1 and "" in found:
        raise UsageError(f"{text[:40]!r} has a price without a type: write TYPE=USD,TYPE=USD")
    return found
