"""Late wake-ups of the emulated accelerator change the rate only where the rule says that they do,
and do not add up.

The clock is simulated: a pipeline makes a batch in PERIOD_S as soon as one of its places is free,
and each sleep of the accelerator ends late by a random time.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.accelerate import emulated
from iobench.accelerate.emulated import EmulatedAccelerator
from iobench.judge.rules_speed import MAX_LATE
from iobench.settings.workload import AcceleratorSpec

STEP_S = 0.025
STEPS = 3000


class Clock:
    """Time that passes only when somebody sleeps; a sleep ends late by ``late_s`` on average, or
    the first ones by the given nanoseconds.
    """

    def __init__(self, late_s: float = 0.0, *first_ns: int) -> None:
        self.now_ns = 0
        self.late_s, self.first_ns = late_s, list(first_ns)
        self.random = random.Random(1)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        late = self.random.expovariate(1 / self.late_s) if self.late_s else 0.0
        first = self.first_ns.pop(0) if self.first_ns else 0
        self.now_ns += round((seconds + late) * 1e9) + first


def started(clock: Clock, monkeypatch: pytest.MonkeyPatch, step_s: float) -> EmulatedAccelerator:
    monkeypatch.setattr(emulated, "time", clock)
    accelerator = EmulatedAccelerator(AcceleratorSpec(kind="emulated", step_time=step_s))
    accelerator.start()
    return accelerator


def run(
    monkeypatch: pytest.MonkeyPatch, *, late_s: float, period_s: float, in_flight: int
) -> tuple[float, float]:
    """(steps per second, p99 of the lateness in steps) with a queue of ``in_flight`` batches."""
    clock = Clock(late_s)
    accelerator = started(clock, monkeypatch, STEP_S)
    taken: list[int] = []
    late: list[int] = []
    made = 0
    for step in range(STEPS):
        begun = max(made, taken[step - in_flight] if step >= in_flight else 0)
        made = begun + round(period_s * 1e9)
        clock.now_ns = max(clock.now_ns, made)
        taken.append(clock.now_ns)
        late.append(accelerator.step(None, clock.now_ns).late_ns + accelerator.lost_ns)
    return STEPS / clock.now_ns * 1e9, float(np.quantile(late, 0.99)) / (STEP_S * 1e9)


@pytest.mark.parametrize("share", [0.8, 1.0, 1.04, 2.0])
@pytest.mark.parametrize("in_flight", [1, 8])
def test_lateness_within_the_bound_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, share: float, in_flight: int
) -> None:
    """``share``: the period of the pipeline in steps, so that it is faster and slower than them."""
    bound = max(MAX_LATE, in_flight - 1)
    exact, _ = run(monkeypatch, late_s=0.0, period_s=share * STEP_S, in_flight=in_flight)
    # The p99 of an exponential distribution is 4.6 times its mean.
    late_s = bound * STEP_S / 4.61 * 0.9
    rate, p99 = run(monkeypatch, late_s=late_s, period_s=share * STEP_S, in_flight=in_flight)
    assert p99 <= bound
    assert rate == pytest.approx(exact, rel=0.015)


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=30))
def test_oversleeping_does_not_add_up(oversleep: list[int]) -> None:
    """All that is left of any number of late wake-ups is the last one."""
    step = round(STEP_S * 1e9)
    clock = Clock(0.0, *oversleep)
    with pytest.MonkeyPatch.context() as patch:
        accelerator = started(clock, patch, STEP_S)
        done = [accelerator.step(None, clock.now_ns) for _ in oversleep]
    assert clock.now_ns == len(oversleep) * step + oversleep[-1]
    assert [time.busy_ns for time in done] == [step] * len(oversleep)
    assert [time.late_ns for time in done] == oversleep


SECOND = 1_000_000_000


@pytest.mark.parametrize("stood_ns", [2 * SECOND, 4 * SECOND, 60 * SECOND])
def test_no_step_makes_up_for_a_process_that_stood_still(
    stood_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after SIGSTOP: 40 steps of 0.5 s, of which the tenth ends seconds late."""
    clock = Clock(0.0, *[0] * 9, stood_ns)
    accelerator = started(clock, monkeypatch, 0.5)
    lost, late = 0, []
    for _ in range(40):
        late.append(accelerator.step(None, clock.now_ns).late_ns)
        lost += accelerator.lost_ns
    assert clock.now_ns - 20 * SECOND == lost >= stood_ns - 3 * SECOND // 2
    assert lost < stood_ns
    assert sum(late) <= 3 * SECOND // 2 * 2  # what later steps make up for
