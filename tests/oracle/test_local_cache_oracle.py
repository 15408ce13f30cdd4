"""The rate of each epoch behind a local cache is the one that its hits and two ceilings predict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.oracle.places import wrapped
from tests.oracle.plants import ran

ERROR = 0.15


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("eviction", "speed", "batch_size"),
    [("lru", {"bandwidth": "8MB"}, 2), ("none", {"latency": "50ms"}, 10)],
    ids=["lru, bytes", "no eviction, latency"],
)
def test_the_rate_of_an_epoch_is_predicted(
    tmp_path: Path, make_dataset: Any, eviction: str, speed: dict[str, str], batch_size: int
) -> None:
    """Cold: 61 samples/s by 8 MB/s, or 80 by 4 reads of 50 ms in flight."""
    count, size = 150, 128 << 10
    _, data = make_dataset(samples=count, sample_size={"mean": size})
    place = tmp_path / "cache"
    place.mkdir()
    spec = {"directory": str(place), "size": int(0.6 * count * size), "eviction": eviction}
    doc, _ = ran(
        tmp_path,
        wrapped("throttled", str(data), **speed),
        calibration_s=1.0,
        batch_size=batch_size,
        local_cache=spec,
        epochs=3,
        accelerator={"kind": "null"},
        reader={"concurrency": 4},
        loader={"workers": 1},
    )
    facts = doc.job.local_cache
    assert facts is not None
    assert facts.direct
    cold, *warm = facts.epochs
    for each in facts.epochs:
        assert each.samples_per_s is not None
        assert each.predicted_low is not None
        assert each.predicted_high is not None
        low, high = each.predicted_low * (1 - ERROR), each.predicted_high * (1 + ERROR)
        assert low <= each.samples_per_s <= high, facts.epochs
    assert cold.samples_per_s is not None
    for each in warm:
        assert each.samples_per_s is not None
        assert each.cached_share is not None
        gain = each.samples_per_s / cold.samples_per_s
        assert gain == pytest.approx(1 / (1 - each.cached_share), rel=2 * ERROR)
        # Who takes the size of an LRU cache for its hits expects 2.5 times the rate.
        assert (gain < 1.8) == (eviction == "lru")
