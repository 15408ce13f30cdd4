"""The kernel's own throttle (cgroup v1 blkio) as the truth: the whole tool, fio included, on the
real disk at a known speed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.oracle.plants import MB, Throttle, judged, throttle_for, verdict_of

LIMIT = 100 * MB


@pytest.fixture
def throttle(tmp_path: Path) -> Iterator[Throttle]:
    """Reads of the disk behind ``tmp_path`` are held to LIMIT bytes/s."""
    with throttle_for(tmp_path) as found:
        found.hold(bytes_per_s=LIMIT)
        yield found


@pytest.mark.parametrize("direct", [True, False])
def test_a_disk_at_the_kernels_speed(
    tmp_path: Path, throttle: Throttle, make_dataset: Any, direct: bool
) -> None:
    """200 MB at 100 MB/s; the accelerator asks for 1 MB x 10 each 50 ms = 200 MB/s, so it is busy
    for half of the time.

    Read-ahead of buffered reads may fetch more than was asked for, so only what the page cache
    can't hide is asserted of them: they are not faster than the disk, and the second repetition
    finds the pages of the first one gone.
    """
    _, root = make_dataset(
        samples=200, sample_size={"mean": MB}, format="tar", samples_per_shard=20
    )
    doc = throttle.measured(
        tmp_path / "held",
        root,
        repetitions=1 if direct else 2,
        calibration_s=2.0,
        knock_outs=False,
        accelerator={"step_time": "50ms"},
        reader={"direct": direct},
    )
    judged(doc, "storage")
    for repetition in doc.job.repetitions:
        assert repetition.residency_before is not None
        assert repetition.read_bytes_per_s is not None
        assert repetition.residency_before <= (0 if direct else 0.01)
        assert 0.7 * LIMIT <= repetition.read_bytes_per_s <= 1.1 * LIMIT
    if not direct:
        return
    assert doc.job.loader.direct is True
    assert doc.metrics["read_bytes_per_s"].median == pytest.approx(LIMIT, rel=0.05)
    # What is in flight at the ends of a window (2 workers x 4 reads x 4 MiB) is a good part of the
    # 200 MB that a window of 2 s holds.
    assert doc.job.ceilings["fetch"].bytes_per_s == pytest.approx(LIMIT, rel=0.1)
    raw = doc.job.ceilings["storage_raw"]
    assert raw.bytes_per_s == pytest.approx(LIMIT, rel=0.1) or "fio" in raw.not_measured
    busy = doc.metrics["accelerator_utilization_sustained"].median
    assert busy == pytest.approx(0.5, abs=0.02)
    assert verdict_of(doc).headroom == pytest.approx(0.5, rel=0.1)  # from the fetch ceiling
