"""How long ranks take that wait for each other after each step, and how long without that.

The all-reduce of data-parallel training makes all ranks wait for the slowest one at each step, as
the barrier of MLPerf Storage's DLIO does (``comm.barrier()`` after each step). So a step takes as
long as that of its slowest rank. Ranks that wait for each other only at the end are as fast as the
slowest rank on the whole.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Walls(NamedTuple):
    """The wall time of all steps, in seconds. ``synced`` is at least ``free``."""

    synced: float  # with a barrier after each step
    free: float  # with one after the last step alone


def barrier_walls(step_times: npt.NDArray[Any]) -> Walls:
    """The wall times of ranks whose own steps take ``step_times``, with barriers and without.

    ``step_times``: [ranks, steps], in seconds: of each rank, the wait for its own batch and the
    busy time of its accelerator, without any wait for other ranks. The barrier itself takes no
    time here. Where batches are prefetched, a wait for other ranks lets a rank's own queue fill
    up; then the wall time with barriers is an upper bound.

    Raises ValueError unless ``step_times`` has two dimensions and at least one rank.
    """
    times = np.asarray(step_times, dtype=np.float64)
    if times.ndim != 2 or not len(times):
        raise ValueError(f"step times of the shape [ranks, steps] are needed, not {times.shape}")
    return Walls(synced=float(times.max(axis=0).sum()), free=float(times.sum(axis=1).max()))
