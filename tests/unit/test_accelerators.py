"""Emulated accelerators keep their time whatever the machine does: a fake clock oversleeps on
purpose.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.accelerate import emulated
from iobench.accelerate.emulated import EmulatedAccelerator
from iobench.schema.workload import AcceleratorSpec

STEP = 10_000_000


class Clock:
    """Time in nanoseconds that passes only by sleeping, and too much of it."""

    def __init__(self, oversleep: list[int]) -> None:
        self.now = 1_000_000_000
        self.oversleep = list(oversleep)

    def monotonic_ns(self) -> int:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += round(seconds * 1e9) + (self.oversleep.pop(0) if self.oversleep else 0)


def steps(clock: Clock, waits: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr(emulated, "time", clock)
    accelerator = EmulatedAccelerator(AcceleratorSpec(kind="emulated", step_time=STEP / 1e9))
    accelerator.start()
    done = []
    for wait in waits:
        clock.now += wait
        done.append(accelerator.step(None, clock.now))
    return done


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=30))
def test_oversleeping_does_not_add_up(oversleep: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(oversleep)
        began = clock.now
        done = steps(clock, [0] * len(oversleep), patch)
    # All that is left of any number of late wake-ups is the last one.
    assert clock.now - began == len(oversleep) * STEP + oversleep[-1]
    assert [time.busy_ns for time in done] == [STEP] * len(oversleep)
    assert [time.late_ns for time in done] == oversleep


@given(st.lists(st.integers(0, 30_000_000), min_size=2, max_size=20))
def test_waiting_is_paid_in_full(waits: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock([])
        began = clock.now
        steps(clock, waits, patch)
    assert clock.now - began == len(waits) * STEP + sum(waits)


SECOND = 1_000_000_000


@pytest.mark.parametrize("stood_ns", [2 * SECOND, 4 * SECOND, 60 * SECOND])
def test_no_step_makes_up_for_a_process_that_stood_still(
    stood_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP: 40 steps of 0.5 s, of which the tenth ends seconds late."""
    clock = Clock([0] * 9 + [stood_ns])
    monkeypatch.setattr(emulated, "time", clock)
    accelerator = EmulatedAccelerator(AcceleratorSpec(kind="emulated", step_time=0.5))
    accelerator.start()
    began, lost, late = clock.now, 0, []
    for _ in range(40):
        late.append(accelerator.step(None, clock.now).late_ns)
        lost += accelerator.lost_ns
    took = clock.now - began
    assert took - 20 * SECOND == lost >= stood_ns - 3 * SECOND // 2
    assert lost < stood_ns
    assert sum(late) <= 3 * SECOND // 2 * 2  # what later steps make up for
