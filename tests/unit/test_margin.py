"""The margin of ``size``: what a simulated job reaches on storage of a given rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iobench.analyse.capacity.margin import (
    Pipeline,
    batch_sizes,
    batch_waits,
    margin,
    step_ends,
    utilization,
)
from iobench.schema.dataset import SampleSize

EVEN, NO_WAIT = np.ones(1), np.zeros(1)

RESNET50 = Pipeline(
    ranks=8,
    makers=8,
    queue=8,
    steps=500,
    step_s=0.224,
    barrier=True,
    sizes=EVEN,
    waits_s=NO_WAIT,
)

UNET3D_SIZES = SampleSize(
    distribution="normal",
    mean=146_600_628,
    stdev=68_341_808,
    min=4_194_304,
    max=289_006_952,
)


def test_a_job_of_one_worker_by_hand() -> None:
    """Batches of 1.25 s, steps of 1 s: the first begins at 1.25 s, and each one 1.25 s later."""
    job = replace(RESNET50, ranks=1, makers=1, queue=1, steps=4, step_s=1.0)
    assert step_ends(job, 0.8, steps=4, seed=1) == pytest.approx([2.25, 3.5, 4.75, 6.0])
    assert utilization(job, 0.8, simulated=4, seed=1) == pytest.approx(4 / 6)
    # The rank reads itself: nothing overlaps.
    alone = replace(job, queue=0)
    assert step_ends(alone, 0.8, steps=4, seed=1) == pytest.approx([2.25, 4.5, 6.75, 9.0])
    # 2 workers share the storage: both first batches are there after 2.5 s.
    two = replace(job, makers=2, queue=2)
    assert step_ends(two, 0.8, steps=4, seed=1)[0] == pytest.approx(3.5)
    # A read that waits for 1 s does not use the storage, and the next one waits in the meantime.
    waiting = replace(two, waits_s=np.ones(1))
    assert step_ends(waiting, 1e9, steps=4, seed=1) == pytest.approx([2.0, 3.0, 4.0, 5.0])


def test_a_long_job_is_as_fast_as_its_last_rounds() -> None:
    job = replace(RESNET50, ranks=1)
    whole = utilization(job, 0.9, simulated=500, seed=1)
    assert utilization(job, 0.9, simulated=100, seed=1) == pytest.approx(whole, abs=0.002)


def test_exactly_the_required_rate_is_not_enough() -> None:
    """0.9 of the demand gives 0.894 (ResNet-50) and 0.896 (3D U-Net) over 500 steps, while the
    pipeline fills.
    """
    unet = replace(RESNET50, ranks=1, makers=4, queue=4, step_s=0.323)
    assert utilization(RESNET50, 0.9, simulated=500, seed=1) == pytest.approx(0.894, abs=0.003)
    assert utilization(unet, 0.9, simulated=500, seed=1) == pytest.approx(0.896, abs=0.003)
    found = margin(RESNET50, 0.9)
    assert found.factor is not None
    assert found.unequal == pytest.approx(1)
    assert utilization(RESNET50, 0.9 * found.factor, simulated=500, seed=1) >= 0.9
    assert utilization(RESNET50, 0.9 * found.factor / 1.01, simulated=500, seed=1) < 0.9


def test_the_margin_grows_with_the_spread_and_shrinks_with_prefetching() -> None:
    sizes = batch_sizes(UNET3D_SIZES, 7)
    assert sizes.mean() == pytest.approx(1)
    assert sizes.std() == pytest.approx(0.466 / np.sqrt(7), rel=0.05)  # some draws are clipped
    one = replace(RESNET50, ranks=3, makers=2, queue=2, sizes=batch_sizes(UNET3D_SIZES, 1))
    found = [
        margin(job, 0.9).factor or 0.0
        for job in (replace(one, queue=4), one, replace(one, sizes=sizes), replace(one, sizes=EVEN))
    ]
    deep, single, seven, even = found
    assert 1 < even < seven < single
    assert deep < single
    free = margin(replace(one, barrier=False), 0.9).factor
    assert free is not None
    assert free < single
    assert (margin(one, 0.7).factor or 0.0) < single


def test_latencies_differ_and_readers_keep_too_few_in_flight() -> None:
    """4 batches of 10 reads of 10 ms, one after the other, take 0.1 s each: 40 steps/s at most."""
    waits = batch_waits(requests=10, concurrency=1, latency_s=0.01, latency_p99_s=None)
    assert waits == pytest.approx([0.1])
    job = replace(RESNET50, makers=4, queue=4, step_s=0.05, waits_s=waits)
    assert margin(job, 0.9).factor is not None
    fast = margin(replace(job, step_s=0.02), 0.9)
    assert fast.factor is None
    assert fast.highest == pytest.approx(0.02 / 0.025, abs=0.01)
    tail = batch_waits(requests=10, concurrency=4, latency_s=0.01, latency_p99_s=0.1)
    # Without a tail three rounds of 10 ms; each read takes 1.63 x the median on average.
    assert tail.mean() > 10 / 4 * 0.0163
    assert tail.std() > 0.1 * tail.mean()


def test_half_of_the_batches_in_a_long_tail_need_more() -> None:
    """Ranks at a barrier wait for the slowest read of all."""
    waits = batch_waits(requests=4, concurrency=4, latency_s=0.02, latency_p99_s=0.15)
    one = replace(RESNET50, ranks=1, makers=2, queue=2, step_s=0.1, waits_s=waits)
    alone, many = margin(one, 0.8), margin(replace(one, ranks=32), 0.8)
    assert alone.factor is not None
    assert many.factor is None or many.factor > alone.factor
    assert many.highest < alone.highest


@pytest.mark.slow
def test_thousands_of_workers_and_ranks_are_computed_for_fewer() -> None:
    huge = replace(RESNET50, ranks=10**6, makers=1024, queue=1 << 20, steps=10**6, sizes=EVEN)
    found = margin(huge, 0.9)
    assert found.factor is not None
    assert found.factor < 1.02
    assert (found.ranks, found.queue) == (10**6, 1 << 20)
