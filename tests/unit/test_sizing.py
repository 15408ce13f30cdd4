"""Sizes and rates that ``plan`` shows, against published examples and hand arithmetic."""

from __future__ import annotations

import pytest

from iobench.analyse import sizing


def test_mlperf_minimum() -> None:
    # One host of 23 GiB and 146,600,628-byte samples: 843 by the memory rule (MLPerf Storage 3.1.2); 3,500 by steps for one B200 (batch 7).
    by_memory = sizing.mlperf_minimum_samples(batch_size=1, accelerators=1, memory_bytes=23 * 2**30, hosts=1, record_bytes=146_600_628)
    assert by_memory == 843
    assert sizing.mlperf_minimum_samples(batch_size=7, accelerators=1, memory_bytes=1, hosts=1, record_bytes=146_600_628) == 3500


def test_demand() -> None:
    # resnet50 on one H100: 400 samples in 0.224 s.
    assert sizing.demanded_samples_per_s(batch_size=400, step_time_s=0.224, accelerators=2) == pytest.approx(3571.43, abs=0.01)
    assert sizing.demanded_bytes_per_s(batch_size=4, step_time_s=2, accelerators=3, bytes_per_sample=10) == pytest.approx(60)


def test_memory_multiple() -> None:
    assert sizing.memory_multiple(dataset_bytes=100, memory_bytes=10, hosts=2) == pytest.approx(5)


@pytest.mark.parametrize(
    ("cached", "hits"), [(0.25, 0.0342), (0.5, 0.1534), (0.8, 0.4781), (0.9, 0.670), (0, 0), (1, 1), (2, 1), (1 / 5, 0.021)]
)
def test_expected_hit_rate_agrees_with_simulation(cached: float, hits: float) -> None:
    assert sizing.expected_hit_rate(cached) == pytest.approx(hits, abs=0.001)


def test_littles_law() -> None:
    assert sizing.reads_in_flight(reads_per_s=2000, latency_s=0.005) == 10
    assert sizing.reads_in_flight(reads_per_s=1, latency_s=0.0001) == 1
    assert sizing.workers_needed(samples_per_s=1000, cpu_s_per_sample=0.0025) == 3
