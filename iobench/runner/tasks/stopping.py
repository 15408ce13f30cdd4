"""When a rank of a phase stops: before an epoch, and before a step.

It stops when it is told to, or at a limit of its phase: a number of steps, or seconds of all its
epochs together, after which its workers may finish their rounds.
"""

from __future__ import annotations

import time

from ..messages import Flag
from ..phase import Phase

_PATIENCE_IN_ROUNDS = 10
"""A phase may take this many times its limit longer, to finish its rounds."""

_PATIENCE_IN_FILLS = 2
"""Or this many times as long as its rounds take at the pace of the first batch, if that is more:
a phase that ends within its first round has no rate."""


class Stopping:
    """The limits of one rank. ``done``: its steps so far.

    ``told``: becomes true when the rank is to stop. ``round_batches``: that its workers make at the
    same time.
    """

    def __init__(self, phase: Phase, told: Flag, *, round_batches: int) -> None:
        self.phase, self._told, self._round_batches = phase, told, round_batches
        self.done = 0
        self._start_ns = self._spent_ns = 0
        self._filled_ns = 0  # until the first batch was there
        self._end_ns: int | None = None  # of the time limit, in this epoch

    @property
    def told(self) -> bool:
        return bool(self._told.value)

    def begin(self, start_ns: int) -> None:
        """An epoch begins then."""
        self._start_ns = start_ns
        if self.phase.limit_s is not None:
            self._end_ns = start_ns + round(self.phase.limit_s * 1e9) - self._spent_ns

    def got(self, ready_ns: int) -> None:
        """A batch has come."""
        self._filled_ns = self._filled_ns or ready_ns - self._start_ns

    def ended(self) -> None:
        """An epoch has ended."""
        self._spent_ns += time.monotonic_ns() - self._start_ns

    def before_epoch(self, epoch: int) -> bool:
        """Whether the rank stops instead of beginning ``epoch``."""
        phase = self.phase
        if self._stops() or (phase.epochs is not None and epoch >= phase.epochs):
            return True
        return phase.limit_s is not None and self._spent_ns >= phase.limit_s * 1e9

    def before_batch(self, now_ns: int) -> bool:
        """Whether it stops instead of asking for a batch."""
        return self._stops() or self._is_over(now_ns)

    def before_step_alone(self, now_ns: int, step: int) -> bool:
        """Whether it stops instead of making ``step`` of an epoch without a batch."""
        time_is_up = self._end_ns is not None and now_ns >= self._end_ns
        return self._stops() or (time_is_up and step >= self.phase.min_steps)

    def _stops(self) -> bool:
        most = self.phase.max_steps
        return self.told or (most is not None and self.done >= most)

    def _is_over(self, now_ns: int) -> bool:
        """Whether the time limit ends the epoch at this step.

        Workers begin together, so batches arrive in rounds: one of each worker, or as many as it
        reads ahead. A rate taken in the middle of a round misses the other, almost complete
        batches, which for slow batches is most of the work. So rounds are finished, and there are
        at least ``min_rounds``, unless the patience ends. With checkpoints, the phase ends after
        one of them instead.
        """
        phase, end = self.phase, self._end_ns
        if end is None or now_ns < end:
            return False
        if not phase.whole_rounds:
            return True
        patience = max(
            _PATIENCE_IN_ROUNDS * round((phase.limit_s or 0) * 1e9),
            _PATIENCE_IN_FILLS * phase.min_rounds * self._filled_ns,
        )
        rounds, rest = divmod(self.done, self._round_batches)
        if phase.saving is not None:
            rest = self.done % phase.saving.every
        return (rounds >= phase.min_rounds and not rest) or now_ns > end + patience
