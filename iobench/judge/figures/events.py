"""The rows of step events, grouped by rank and epoch.

Events are the rows of one repetition of one phase, with one array per column of
``EVENT_COLUMNS``. A row may stand for several merged steps; its ``wait_ns``, ``copy_ns``,
``busy_ns``, ``sync_ns``, ``lost_ns`` and ``late_ns`` are then sums. ``busy_ns`` is the nominal busy
time. A late wake-up shortens the next step, so lateness adds to the clock only once, at the end of
an epoch (the deadlines of ``accelerate.emulated``, and the barrier of ``runner.barrier``, work in
this way). What is in ``lost_ns`` always adds to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .rates import Track

Array = npt.NDArray[Any]
Events = Mapping[str, Array]


class RankEpoch(NamedTuple):
    """The rows of one rank in one epoch, in order of steps.

    Times are in nanoseconds from the start of the epoch, which all ranks share.
    """

    rank: int
    epoch: int
    rows: dict[str, Array]

    @property
    def end_ns(self) -> float:
        """Time at which the last step of the rank ended, in nanoseconds.

        The busy time of the last step was shortened by the lateness of the step before it, and
        the last step itself ended late. For a merged row the lateness is the mean of its steps.
        """
        parts = ("start_ns", "wait_ns", "copy_ns", "busy_ns", "sync_ns", "checkpoint_ns", "lost_ns")
        last = [float(self.rows[name][-1]) for name in parts]
        late = self._late_ns[-2:]
        return sum(last) + float(late[-1]) - (float(late[0]) if len(late) > 1 else 0.0)

    def track(self, startup_s: float) -> Track:
        """What the rank had received by which time, see ``Track``.

        A step lasts until the next one begins, without the save between them.
        """
        saved_ns = self.rows["checkpoint_ns"].astype(np.float64)
        clock_ns = np.append(self.rows["start_ns"].astype(np.float64), self.end_ns)
        times_s = (clock_ns - np.concatenate([[0.0], np.cumsum(saved_ns)])) / 1e9 - startup_s
        return Track(
            epoch=self.epoch,
            times_s=np.maximum.accumulate(np.maximum(times_s, 0.0)),
            samples=self.rows["samples"],
            stored=self.rows["sample_bytes"],
            steps=int(self.rows["steps"].astype(np.int64).sum()),
        )

    def sum_ns(self, name: str, *, first: int = 0) -> int:
        """Sum of a column of times from row ``first`` on; 0 if damaged events make it negative."""
        return max(0, int(self.rows[name][first:].astype(np.int64).sum()))

    @property
    def late_left_ns(self) -> float:
        """Lateness of the last step, for which no later step makes up, in nanoseconds."""
        return float(self._late_ns[-1])

    @property
    def _late_ns(self) -> Array:
        late: Array = self.rows["late_ns"] / np.maximum(self.rows["steps"], 1)
        return late


def select(events: Events, phase: str, repetition: int | None = None) -> dict[str, Array]:
    """The rows of one phase (and repetition)."""
    wanted = np.asarray(events["phase"]) == phase
    if repetition is not None:
        wanted = wanted & (np.asarray(events["repetition"]) == repetition)
    return {name: np.asarray(column)[wanted] for name, column in events.items()}


def rank_epochs(events: Events) -> Iterator[RankEpoch]:
    """Rows grouped by epoch and rank, each group in order of its steps."""
    columns = {name: np.asarray(column) for name, column in events.items() if name != "phase"}
    keys = np.unique(
        np.stack([columns["epoch"].astype(np.int64), columns["rank"].astype(np.int64)]), axis=1
    )
    for epoch, rank in keys.T.tolist():
        mine = np.flatnonzero((columns["epoch"] == epoch) & (columns["rank"] == rank))
        ordered = mine[np.argsort(columns["step"][mine], kind="stable")]
        yield RankEpoch(
            rank=rank, epoch=epoch, rows={name: column[ordered] for name, column in columns.items()}
        )


def epoch_ends_ns(parts: Sequence[RankEpoch]) -> dict[int, float]:
    """Nanoseconds from the start of each epoch until its slowest rank has ended."""
    ends: dict[int, float] = {}
    for part in parts:
        ends[part.epoch] = max(ends.get(part.epoch, 0.0), part.end_ns)
    return ends
