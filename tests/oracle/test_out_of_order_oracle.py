"""What batches that take different times cost in order, and what it brings to let them overtake."""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.load.order import epoch_order
from iobench.load.reader import prep_times
from iobench.settings.workload import ReaderSpec
from tests.oracle.plants import ran

WORKERS, PREFETCH, COUNT = 4, 1, 160
READER: dict[str, Any] = {"prep_time": 0.04, "prep_cv": 3.0}


def in_order(times: list[float]) -> float:
    """When the last batch is handed over: batch k is made by worker k modulo WORKERS, and asked for
    when the batch that is WORKERS * PREFETCH before it was handed over.
    """
    made, given = [0.0] * len(times), [0.0] * len(times)
    for k, took in enumerate(times):
        asked = given[k - WORKERS * PREFETCH] if k >= WORKERS * PREFETCH else 0.0
        before = made[k - WORKERS] if k >= WORKERS else 0.0
        made[k] = max(asked, before) + took
        given[k] = max(made[k], given[k - 1] if k else 0.0)
    return given[-1]


def as_ready(times: list[float]) -> float:
    """The same, where each worker gets the next batch when it has made one."""
    free = [0.0] * WORKERS
    for took in times:
        heapq.heappush(free, heapq.heappop(free) + took)
    return max(free)


@pytest.mark.nightly
def test_what_overtaking_brings(tmp_path: Path, make_dataset: Any) -> None:
    _, data = make_dataset(samples=COUNT, sample_size={"mean": 4096})
    planted = prep_times(ReaderSpec(**READER), COUNT)
    assert planted is not None
    took, expected = {}, {}
    for ordered, model in ((True, in_order), (False, as_ready)):
        doc, _ = ran(
            tmp_path,
            data,
            accelerator={"kind": "null"},
            batch_size=1,
            reader=READER | {"read_ahead": False},
            loader={"workers": WORKERS, "prefetch_factor": PREFETCH, "in_order": ordered},
        )
        (one,) = doc.job.repetitions
        order = epoch_order(
            np.arange(COUNT),
            np.ones(COUNT, np.int64),
            sequential=False,
            shuffle=True,
            seed=one.seed,
            epoch=0,
        )
        expected[ordered] = COUNT / model(planted[order].tolist())
        assert one.samples_per_s is not None
        took[ordered] = one.samples_per_s
    assert expected[False] > 1.3 * expected[True]
    for ordered in took:
        assert took[ordered] == pytest.approx(expected[ordered], rel=0.15), (took, expected)
