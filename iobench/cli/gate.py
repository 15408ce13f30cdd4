"""The flags of a gate, ``--fail-on`` and ``--if-inconclusive``, and the exit status."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .requests.measure import AbRequest
from .requests.understand import CompareRequest
from .terminal import warn

if TYPE_CHECKING:
    from collections.abc import Iterable

FAILED = 4


def status_of(
    request: AbRequest | CompareRequest, failed: Iterable[str], inconclusive: Iterable[str]
) -> int:
    """The exit status of a gate, after a line on stderr for each failure.

    ``failed``: what is worse, one line each. ``inconclusive``: what is inconclusive.
    """
    limit = f"--fail-on {100 * (request.fail_on or 0):g}%"
    worse, unknown = list(failed), list(inconclusive)
    for line in worse:
        warn(f"{limit}: {line}")
    if request.if_inconclusive != "pass":
        for line in unknown:
            warn(f"{limit}: inconclusive: {line}")
    return FAILED if worse or (unknown and request.if_inconclusive == "fail") else 0
