"""How the ranks of a phase step together: after each step, before it, or as a group.

Ranks in step meet at the barrier after each step. Ranks that exchange gradients agree before each
step. In a group of ranks that hold one model together, one reads and the others follow it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import NamedTuple

from ...accelerate.emulated import beyond
from ...record.job import LoaderFacts
from ..barrier import StepAgreement, StepBarrier
from ..messages import HURRY, Flag, Link, ReadyForEpoch, Recorded, Start

_LOOK_S = 0.001
"""How often a rank that follows looks whether the one that reads has ended its epoch."""


class GroupEpochs:
    """Which epoch each rank that reads is in, for the others of its group.

    Made before the ranks are forked, which share its memory.
    """

    _OVER = -1

    def __init__(self, ranks: int) -> None:
        # Twice the epoch that a rank reads or is about to begin, or one more at the epoch's end.
        state = multiprocessing.get_context("fork").RawArray("q", ranks)
        self._state = memoryview(state).cast("B").cast("q")

    def begin(self, rank: int, epoch: int) -> None:
        """The rank is about to read the epoch."""
        self._state[rank] = 2 * epoch

    def end(self, rank: int, epoch: int) -> None:
        """It has read the epoch."""
        self._state[rank] = 2 * epoch + 1

    def close(self, rank: int) -> None:
        """It reads no more."""
        self._state[rank] = self._OVER

    def reads(self, rank: int, epoch: int) -> bool:
        return self._state[rank] == 2 * epoch

    def has_read(self, rank: int, epoch: int) -> bool:
        """Whether it has read the epoch, and goes on neither to the next one nor to its end."""
        return self._state[rank] == 2 * epoch + 1

    def is_over(self, rank: int) -> bool:
        return self._state[rank] == self._OVER


class Follower:
    """A rank of a group that does not read: it waits at the barrier while its group's reader steps.

    It gets the reader's batch over the network of the accelerators, computes at the same time, and
    records nothing: what it waits for is what its reader waits for.
    """

    def __init__(self, link: Link, barrier: StepBarrier, groups: GroupEpochs, reader: int) -> None:
        self.link, self.barrier, self.groups, self.reader = link, barrier, groups, reader
        signal.signal(HURRY, lambda number, frame: os._exit(0))

    def run(self) -> None:
        began, epoch, stopped = time.process_time_ns(), 0, self.link.stopped
        while not stopped.value and not self.groups.is_over(self.reader):
            self.barrier.join(epoch, stopped)
            self.link.send(ReadyForEpoch(epoch))
            if not isinstance(self.link.receive(), Start):
                break
            while self.groups.reads(self.reader, epoch):
                if self.barrier.wait(epoch, 0, stopped) is None:
                    break
            self.barrier.leave(epoch, stopped)
            while self.groups.has_read(self.reader, epoch) and not stopped.value:
                time.sleep(_LOOK_S)
            epoch += 1
        self.link.send(
            Recorded(
                columns={},
                cpu_s=(time.process_time_ns() - began) / 1e9,
                complete=True,
                startups={},
                fetched={},
                loader=LoaderFacts(),
            )
        )


class StepEnd(NamedTuple):
    """How a step ended, in nanoseconds.

    ``sync_ns``: the wait for other ranks. ``late_ns``: how late it was here, for which the next
    step makes up. ``lost_ns``: for how long the emulation stood still, for which none does.
    """

    sync_ns: int
    late_ns: int
    lost_ns: int


class InStep:
    """One rank beside the others: where it waits for them. ``emulated``: its accelerator is.

    ``barrier``: where ranks in step meet; ``agreement``: of ranks that exchange gradients. At most
    one of the two is there. ``common``: the steps so far, counted alike by all ranks that step
    together. ``behind_ns``: by how much this rank is behind the nominal opening of the barrier.
    """

    def __init__(
        self,
        barrier: StepBarrier | None,
        agreement: StepAgreement | None,
        stopped: Flag,
        *,
        emulated: bool,
    ) -> None:
        self.barrier, self.agreement = barrier, agreement
        self._stopped, self._emulated = stopped, emulated
        self.common = self.behind_ns = self._late_ns = 0

    def join(self, epoch: int) -> None:
        if self.barrier is not None:
            self.barrier.join(epoch, self._stopped)

    def leave(self, epoch: int) -> None:
        if self.barrier is not None:
            self.barrier.leave(epoch, self._stopped)

    def begin(self) -> None:
        """An epoch begins."""
        self.behind_ns = self._late_ns = 0

    def any(self, own: bool) -> bool:
        """Whether it is true of any rank that exchanges gradients with this one, or of this one."""
        return own if self.agreement is None else bool(self.agreement.any(own, self._stopped))

    def all_ready(self) -> int | None:
        """Wait until all ranks that exchange gradients are ready for this step.

        Returns the nanoseconds of the wait; None if this rank is to stop.
        """
        if self.agreement is None:
            return 0
        began = time.monotonic_ns()
        return time.monotonic_ns() - began if self.any(True) else None

    def end_step(self, epoch: int, ready_ns: int, busy: int, late: int, lost_ns: int) -> StepEnd:
        """A step has ended whose samples were there at ``ready_ns``: wait for ranks in step.

        ``busy`` and ``late``: as the accelerator says; ``lost_ns``: for how long it stood still.
        """
        if self.barrier is None:
            self.common += 1
            return StepEnd(0, late, lost_ns)
        # An emulated step makes up for the delay of the step before it.
        ended = ready_ns + busy - self._late_ns + lost_ns if self._emulated else time.monotonic_ns()
        synced, behind = self._meet(self.barrier, epoch, ended, late)
        still = beyond(late + behind, busy) if self._emulated else 0
        self.behind_ns = behind - still
        self._late_ns = late + self.behind_ns
        return StepEnd(synced, self._late_ns, lost_ns + still)

    def _meet(self, barrier: StepBarrier, epoch: int, end_ns: int, late_ns: int) -> tuple[int, int]:
        """Wait at the barrier after a step, which ended nominally at ``end_ns``.

        Its wake-up was late by ``late_ns``. Returns the nominal wait for the other ranks, and by
        how much more than ``late_ns`` this rank is now behind the nominal opening of the barrier
        (less, if negative), in nanoseconds. Each wake-up is late by a random time, and a barrier
        would take the latest of all ranks. So the ranks agree on the nominal time, and the next
        emulated step makes up for the rest. Steps that are not emulated make up for nothing: all of
        their time at the barrier is a wait.
        """
        opening = barrier.wait(epoch, end_ns, self._stopped)
        now = time.monotonic_ns()
        if opening is not None:
            self.common = opening.number
            if self._emulated:
                return opening.at_ns - end_ns, now - opening.at_ns - late_ns
        return max(0, now - end_ns - (late_ns if self._emulated else 0)), 0
