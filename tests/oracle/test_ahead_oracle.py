"""Read-ahead oracle: with batches of one request, the rate grows with ``reader.concurrency``."""

from __future__ import annotations

import time
from typing import Any

import pytest

from iobench.load import BatchLoader, make_loader
from iobench.storage import open_storage

LATENCY_S = 0.02
SAMPLES = 240


def samples_per_s(path: Any, concurrency: int, **reader: Any) -> float:
    """Samples/s of one worker over the second half of an epoch, which no start-up is part of."""
    loader = make_loader(
        path,
        batch_size=1,
        storage=open_storage(f"throttled+{path}?latency=20ms"),
        reader={"concurrency": concurrency, **reader},
        loader={"workers": 1},
    )
    assert isinstance(loader, BatchLoader)
    moments = []
    try:
        for batch in loader:
            moments.append(time.monotonic())
            del batch
    finally:
        loader.shutdown()
    assert len(moments) == SAMPLES
    half = SAMPLES // 2
    return (SAMPLES - half) / (moments[-1] - moments[half - 1])


def test_eight_reads_in_flight_are_eight_times_the_rate(make_dataset: Any) -> None:
    _, path = make_dataset(samples=SAMPLES, format="files", sample_size={"mean": 10_000})
    one = samples_per_s(path, 1)
    assert one == pytest.approx(1 / LATENCY_S, rel=0.1)
    assert samples_per_s(path, 8) / one == pytest.approx(8, rel=0.2)


@pytest.mark.nightly
def test_without_read_ahead_concurrency_changes_nothing(make_dataset: Any) -> None:
    _, path = make_dataset(samples=SAMPLES, format="files", sample_size={"mean": 10_000})
    assert samples_per_s(path, 8, read_ahead=False) == pytest.approx(1 / LATENCY_S, rel=0.1)
