"""The margin of ``size``: what a simulated job reaches on storage of a given rate."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from iobench.ask.capacity.margin import Pipeline, batch_sizes, margin, step_ends, utilization
from iobench.settings.dataset import SampleSize

EVEN, NO_WAIT = np.ones(1), np.zeros(1)

RESNET50 = Pipeline(
    ranks=8, makers=8, queue=8, steps=500, step_s=0.224, barrier=True, sizes=EVEN, waits_s=NO_WAIT
)

UNET3D_SIZES = SampleSize(
    distribution="normal", mean=146_600_628, stdev=68_341_808, min=4_194_304, max=289_006_952
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


def test_reads_of_a_batch_are_served_while_others_wait_by_hand() -> None:
    """A batch needs 1 s of the storage, in two reads that wait for 1 s each."""
    job = replace(RESNET50, ranks=1, makers=1, queue=1, steps=2, step_s=1.0, reads=2)
    one = replace(job, waits_s=np.full(1, 2.0))  # 1 + 0.5 + 1 + 0.5
    assert step_ends(one, 1.0, steps=2, seed=1) == pytest.approx([4.0, 7.0])
    both = replace(job, lanes=2, waits_s=np.ones(1), usual_s=1.0)  # 1 + 0.5 + 0.5
    assert step_ends(both, 1.0, steps=2, seed=1) == pytest.approx([3.0, 5.0])
    # While one worker's read waits, that of the other is served.
    two = replace(one, makers=2, queue=2)
    assert step_ends(two, 1.0, steps=2, seed=1) == pytest.approx([4.0, 5.0])


def test_latencies_that_overlap_need_no_bandwidth_instead() -> None:
    """10 reads of 20 ms, 4 at once, by each of 2 workers: read by read, 1.17 x the mean keeps the
    accelerator busy 90 % of steps of 40 ms (``emulated`` of tests/oracle/test_size_oracle.py).
    """
    few = replace(RESNET50, ranks=1, makers=2, queue=4, step_s=0.04, waits_s=np.full(1, 0.06))
    found = margin(replace(few, reads=10, lanes=4, usual_s=0.06), 0.9).factor
    assert found == pytest.approx(1.17, abs=0.03)


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
    assert free < single
    assert (margin(one, 0.7).factor or 0.0) < single


@pytest.mark.slow
def test_thousands_of_workers_and_ranks_are_computed_for_fewer() -> None:
    huge = replace(RESNET50, ranks=10**6, makers=1024, queue=1 << 20, steps=10**6, sizes=EVEN)
    found = margin(huge, 0.9)
    assert found.factor < 1.02
    assert (found.ranks, found.queue) == (10**6, 1 << 20)
