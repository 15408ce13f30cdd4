"""Emulated training steps between two checkpoints: a part of each keeps the host's core busy."""

from __future__ import annotations

import time

_CALIBRATION = 200_000  # iterations of the loop in ``_compute``, about 5 ms


class TrainingSteps:
    """Steps of ``step_s`` seconds; the host computes for ``host_share`` of each, in Python.

    A background writer competes for the interpreter, the cores and the memory. If the host's part
    then takes longer than the step, the step becomes longer. A slower host part that still ends
    within the step costs nothing, as on a real accelerator whose queue is full.
    """

    def __init__(self, step_s: float, host_share: float) -> None:
        self.step_s = step_s
        started = time.perf_counter()
        _compute(_CALIBRATION)
        self._turns = round(_CALIBRATION * step_s * host_share / (time.perf_counter() - started))

    def step(self) -> float:
        """Run one step; return the seconds that it took."""
        started = time.perf_counter()
        _compute(self._turns)
        left = self.step_s - (time.perf_counter() - started)
        if left > 0:
            time.sleep(left)
        return time.perf_counter() - started


def _compute(turns: int) -> int:
    total = 0
    for turn in range(turns):
        total ^= turn
    return total
