"""The barrier at which the forked ranks of a phase wait for each other, after or before each step.

It stands for the all-reduce of data-parallel training. Each rank brings the nominal end of its
step, and the barrier opens nominally at the latest of these, whatever the machine's own delays.

Ranks that exchange gradients make all of their steps together. An exchange waits for every rank,
but ranks may have unequal numbers of batches, reach a limit at different times, or be told to stop.
So before each step they agree whether any of them has a batch. A rank without one then steps on
bytes in its memory, as a sampler of torch repeats samples where the ranks' shares differ. Such
steps are in no figure.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .messages import Flag

_LOOK_S = 0.2
"""How often a rank that waits looks whether it is to stop: another rank may have died."""

_ARRIVED, _OPENED, _END, _MEMBERS = 0, 1, 2, 4
"""Places in the shared memory. The latest end has one for even and one for odd steps, and the
number of members one for even and one for odd epochs."""


class Opening(NamedTuple):
    """When the barrier opened nominally, in nanoseconds; and how often it has opened by then."""

    at_ns: int
    number: int


class StepBarrier:
    """Made before the ranks are forked, which share its memory.

    A rank joins an epoch before it tells its parent that it is ready for it. So all ranks of an
    epoch have joined before the first of them makes a step. A rank that has no more batches leaves
    the epoch, and the others do not wait for it. It may join the next epoch while others are still
    in this one. No rank waits longer than ``_LOOK_S`` after ``stopped`` has become true, even if
    another rank was killed in here.
    """

    def __init__(self, members: int = 0) -> None:
        """``members``: ranks that take part in all steps, and neither join nor leave an epoch."""
        fork = multiprocessing.get_context("fork")
        self._state = memoryview(fork.RawArray("q", 6)).cast("B").cast("q")
        self._state[_MEMBERS] = self._state[_MEMBERS + 1] = members
        self._lock = fork.Lock()
        # Ranks that wait at an even and at an odd step. A fast rank may already wait at the next
        # step while a slow one has not yet seen that this one is over.
        self._turnstiles = (fork.Semaphore(0), fork.Semaphore(0))

    def join(self, epoch: int, stopped: Flag) -> None:
        """Take part in the steps of this epoch."""
        with self._held(stopped) as held:
            if held and (self._state[_MEMBERS + epoch % 2] or self._begin(epoch, stopped)):
                self._state[_MEMBERS + epoch % 2] += 1

    def leave(self, epoch: int, stopped: Flag) -> None:
        """Take no more part in this epoch: the others do not wait for this rank."""
        with self._held(stopped) as held:
            if held:
                self._state[_MEMBERS + epoch % 2] -= 1
                waiting, members = self._state[_ARRIVED], self._state[_MEMBERS + epoch % 2]
                if not members:
                    self._end(epoch)
                elif waiting >= members and self._agree(epoch, stopped):
                    self._open(waiting)

    def wait(self, epoch: int, end_ns: int, stopped: Flag) -> Opening | None:
        """Wait until all ranks of the epoch are here; ``end_ns`` is the nominal end of this step.

        Returns None if the rank is to stop.
        """
        state = self._state
        with self._held(stopped) as held:
            if not held:
                return None
            number = state[_OPENED]
            place = _END + number % 2
            state[place] = max(state[place], end_ns)
            state[_ARRIVED] += 1
            last = state[_ARRIVED] >= state[_MEMBERS + epoch % 2]
            if last:
                if not self._agree(epoch, stopped):
                    return None
                self._open(state[_ARRIVED] - 1)
        turnstile = self._turnstiles[number % 2]
        while not last and not turnstile.acquire(timeout=_LOOK_S):
            if stopped.value and self._withdrawn(number, stopped):
                return None
        # Nobody writes here before this rank has come to the next step, or has left.
        return Opening(state[place], number + 1)

    def _withdrawn(self, number: int, stopped: Flag) -> bool:
        """Take this rank's arrival at step ``number`` back; False if all have come after all.

        So either all ranks make a step or none does.
        """
        with self._held(stopped) as held:
            if held and self._state[_OPENED] != number:
                return False
            if held:
                self._state[_ARRIVED] -= 1
            return True

    def _begin(self, epoch: int, stopped: Flag) -> bool:
        """The first rank of this host joins the epoch; False: it is to stop. The lock is held."""
        return True

    def _agree(self, epoch: int, stopped: Flag) -> bool:
        """All ranks of this host are here: agree with other hosts, while the lock is held.

        Returns False if the rank is to stop.
        """
        return True

    def _end(self, epoch: int) -> None:
        """The last rank of this host has left the epoch. The lock is held."""

    def _latest(self) -> int:
        """The latest nominal end of the current step, in nanoseconds."""
        return self._state[_END + self._state[_OPENED] % 2]

    def _set_latest(self, end_ns: int) -> None:
        self._state[_END + self._state[_OPENED] % 2] = end_ns

    def _open(self, waiting: int) -> None:
        """Let ``waiting`` ranks go on, and prepare the next step. The lock must be held."""
        number = self._state[_OPENED]
        self._state[_ARRIVED] = 0
        self._state[_END + (number + 1) % 2] = 0
        self._state[_OPENED] = number + 1
        for _ in range(waiting):
            self._turnstiles[number % 2].release()

    @contextmanager
    def _held(self, stopped: Flag) -> Iterator[bool]:
        """Hold the lock; yields False, without it, if the rank is to stop before it gets it."""
        while not self._lock.acquire(timeout=_LOOK_S):
            if stopped.value:
                yield False
                return
        try:
            yield True
        finally:
            self._lock.release()


_LOST_S = 10.0
"""Within this time the parent has noticed that a rank has ended."""


class StepAgreement:
    """What the ranks agree on. Made before they are forked; each call waits for all ranks.

    All ranks must make the same calls in the same order. ``barrier``: has all ranks as members.
    """

    def __init__(self, barrier: StepBarrier) -> None:
        self._barrier = barrier

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
