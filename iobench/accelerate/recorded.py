"""Replays the step times that were recorded of a real model, without its device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ..schema.accelerator import read_recording
from ..schema.workload import AcceleratorSpec
from .base import RankPlace, Samples, StepTime
from .emulated import EmulatedAccelerator


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
