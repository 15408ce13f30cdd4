"""Late wake-ups of the emulated accelerator change the rate only where the rule says that they do.

The clock is simulated: a pipeline makes a batch in PERIOD_S as soon as one of its places is free,
and each sleep of the accelerator ends late by a random time.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from iobench.accelerate import emulated
from iobench.accelerate.emulated import EmulatedAccelerator
from iobench.analyse.verdict.rules_speed import MAX_LATE
from iobench.schema.workload import AcceleratorSpec

STEP_S = 0.025
STEPS = 3000


class Clock:
    """Time that passes only when somebody sleeps; a sleep ends late by ``late_s`` on average."""

    def __init__(self, late_s: float) -> None:
        self.now_ns = 0
        self.late_s = late_s
        self.random = random.Random(1)

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        late = self.random.expovariate(1 / self.late_s) if self.late_s else 0.0
        self.now_ns += round((seconds + late) * 1e9)


def run(
    monkeypatch: pytest.MonkeyPatch, *, late_s: float, period_s: float, in_flight: int
) -> tuple[float, float]:
    """(steps per second, p99 of the lateness in steps) with a queue of ``in_flight`` batches."""
    clock = Clock(late_s)
    monkeypatch.setattr(emulated, "time", clock)
    accelerator = EmulatedAccelerator(
        AcceleratorSpec(kind="emulated", name="test", step_time=STEP_S)
    )
    accelerator.start()
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


@pytest.mark.parametrize("share", [0.8, 0.98, 1.0, 1.04, 1.2, 2.0])
@pytest.mark.parametrize("in_flight", [1, 2, 4, 8])
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


@pytest.mark.parametrize("in_flight", [1, 2, 4, 8])
def test_lateness_far_beyond_the_bound_lowers_the_rate(
    monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    bound = max(MAX_LATE, in_flight - 1)
    exact, _ = run(monkeypatch, late_s=0.0, period_s=STEP_S, in_flight=in_flight)
    late_s = 4 * bound * STEP_S / 4.61
    rate, p99 = run(monkeypatch, late_s=late_s, period_s=STEP_S, in_flight=in_flight)
    assert p99 > 2 * bound
    assert rate < 0.985 * exact


def test_each_late_wake_up_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With batches always at hand the steps take their nominal time, but for the last wake-up."""
    rate, p99 = run(monkeypatch, late_s=0.005, period_s=0.001, in_flight=8)
    assert p99 > 0.5
    assert rate == pytest.approx(1 / STEP_S, rel=0.002)
