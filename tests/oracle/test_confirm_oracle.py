"""Oracles: advice that is tried on storage of planted speed keeps what it promised.

The truth is the same arithmetic on both sides of a turn, so a busy machine affects both alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from iobench.generator import generate
from iobench.runner.confirm import Confirm
from iobench.runner.experiment import Options, run
from iobench.runner.plan import make_plan
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.schema.training import TrainingRun
from iobench.schema.verdict import Confirmation
from iobench.schema.workload import Workload
from iobench.storage.local.storage import LocalStorage


def confirmed(tmp_path: Path, url: str, **workload: Any) -> TrainingRun:
    """The job of a run that tried its advice. Its workload is about the data in ``url``."""
    spec = {"name": "confirm", "dataset": "demo", "accelerator": {"kind": "null"}, **workload}
    plan = make_plan(
        build(Workload, spec, where="confirm"), url, accelerators=1, repetitions=2, seed=5
    )
    doc, _ = run(plan, Options(results=tmp_path, calibration_s=4.0, confirm=Confirm()))
    assert doc.status == "ok"
    return doc.job


def make(tmp_path: Path, **spec: Any) -> Path:
    place = tmp_path / "data"
    generate(build(DatasetSpec, {"name": "demo", **spec}, where="confirm"), LocalStorage(place))
    return place


def first(job: TrainingRun) -> Confirmation:
    assert job.confirmations, job.no_confirmations
    found = job.confirmations[0]
    assert found.found is not None, found.not_measured
    return found


def test_reads_in_flight_against_latency_give_what_was_promised(tmp_path: Path) -> None:
    """A read takes 5 ms and 2 ms of the link, so one in flight yields 143 samples/s, and the link
    has room for 500.
    """
    data = make(tmp_path, format="files", samples=1000, sample_size={"mean": 50_000})
    job = confirmed(
        tmp_path,
        f"throttled+{data}?latency=5ms&bandwidth=25MB",
        batch_size=100,
        reader={"concurrency": 1},
        loader={"workers": 1},
    )
    tried = first(job)
    assert tried.id == "concurrency"
    [setting] = tried.settings
    assert tried.found is not None
    assert tried.promised.value == pytest.approx(3.5, rel=0.15)
    assert tried.found.value == pytest.approx(tried.promised.value, rel=0.15)
    assert tried.answer == "kept"
    assert job.verdict is not None
    [advice] = [each for each in job.verdict.advice if each.settings == [setting]]
    assert advice.found == tried.found


def test_a_gain_that_ends_at_the_accelerators_is_promised_and_found(tmp_path: Path) -> None:
    """The same storage, for a job that consumes 100 samples/s: twice as fast, not four times."""
    data = make(tmp_path, format="files", samples=160, sample_size={"mean": 100_000})
    job = confirmed(
        tmp_path,
        f"throttled+{data}?latency=20ms",
        batch_size=20,
        accelerator={"step_time": "200ms"},
        reader={"concurrency": 1},
        loader={"workers": 1},
    )
    tried = first(job)
    assert tried.found is not None
    assert tried.promised.value == pytest.approx(2.1, rel=0.15)
    assert tried.found.value == pytest.approx(tried.promised.value, rel=0.15)
    assert tried.answer == "kept"


def test_where_the_bandwidth_is_spent_no_setting_is_tried(tmp_path: Path) -> None:
    data = make(tmp_path, format="files", samples=160, sample_size={"mean": 100_000})
    job = confirmed(
        tmp_path,
        f"throttled+{data}?bandwidth=20MB",
        batch_size=10,
        reader={"concurrency": 8},
        loader={"workers": 2},
    )
    assert job.verdict is not None
    assert job.verdict.binds == "storage"
    assert job.confirmations == []
    assert job.no_confirmations
