"""Ranks that exchange gradients make all of their steps together.

An exchange of gradients waits for every rank, but ranks may have unequal numbers of batches, reach
a limit at different times, or be told to stop. So before each step they agree whether any of them
has a batch. A rank without one then steps on bytes in its memory, as a sampler of torch repeats
samples where the ranks' shares differ. Such steps are in no figure.
"""

from __future__ import annotations

import time

from ..barrier import StepBarrier
from ..task import Flag

_LOST_S = 10.0
"""Within this time the parent has noticed that a rank has ended."""


class Together:
    """What the ranks agree on. Made before they are forked; each call waits for all ranks.

    All ranks must make the same calls in the same order.
    """

    def __init__(self, ranks: int) -> None:
        self._barrier = StepBarrier(ranks)

    def any(self, own: bool, stopped: Flag) -> bool | None:
        """Whether it is true of any rank; None if this rank is to stop instead."""
        opening = self._barrier.wait(0, int(own), stopped)
        return None if opening is None else bool(opening.at_ns)


def stops_soon(stopped: Flag) -> bool:
    """Wait for the parent's stop, which follows when a rank was lost."""
    deadline = time.monotonic() + _LOST_S
    while not stopped.value and time.monotonic() < deadline:
        time.sleep(0.01)
    return stopped.value
