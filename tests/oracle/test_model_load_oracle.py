"""Loads of a model from storage of known speed: the time is the bytes over the bandwidth, replicas
share the link, and the cause is the one that was planted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iobench.judge.model_load import storage_share
from iobench.record.model_load import LoadFigures, ModelLoadRun
from iobench.record.run import ModelLoadRecord
from iobench.runner.model_load import run_loads
from iobench.runner.model_load_plan import make_load_plan
from iobench.runner.options import LoadOptions
from iobench.serve.loaders.direct import DirectLoader
from iobench.settings.any_workload import LoadSpec
from iobench.storage.scratch import scratch
from tests.oracle.plants import throttle_for
from tests.small_models import small_weights

BANDWIDTH = 10e6
"""A load takes seconds, beside which the start of its threads is short on a slow machine, too."""


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    """Weights in memory: the disk below a throttled storage must not add times of its own."""
    with scratch("weights", within=Path("/dev/shm")) as place:
        small_weights(place / "model")
        yield place / "model"


def loaded(url: str, results: Path, *, copy_to: str | None = None, **spec: Any) -> ModelLoadRecord:
    asked = {"loaders": ["direct"], "replicas": [1], "repetitions": 3, **spec}
    plan = make_load_plan(url, LoadSpec.model_validate(asked))
    return run_loads(plan, LoadOptions(results=results, copy_to=copy_to))[0]


def figures(job: ModelLoadRun, replicas: int = 1, *, one_read: bool = False) -> LoadFigures:
    return next(
        each for each in job.figures if (each.replicas, each.one_read) == (replicas, one_read)
    )


def throttled(model: Path, **more: object) -> str:
    options = {"bandwidth": int(BANDWIDTH), **more}
    return f"throttled+{model}?" + "&".join(f"{key}={value}" for key, value in options.items())


def test_a_load_takes_the_bytes_over_the_bandwidth(model: Path, tmp_path: Path) -> None:
    job = loaded(throttled(model), tmp_path).job
    found = figures(job)
    assert found.ready_s == pytest.approx(job.bytes / BANDWIDTH, rel=0.03)
    assert found.bottleneck == ["storage"]
    share = storage_share(found)
    assert share.value > 0.9
    assert found.read_amplification == pytest.approx(1, rel=0.001)


@pytest.mark.nightly
def test_the_kernels_throttle_holds_a_load_of_mapped_files_too(tmp_path: Path) -> None:
    """No storage of iobench's own is between this loader and the disk."""
    model = tmp_path / "model"
    small_weights(model)

    def load(place: Path) -> None:
        doc = loaded(str(model), place, loaders=["mmap"])
        (place / "record.json").write_text(doc.model_dump_json())

    with throttle_for(model) as throttle:
        throttle.hold(bytes_per_s=int(BANDWIDTH))
        throttle.run(load, tmp_path)
    doc = ModelLoadRecord.model_validate_json((tmp_path / "record.json").read_text())
    found = figures(doc.job)
    assert found.ready_s == pytest.approx(doc.job.bytes / BANDWIDTH, rel=0.05)


@pytest.mark.nightly
def test_replicas_share_one_link_and_one_read_cures_it(model: Path, tmp_path: Path) -> None:
    job = loaded(throttled(model), tmp_path, replicas=[1, 3]).job
    alone = job.bytes / BANDWIDTH
    storm, cure = figures(job, 3), figures(job, 3, one_read=True)
    assert storm.ready_s == pytest.approx(3 * alone, rel=0.05)
    assert cure.ready_s == pytest.approx(alone, rel=0.05)
    for each, expected in ((storm, 3 * alone), (cure, alone)):
        assert each.promised_s.value == pytest.approx(expected, rel=0.08)
        assert each.kept
    assert cure.read_amplification == pytest.approx(1 / 3, rel=0.01)


def test_a_delay_of_each_tensor_is_the_assembly(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fourteen tensors that take 20 ms each: no storage could make this load faster."""
    delay_s = 0.02
    assemble = DirectLoader._assemble

    def slowly(loader: DirectLoader, tensors: Any, clock: Any) -> None:
        time.sleep(delay_s * len(tensors))
        assemble(loader, tensors, clock)

    monkeypatch.setattr(DirectLoader, "_assemble", slowly)
    job = loaded(str(model), tmp_path).job
    found = figures(job)
    assert found.bottleneck == ["assembly"]
    saved = found.ready_s * (1 - 1 / found.gains["assembly"].value)
    assert saved == pytest.approx(job.tensors * delay_s, rel=0.1)


@pytest.mark.nightly
def test_a_copy_has_paid_after_its_time_over_what_it_saves(model: Path, tmp_path: Path) -> None:
    """Reading the files for the copy takes as long as a load, so that two starts pay for it."""
    with scratch("copy", within=Path("/dev/shm")) as place:
        to = str(place / "copy")
        job = loaded(throttled(model), tmp_path, copy_to=to).job
    copied, alone = job.copied, job.bytes / BANDWIDTH
    assert copied.copy_s == pytest.approx(alone, rel=0.1)
    assert copied.ready_s is not None
    assert copied.starts.value == pytest.approx(alone / (alone - copied.ready_s), rel=0.1)
