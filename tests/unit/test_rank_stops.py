"""When a rank of a phase stops."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from iobench.runner.phase import Phase
from iobench.runner.tasks.stopping import Stopping
from iobench.settings.workload import AcceleratorSpec, LoaderSpec, ReaderSpec

S = 1_000_000_000


def stopping(*, workers: int = 1, **limits: Any) -> Stopping:
    """Of a rank that is not told to stop, and in its first epoch since instant 0."""
    phase = Phase(
        name="measure",
        reader=None,
        reading=ReaderSpec(),
        loading=LoaderSpec(),
        accelerator=AcceleratorSpec(kind="null"),
        accelerators=1,
        batch_size=4,
        seed=1,
        **limits,
    )
    found = Stopping(phase, SimpleNamespace(value=False), round_batches=workers)
    found.begin(0)
    return found


def test_steps_are_limited_over_all_epochs() -> None:
    rank = stopping(epochs=None, max_steps=3)
    rank.done = 2
    assert not rank.before_epoch(1)
    assert not rank.before_batch(0)
    rank.done = 3
    assert rank.before_epoch(1)
    assert rank.before_batch(0)
    assert rank.before_step_alone(0, 3)


@pytest.mark.parametrize(
    ("done", "ends"), [(4, False), (7, False), (8, True), (9, False), (12, True)]
)
def test_workers_finish_their_rounds_of_which_there_are_some(done: int, ends: bool) -> None:
    rank = stopping(limit_s=2.0, whole_rounds=True, min_rounds=2, workers=4)
    rank.done = done
    assert rank.before_batch(3 * S) is ends
    assert not rank.before_batch(2 * S - 1)


def test_the_patience_for_rounds_ends_also_where_the_first_batch_was_late() -> None:
    rank = stopping(limit_s=1.0, whole_rounds=True, min_rounds=3, workers=4)
    rank.done = 1
    assert not rank.before_batch(11 * S)
    assert rank.before_batch(11 * S + 1)
    rank.got(5 * S)
    rank.got(6 * S)  # only the first one counts
    assert not rank.before_batch(31 * S)  # 2 times 3 rounds of 5 s after the limit
    assert rank.before_batch(31 * S + 1)


def test_steps_without_a_batch_have_a_number_that_is_made_anyway() -> None:
    rank = stopping(limit_s=1.0, min_steps=3)
    assert not rank.before_step_alone(5 * S, 2)
    assert rank.before_step_alone(5 * S, 3)
    assert not rank.before_step_alone(S - 1, 3)
