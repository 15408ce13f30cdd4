"""The protocol of accelerators, which consume batches, one in each step."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class StepTime(NamedTuple):
    """One step, in nanoseconds: the accelerator's nominal busy time, and the emulation's delay."""

    busy_ns: int
    late_ns: int


class Accelerator(Protocol):
    name: str

    def start(self) -> None:
        """Called at the start of an epoch."""

    def step(self, batch: Any, ready_ns: int, share: float = 1.0) -> StepTime:
        """Consume ``batch``; returns when the accelerator asks for the next one.

        ``batch``: a ``load.Batch``, or None for a step without data. ``ready_ns``: when it was
        ready, by the monotonic clock. ``share``: the batch's size as a fraction of a full batch,
        since the last batch of an epoch may be short and is then less work.
        """
