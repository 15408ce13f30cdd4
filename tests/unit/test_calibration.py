"""Windows of the bench and the search for the maximum, over datasets of a few shards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iobench.runner.agent import HostAgent
from iobench.runner.budget import Budget
from iobench.runner.calibration import findmax
from iobench.runner.calibration.bench import Bench
from iobench.runner.calibration.findmax import begin_search, find_max
from iobench.runner.plan import Plan, make_plan
from iobench.settings.workload import load_workload
from iobench.storage.base import StorageTraits
from iobench.storage.local.storage import LocalStorage
from tests.processes import PATIENCE_S

SETTINGS = [
    *("batch_size=8", "reader.direct=false", "reader.crop=null", "loader.workers=1"),
    *("accelerator.step_time=1ms", "required_accelerator_utilization=0.01"),
]


class Uncached(LocalStorage):
    """Files whose reads never come from this host's page cache, as those of an object store."""

    @property
    def traits(self) -> StorageTraits:
        return StorageTraits(page_cache=False)


@pytest.fixture
def plan(make_dataset: Any) -> Plan:
    _, path = make_dataset(format="tar", samples_per_shard=20)
    workload = load_workload("demo", SETTINGS)
    return make_plan(workload, str(path), accelerators=1, repetitions=1, seed=1)


def bench_of(plan: Plan, tmp_path: Path, seconds: float = 0.2) -> Bench:
    return Bench(plan=plan, agent=HostAgent(plan.storage), directory=tmp_path, seconds=seconds)


@pytest.mark.parametrize(("uncached", "samples"), [(False, 60), (True, 128)])
def test_the_search_reads_on_only_where_no_cache_can_serve_it(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: bool, samples: int
) -> None:
    """An epoch has 60 samples, and 16 steps of 8 samples are asked for, 15 of them steady."""
    monkeypatch.setattr(findmax, "MAX_ACCELERATORS", 1)
    monkeypatch.setattr(findmax, "TRIALS", 1)
    monkeypatch.setattr(findmax, "MIN_STEPS", 15)
    monkeypatch.setattr(findmax, "IN_FLIGHT", 1)
    monkeypatch.setattr(findmax, "MAX_POINT_S", PATIENCE_S)
    if uncached:
        plan = replace(plan, storage=Uncached(plan.data))
    bench = bench_of(plan, tmp_path)
    found = begin_search(bench)
    find_max(bench, found, Budget())
    assert [point.accelerators for point in found.points] == [1]
    assert sum(int(columns["samples"].sum()) for *_, columns in bench.parts) == samples
