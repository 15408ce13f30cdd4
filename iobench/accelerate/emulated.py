"""Accelerators that only take time: storage is affected by when the next batch is asked for."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterator

import numpy as np

from ..settings.accelerator import read_recording
from ..settings.workload import AcceleratorSpec
from .base import RankPlace, Samples, StepTime

_PR_SET_TIMERSLACK = 29

MADE_UP_STEPS, MADE_UP_NS = 2, 250_000_000
"""The next steps make up for a wake-up that is late by so many steps, or by this long if that is
more. What goes beyond it is no delay of a sleep: the process stood still, and so did its work."""


class EmulatedAccelerator:
    """Busy for ``step_time`` per batch, on average exactly.

    A sleep ends late, by 50 microseconds on an idle machine and by milliseconds on a busy one. If
    that counted as computing (as with a plain sleep), it would make utilization look too good. So
    the delay is measured and subtracted from the next step: over an epoch the emulated accelerator
    is busy for exactly steps x step_time.

    ``lost_ns``: for how long it stood still in the last step, beyond what the next ones make up
    for, as after SIGSTOP, in a virtual machine that was paused, or while the host swapped. This
    time passes as it does for everybody: the accelerator was neither busy nor waiting in it.
    """

    def __init__(self, spec: AcceleratorSpec) -> None:
        self.name = spec.name
        # AcceleratorSpec ensures that there is one; a subclass may have its own times.
        self._step_ns = round((spec.step_time or 0.0) * 1e9)
        self._deadline = 0
        self._late = 0
        self.lost_ns = 0

    def start(self) -> None:
        self._deadline = self._late = 0
        # The kernel may delay the end of a sleep by the timer slack, by default 50 us (prctl(2)).
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def step(self, batch: Samples | None, ready_ns: int, share: float = 1.0) -> StepTime:
        busy = round(self._step_ns * share)
        # The accelerator was free at the last deadline; only its emulation woke up later.
        begin = max(self._deadline, ready_ns - self._late)
        self._deadline = begin + busy
        left = self._deadline - time.monotonic_ns()
        if left > 0:
            time.sleep(left / 1e9)
        late = max(0, time.monotonic_ns() - self._deadline)
        self.lost_ns = beyond(late, busy)
        self._deadline += self.lost_ns
        self._late = late - self.lost_ns
        return StepTime(busy, self._late)


def beyond(late_ns: int, busy_ns: int) -> int:
    """By how much a delay after a step of this length exceeds what later steps make up for."""
    return max(0, late_ns - max(MADE_UP_STEPS * busy_ns, MADE_UP_NS))


class NullAccelerator:
    """Consumes batches as fast as they arrive."""

    def __init__(self, spec: AcceleratorSpec) -> None:
        self.name = spec.name

    def start(self) -> None:
        return

    def step(self, batch: Samples | None, ready_ns: int, share: float = 1.0) -> StepTime:
        return StepTime(0, 0)


class RecordedAccelerator(EmulatedAccelerator):
    """Busy for the recorded time of each step, in blocks of consecutive steps.

    Each rank draws the blocks in an order of its own, all of them before any comes again, so that
    the mean of a long run is that of the recording, and slow phases stay together (a block
    bootstrap without replacement; Künsch, Annals of Statistics 17, 1989).
    """

    def __init__(self, spec: AcceleratorSpec) -> None:
        super().__init__(spec)
        assert spec.steps is not None  # AcceleratorSpec ensures it
        recording = read_recording(spec.steps)
        self._times = [round(seconds * 1e9) for seconds in recording.steps_s]
        self._block = recording.block_steps
        self._drawn = self._draw(0)

    def prepare(self, place: RankPlace) -> None:
        self._drawn = self._draw(place.seed, place.rank)

    def step(self, batch: Samples | None, ready_ns: int, share: float = 1.0) -> StepTime:
        self._step_ns = next(self._drawn)
        return super().step(batch, ready_ns, share)

    def _draw(self, *seed: int) -> Iterator[int]:
        """Yield step times for ever, in nanoseconds."""
        times, block = self._times, self._block
        starts = np.arange(0, len(times), block)
        chance = np.random.default_rng(seed)
        for _ in itertools.count():
            for start in chance.permutation(starts).tolist():
                yield from times[start : start + block]
