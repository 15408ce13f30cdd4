"""Which counter watches a cold run, and what it leaves on the epochs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from iobench.base.filesystem import Mount
from iobench.host import nfs
from iobench.host.fetched import probe
from iobench.load.choose import make_reader
from iobench.runner import agent as fetches
from iobench.runner.agent import CacheState, HostAgent
from iobench.runner.cache import prepare_cache, run_cached_phase
from iobench.runner.phase import Outcome, Phase
from iobench.runner.plan import Plan, make_plan
from iobench.runner.tasks import load
from iobench.settings.workload import AcceleratorSpec, EvaluationSpec, load_workload
from iobench.storage.base import StorageTraits

EPOCHS, RANKS = 3, 2


def plan_of(path: object, *settings: str) -> Plan:
    fixed = ["batch_size=4", "reader.direct=false", "reader.crop=null", "loader.workers=1"]
    workload = load_workload("demo", [*fixed, *settings])
    return make_plan(workload, str(path), accelerators=RANKS, repetitions=1, seed=1)


def run(plan: Plan, agent: HostAgent | None = None, **more: Any) -> Outcome:
    workload = plan.workload
    return run_cached_phase(
        plan,
        agent or HostAgent(plan.storage),
        Phase(
            name="measure",
            reader=make_reader(plan.manifest, plan.storage, workload.reader),
            reading=workload.reader,
            loading=workload.loader,
            accelerator=AcceleratorSpec(kind="null"),
            accelerators=RANKS,
            batch_size=4,
            seed=1,
            epochs=EPOCHS,
            evicts=True,
            **more,
        ),
    )


@pytest.fixture
def data(make_dataset: Any) -> Path:
    _, path = make_dataset(format="tar", samples_per_shard=10)
    if why := probe(list((path / "data").iterdir())):
        pytest.skip(f"reads of {path} are not counted: {why}")
    return Path(path)


@pytest.mark.parametrize("cache", ["any", "warm"])
def test_a_run_that_is_not_cold_is_left_alone(data: Path, cache: str) -> None:
    plan = plan_of(data, f"cache={cache}")
    agent = HostAgent(plan.storage)
    epochs = run(plan, agent).epochs
    assert [epoch.bytes_fetched for epoch in epochs] == [None] * EPOCHS
    assert agent._counter is None  # the first bytes of its files were not evicted


def mountstats(server_bytes: int) -> nfs.MountStats:
    counted = f"bytes:\t0 0 0 0 {server_bytes} 0 0 0"
    text = f"device filer:/x mounted on /mnt with fstype nfs4\n\tage:\t9\n\t{counted}\n"
    (found,) = nfs.parse_mountstats(text)
    return found


def test_on_an_nfs_mount_its_client_counts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once before the ranks begin an epoch, and once after all of them have ended it."""
    served = iter([0, 1000, 1700, 5000, 5000, 6000, 6400])
    mount = Mount("0:60", "/", "/mnt", "rw", "nfs4", "filer:/x", "rw")
    monkeypatch.setattr(fetches, "mount_of", lambda path: mount)
    monkeypatch.setattr(nfs, "read", lambda point: mountstats(next(served)))
    epochs = run(plan_of(data)).epochs
    assert [epoch.bytes_fetched for epoch in epochs] == [700, 0, 400]
    assert all("mountstats" in epoch.fetched_how for epoch in epochs)


def test_what_evaluation_reads_from_an_nfs_mount_hides_no_cache(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = itertools.count(0, 1_000_000)
    mount = Mount("0:60", "/", "/mnt", "rw", "nfs4", "filer:/x", "rw")
    monkeypatch.setattr(fetches, "mount_of", lambda path: mount)
    monkeypatch.setattr(nfs, "read", lambda point: mountstats(next(served)))
    epochs = run(plan_of(data), evaluation=EvaluationSpec(share=0.5, step_time=0.001)).epochs
    assert [epoch.bytes_fetched for epoch in epochs] == [None] * EPOCHS
    assert all("evaluation reads from the mount" in epoch.fetched_how for epoch in epochs)


def test_what_cannot_be_counted_has_a_reason(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetches.fetched, "probe", lambda paths, direct: "no counter here")
    epochs = run(plan_of(data)).epochs
    assert [epoch.bytes_fetched for epoch in epochs] == [None] * EPOCHS
    assert all("no counter here" in epoch.fetched_how for epoch in epochs)


@pytest.mark.parametrize("page_cache", [False, True])
def test_a_storage_that_can_not_tell_is_not_said_to_be_uncached(page_cache: bool) -> None:
    """A storage of somebody else, without residency: the page cache may serve its reads or not."""
    storage: Any = SimpleNamespace(traits=StorageTraits(page_cache=page_cache))
    agent = HostAgent(storage)
    found = agent.empty_cache(["a"]), agent.fetch_counter(["a"], direct=False)
    assert [each.how for each in found] == [found[0].how] * 2
    assert ("may serve reads" in found[0].how) == page_cache


def test_a_rank_that_loses_its_counter_leaves_no_figure(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "fetched_by_family", lambda: None)
    epochs = run(plan_of(data)).epochs
    assert [epoch.bytes_fetched for epoch in epochs] == [None] * EPOCHS
    assert all(epoch.fetched_how.startswith("not measured") for epoch in epochs)


class _Noted:
    """A host's cache of which it is noted what is looked at."""

    def __init__(self) -> None:
        self.keys: list[int] = []

    def empty_cache(self, keys: Sequence[str]) -> CacheState:
        self.keys.append(len(keys))
        return CacheState(0.0, "noted")


@pytest.mark.parametrize(("direct", "all_of_them"), [(True, False), (False, True)])
def test_files_that_are_read_past_the_cache_are_not_all_evicted(
    make_dataset: Any, direct: bool, all_of_them: bool
) -> None:
    """An open of each of thousands of files took longer than the repetition after it."""
    _, path = make_dataset(format="files", samples=600, sample_size={"mean": 2000}, content="raw")
    plan = replace(plan_of(path), direct=direct)
    noted = _Noted()
    found = prepare_cache(plan, noted, 0)  # type: ignore[arg-type]
    (count,) = noted.keys
    assert (count == 600) == all_of_them
    assert 0 < count <= 600
    assert found.residency_before == 0.0
    assert (found.residency_how == "noted") == all_of_them  # else it says of how many files
