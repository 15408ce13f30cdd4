"""Storage of known speed: a curve's plateau and its first latency are the planted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import in_process

SIZE = 64 << 10


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("curve")
    for number in range(6):
        (folder / f"{number}.bin").write_bytes(bytes(8 << 20))
    return folder


def probed(data: Path, options: str) -> dict[str, Any]:
    url = f"throttled+{data}?{options}"
    code, out, err = in_process("probe", url, "--request", "64KiB", "--quiet", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def covers(rate: dict[str, float], truth: float, slack: float = 0.03) -> bool:
    return rate["low"] * (1 - slack) <= truth <= rate["high"] * (1 + slack)


def test_planted_bandwidth_and_latency(data: Path) -> None:
    """80 MB/s are 1,221 reads/s of 64 KiB; with 20 ms each, 25.4 of them are in flight."""
    found = probed(data, "bandwidth=80MB&latency=20ms")
    (curve,) = found["curves"]
    assert covers(curve["plateau_bytes_per_s"], 80e6)
    assert covers(curve["plateau_reads_per_s"], 80e6 / SIZE)
    assert curve["knee_in_flight"] in (16, 32, 64)
    first = curve["points"][0]
    assert 0.02 <= first["latency_p50_s"] < 0.026
    assert first["reads_per_s"]["value"] == pytest.approx(1 / 0.0208, rel=0.15)
    assert curve["bound"][0] == "latency"
    assert curve["bound"][-1] == "bandwidth"
    assert found["spent"] == ["bandwidth"]
    assert covers(found["large"]["plateau_bytes_per_s"], 80e6)


@pytest.mark.nightly
def test_planted_operations(data: Path) -> None:
    found = probed(data, "iops=500&latency=10ms")
    (curve,) = found["curves"]
    assert covers(curve["plateau_reads_per_s"], 500)
    assert curve["knee_in_flight"] in (4, 8, 16)
    assert found["spent"] == ["operations"]
    assert curve["bound"][0] == "latency"
    assert curve["bound"][-1] == "operations"


@pytest.mark.nightly
def test_latency_alone_has_no_plateau(data: Path) -> None:
    """Reads that only wait: twice as many in flight bring twice the rate, up to the last point."""
    found = probed(data, "latency=50ms")
    (curve,) = found["curves"]
    assert curve["plateau_reads_per_s"] is None
    for point in curve["points"]:
        if point["in_flight"] <= 64:  # beyond, this host's CPU may be short
            assert point["reads_per_s"]["value"] == pytest.approx(
                point["in_flight"] / 0.05, rel=0.15
            )
            assert curve["bound"][curve["points"].index(point)] == "latency"
