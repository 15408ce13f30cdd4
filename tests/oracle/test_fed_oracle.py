"""Oracles: how many accelerators a storage of known bandwidth feeds.

An accelerator at 90 % takes 90 % of its full demand, so storage of 10.02 times one demand feeds
11.1 of them: 11, or 10 where one is lost to the storage's own noise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.runner.calibration import findmax
from tests.oracle.plants import ran, verdict_of

SAMPLE, BATCH, STEP_S = 100, 40, 0.08
DEMAND = BATCH * SAMPLE / STEP_S  # bytes/s of one accelerator that never waits


@pytest.fixture(scope="module")
def data(make_dataset: Any) -> Path:
    """10 MB of samples without framing, so that the demand in bytes is exact.

    Each try reads it once: 150 steps of 11 ranks.
    """
    spec: dict[str, Any] = {"samples": 100_000, "sample_size": {"mean": SAMPLE}}
    spec |= {"format": "tokens", "samples_per_shard": 5000, "content": "raw"}
    path: Path = make_dataset(**spec)[1]
    return path


def test_a_search_finds_ten_times_the_demand(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole command, with real ranks and workers on throttled storage.

    Steps of 80 ms, so that 22 processes on few cores are next to nothing, and therefore 150 of
    them instead of 500. One worker has two batches in flight.
    """
    monkeypatch.setattr(findmax, "MIN_STEPS", 150)
    doc, _ = ran(
        tmp_path,
        f"throttled+{data}?bandwidth={round(10.02 * DEMAND)}",
        calibration_s=1.0,
        find_max=True,
        batch_size=BATCH,
        accelerator={"step_time": STEP_S},
        loader={"workers": 1},
        reader={"access": "sequential", "decode": False},
        max_steps=20,
    )
    search = doc.job.find_max
    told = [(each.accelerators, each.accelerator_utilization_steady) for each in search.points]
    assert search.accelerators in (10, 11), told
    found = verdict_of(doc).fed
    assert (found.basis, found.accelerators) == ("find-max", search.accelerators)
    assert found.low <= 11
    assert found.high >= 10


STREAMS = 20


def test_the_interval_of_real_runs_covers_the_truth(
    tmp_path: Path, make_dataset: Any, request: pytest.FixtureRequest
) -> None:
    """18 of 20 seeded runs on storage of a planted bandwidth, of planted operations/s, or of both
    and a latency, which feeds 2 to 12 accelerators of 100 samples/s.
    """
    answers = []
    for seed in range(STREAMS):
        chance = np.random.default_rng(seed)
        rate = float(chance.uniform(2, 12)) * 0.9 * 100  # samples/s
        size: dict[str, Any] = {"samples": 600, "sample_size": {"mean": 20_000}}
        packed = seed % 2 == 0
        if packed:
            size |= {"format": "tar", "samples_per_shard": 100}
        manifest, root = make_dataset(**size)
        limit = (
            f"bandwidth={round(rate * manifest.mean_stored_bytes)}" if packed else f"iops={rate:g}"
        )
        latency_ms = int(chance.integers(0, 3)) * 2
        limit += f"&latency={latency_ms}ms" if latency_ms else ""
        job: dict[str, Any] = {"accelerator": {"step_time": "100ms"}, "loader": {"workers": 2}}
        url = f"throttled+{root}?{limit}"
        results = tmp_path / str(seed)
        doc, _ = ran(results, url, calibration_s=0.3, seed=seed, max_steps=10, **job)
        found = verdict_of(doc).fed
        truth = int(rate / 0.9 / 100)
        assert found.low is not None, found
        answers.append((seed, truth, found.low, found.accelerators, found.high, found.basis))
        request.node.user_properties.append((f"seed {seed}", str(answers[-1])))
    covered = [
        low <= truth and (high is None or truth <= high) for _, truth, low, _, high, _ in answers
    ]
    assert sum(covered) >= 18, answers
