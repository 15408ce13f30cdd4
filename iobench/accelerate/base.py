"""What consumes batches, one step each."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class StepTime(NamedTuple):
    """One step, in nanoseconds: the accelerator's nominal busy time, and the emulation's own lateness."""

    busy_ns: int
    late_ns: int


class Accelerator(Protocol):
    name: str

    def start(self) -> None:
        """An epoch begins."""

    def step(self, batch: Any, ready_ns: int, share: float = 1.0) -> StepTime:
        """Consume ``batch`` (a ``load.Batch``, or None for a step without data), which was ready at ``ready_ns`` (monotonic).

        ``share`` is the batch's part of a full one: the last batch of an epoch may be short, and is then less work.
        Returns when the accelerator asks for the next one.
        """
