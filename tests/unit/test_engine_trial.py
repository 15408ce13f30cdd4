"""``reader.engine: auto`` takes what reads faster, and says what it found."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.load.engines.base import ReadEngine
from iobench.load.engines.threads import ThreadEngine
from iobench.load.engines.uring import UringEngine
from iobench.runner import engine_trial
from iobench.runner.plan import Plan, make_plan
from iobench.settings.workload import load_workload
from iobench.storage.local.uring import refused

needs_io_uring = pytest.mark.skipif(bool(refused()), reason=refused() or "")

Planned = Callable[..., Plan]


@pytest.fixture
def planned(make_dataset: Any, monkeypatch: pytest.MonkeyPatch) -> Planned:
    monkeypatch.setattr(engine_trial, "TRIAL_S", 0.02)
    data: Path = make_dataset(samples=400, format="files")[1]

    def call(*settings: str, data: str = str(data)) -> Plan:
        usual = ["reader.engine=auto", "batch_size=4", "cache=warm"]
        workload = load_workload("demo", [*usual, *settings])
        return make_plan(workload, data, accelerators=1, repetitions=1, seed=1)

    return call


def slowed(engine: type[ReadEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    read = engine.read

    def slow(self: Any, *arguments: Any) -> int:
        time.sleep(0.1)
        return read(self, *arguments)

    monkeypatch.setattr(engine, "read", slow)


@needs_io_uring
@pytest.mark.parametrize(("slow", "taken"), [(UringEngine, "threads"), (ThreadEngine, "io_uring")])
def test_the_faster_engine_is_taken(
    planned: Planned, monkeypatch: pytest.MonkeyPatch, slow: type[ReadEngine], taken: str
) -> None:
    if slow is ThreadEngine:  # the other one inherits from it
        monkeypatch.setattr(UringEngine, "read", UringEngine.read)
    slowed(slow, monkeypatch)
    plan = planned()
    assert plan.workload.reader.engine == taken
    assert plan.engine_choice.startswith(f"auto took {taken}: ")
    assert "samples/s" in plan.engine_choice


def test_where_io_uring_is_refused_threads_are_taken(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_trial, "refused", lambda: "the kernel refuses io_uring")
    plan = planned()
    assert plan.workload.reader.engine == "threads"
    assert plan.engine_choice == "auto took threads: the kernel refuses io_uring"
