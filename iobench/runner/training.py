"""Training steps between two checkpoints: the host launches work for a part of each step, then waits for the accelerator's deadline."""

from __future__ import annotations

import time

_CALIBRATION = 200_000  # turns of the loop below, some 5 ms


class TrainingSteps:
    """Steps of ``step_s`` of which the host computes for ``host_share``, in Python as a training loop does.

    A writer that works behind the training competes for the interpreter, the cores and the memory; where the host's part then outlasts the
    step, the step becomes longer. A slower host part within the step costs nothing, as on a real accelerator whose queue is full.
    """

    def __init__(self, step_s: float, host_share: float) -> None:
        self.step_s = step_s
        started = time.perf_counter()
        _compute(_CALIBRATION)
        self._turns = round(_CALIBRATION * step_s * host_share / (time.perf_counter() - started))

    def step(self) -> float:
        """One step; the seconds that it took."""
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
