"""The wall time of ranks in step: arithmetic, and 411 ranks of a published run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.verdict.barrier import barrier_walls

PUBLISHED = Path(__file__).parent.parent / "published" / "unet3d_h100_411_ranks.npz"


def test_the_slowest_rank_of_each_step_counts() -> None:
    walls = barrier_walls(np.array([[1.0, 3.0, 1.0], [2.0, 1.0, 1.0]]))
    assert walls.synced == pytest.approx(6.0)  # 2 + 3 + 1
    assert walls.free == pytest.approx(5.0)  # 1 + 3 + 1


def test_one_rank_waits_for_nobody() -> None:
    assert barrier_walls(np.array([[1.0, 2.0]])) == (3.0, 3.0)


@pytest.mark.parametrize("shape", [(0, 3), (3,), (1, 1, 1)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="ranks, steps"):
        barrier_walls(np.zeros(shape))


@given(
    st.integers(1, 5).flatmap(
        lambda steps: st.lists(
            st.lists(st.floats(0, 100), min_size=steps, max_size=steps), min_size=1, max_size=6
        )
    )
)
def test_a_barrier_never_saves_time(times: list[list[float]]) -> None:
    walls = barrier_walls(np.array(times))
    assert walls.synced >= walls.free - 1e-9
    assert walls.synced <= sum(max(column) for column in zip(*times, strict=True)) + 1e-9


def test_411_published_ranks() -> None:
    """Its clock holds the barrier's own time, 2.4 % of a step, which the step times do not have."""
    with np.load(PUBLISHED) as published:
        own_s = published["own_step_10us"] / 1e5
        synced_s, free_s = float(published["synced_wall_s"]), float(published["free_wall_s"])
    walls = barrier_walls(own_s)
    assert own_s.shape == (411, 120)
    assert walls.synced == pytest.approx(synced_s, rel=0.03)
    assert walls.free == pytest.approx(free_s, rel=0.01)
    assert walls.synced / walls.free == pytest.approx(1.025, abs=0.005)
