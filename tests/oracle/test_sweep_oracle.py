"""Advice on storage of planted speed: that of sweeps is what the arithmetic says, fresh runs bear
it out, and what ``--confirm`` tries in turns keeps what it promised.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.tuning.recommend import TuningTarget, recommend
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.record.training import TrainingRun
from iobench.record.verdict import Confirmation
from iobench.runner.options import Confirm
from tests.oracle.plants import ran
from tests.processes import document


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


SWEEP = "sweep ./job.yaml --to throttled+data?bandwidth=20MB"


def _job(folder: Path, dataset: str, **workload: Any) -> None:
    (folder / "bytes.yaml").write_text(dataset)
    (folder / "job.yaml").write_text(
        json.dumps(
            {"name": "job", "dataset": "./bytes.yaml", "accelerator": {"kind": "null"}, **workload}
        )
    )


def test_workers_against_latency_confirmed_by_fresh_runs(tmp_path: Path) -> None:
    """A read takes 5 ms of the link and 10 ms of distance: a worker gets 67 samples/s, the link
    gives 200, so 4 are enough, and 8 are no better.
    """
    _job(
        tmp_path,
        "{name: b, samples: 120, sample_size: {mean: 100kB}}",
        batch_size=5,
        reader={"concurrency": 1},
        loader={"workers": 1},
    )
    axes = "--sweep loader.workers=4,8 --repeat 4 --calibration 0"
    swept = document(f"{SWEEP}&latency=10ms {axes}")
    assert swept["default"] == {"loader.workers": 1}  # nobody asked for it, and gains are over it
    assert list((tmp_path / "data").rglob("*")) == []
    advice = document(f"advise {swept['directory']}")
    assert advice["settings"] == {"loader.workers": "4"}
    assert advice["gain"] == pytest.approx(3, rel=0.1)
    found = document(f"sweep --confirm {swept['directory']}")
    assert found["confirmed"] is True
    [row] = [row for row in found["comparison"] if row["metric"] == "samples_per_s"]
    assert (len(row["baseline"]), len(row["candidate"])) == (5, 5)
    assert (row["claim"]["answer"], row["claim"]["better"]) == ("different", True)
    assert row["claim"]["ratio"]["value"] == pytest.approx(3, rel=0.1)
    seeds = [
        {
            json.loads(path.read_text())["job"]["repetitions"][0]["seed"]
            for path in Path(folder["directory"]).glob("*/run.json")
        }
        for folder in (swept, found)
    ]
    assert not seeds[0] & seeds[1]


def test_a_conversion_pays_back_when_the_arithmetic_says(tmp_path: Path) -> None:
    """100 files take 1 s to open, a tar of 100 samples of 100 kB takes 4 s to write, and an epoch
    of it 0.5 s: (1 + 4) / (1 - 0.5) epochs, beside what it costs to make the bytes.
    """
    _job(
        tmp_path,
        "{name: b, samples: 100, sample_size: {mean: 100kB}}",
        batch_size=5,
        reader={"concurrency": 4},
        loader={"workers": 2},
    )
    to = "sweep ./job.yaml --to throttled+data?opens=100&bandwidth=20MB&write_bandwidth=2.5MB"
    swept = document(f"{to} --sweep dataset.format=files,tar --repeat 3 --calibration 0")
    found = document(f"advise {swept['directory']}")["payback"]
    assert found["what"] == "format=tar"
    assert found["saved_s"] == pytest.approx(0.5, rel=0.35)
    assert found["convert_s"] == pytest.approx(5.0, rel=0.3)
    assert found["epochs"] == pytest.approx(found["convert_s"] / found["saved_s"])
    assert 6 < found["epochs"] < 18


def test_compression_is_worth_what_storage_lacks(tmp_path: Path) -> None:
    """Data that halves: on storage of 10 MB/s twice the samples, on storage that is faster than
    decompression none.
    """
    _job(
        tmp_path,
        "{name: b, samples: 30, sample_size: {mean: 1MB}, compress_ratio: 2.0, format: tar, "
        "samples_per_shard: 5}",
        batch_size=5,
        loader={"workers": 1},
    )
    axes = "--sweep dataset.codec=none,zstd:1 --repeat 3 --calibration 0.2s"
    advice = document(f"advise {document(f'{SWEEP} {axes}')['directory']}")
    assert advice["settings"] == {"dataset.codec": "zstd:1"}
    assert advice["gain"] == pytest.approx(2, rel=0.1)
    memory = (
        Path("/dev/shm") / f"iobench-{os.getpid()}-{tmp_path.name}"
    )  # as fast as storage can be
    how = "--set reader.direct=false --set cache=any"
    fast = document(f"sweep ./job.yaml --to {memory} {axes} {how}")
    memory.rmdir()
    assert document(f"advise {fast['directory']}")["settings"] == {"dataset.codec": "none"}


def test_advice_that_is_false_is_not_confirmed(tmp_path: Path) -> None:
    """The sweep's records say that 4 workers are better; a link that one worker fills says
    otherwise.
    """
    _job(
        tmp_path,
        "{name: b, samples: 100, sample_size: {mean: 100kB}}",
        batch_size=5,
        reader={"concurrency": 8},
        loader={"workers": 1},
    )
    swept = document(f"{SWEEP} --sweep loader.workers=1,4 --repeat 4 --calibration 0")
    for path in Path(swept["directory"]).glob("*/run.json"):
        doc = json.loads(path.read_text())
        if doc["job"]["workload"]["loader"]["workers"] == 4:
            doc["job"]["repetitions"][0]["samples_per_s"] *= 2
            path.write_text(json.dumps(doc))
    found = document(f"sweep --confirm {swept['directory']}", code=4)
    assert found["confirmed"] is False


def test_the_shard_size_follows_from_latency_and_bandwidth(
    tmp_path: Path, make_dataset: Any
) -> None:
    """Every batch reads whole shards one after another: 20 ms and b / (5 MB/s) each. 95 % of 5 MB/s
    need shards of 1.9 MB.
    """
    for samples in (4, 12, 40):
        _, root = make_dataset(
            samples=480, sample_size={"mean": 10_000}, format="tar", samples_per_shard=samples
        )
        ran(
            tmp_path,
            f"throttled+{root}?bandwidth=5MB&latency=20ms",
            batch_size=120,
            accelerator={"step_time": "1ms"},
            reader={"concurrency": 1, "direct": False, "shuffle": False},
            loader={"workers": 1},
        )
    found = recommend(read_sweep(tmp_path), TuningTarget(dataset_bytes=1e12))
    assert found.shard.fit.latency_s == pytest.approx(0.02, rel=0.15)
    assert found.shard.fit.bytes_per_s == pytest.approx(5e6, rel=0.15)
    assert found.shard.fit.trusted
    assert found.shard.bytes == 2 << 20
    assert found.settings == {"dataset.samples_per_shard": "40"}


# Advice that is tried in turns: the truth is the same arithmetic on both sides of a turn


def confirmed(tmp_path: Path, url: str, **workload: Any) -> TrainingRun:
    """The job of a run that tried its advice."""
    job = {"accelerator": {"kind": "null"}, "loader": {"workers": 1}, **workload}
    how: dict[str, Any] = {"repetitions": 2, "calibration_s": 4.0, "confirm": Confirm()}
    return ran(tmp_path, url, ablations=True, seed=5, **how, **job)[0].job


def kept(job: TrainingRun, promised: float) -> Confirmation:
    """The first advice that was tried: it has promised this, and it was found."""
    assert job.confirmations, job.no_confirmations
    tried = job.confirmations[0]
    assert tried.found is not None, tried.not_measured
    assert tried.promised.value == pytest.approx(promised, rel=0.15)
    assert tried.found.value == pytest.approx(tried.promised.value, rel=0.15)
    assert tried.answer == "kept"
    return tried


def test_reads_in_flight_against_latency_give_what_was_promised(
    tmp_path: Path, make_dataset: Any
) -> None:
    """A read takes 5 ms and 2 ms of the link, so one in flight yields 143 samples/s, and the link
    has room for 500.
    """
    _, data = make_dataset(format="files", samples=1000, sample_size={"mean": 50_000})
    url = f"throttled+{data}?latency=5ms&bandwidth=25MB"
    job = confirmed(tmp_path, url, batch_size=100, reader={"concurrency": 1})
    tried = kept(job, 3.5)
    assert tried.id == "concurrency"
    [setting] = tried.settings
    [advice] = [each for each in job.verdict.advice if each.settings == [setting]]
    assert advice.found == tried.found


def test_a_gain_that_ends_at_the_accelerators_is_promised_and_found(
    tmp_path: Path, make_dataset: Any
) -> None:
    """A job that consumes 100 samples/s: twice as fast, not four times."""
    _, data = make_dataset(format="files", samples=160, sample_size={"mean": 100_000})
    step: dict[str, Any] = {"accelerator": {"step_time": "200ms"}, "reader": {"concurrency": 1}}
    kept(confirmed(tmp_path, f"throttled+{data}?latency=20ms", batch_size=20, **step), 2.1)


def test_where_the_bandwidth_is_spent_no_setting_is_tried(
    tmp_path: Path, make_dataset: Any
) -> None:
    _, data = make_dataset(format="files", samples=160, sample_size={"mean": 100_000})
    much: dict[str, Any] = {"reader": {"concurrency": 8}, "loader": {"workers": 2}}
    job = confirmed(tmp_path, f"throttled+{data}?bandwidth=20MB", **much)
    assert job.verdict.bottleneck == "storage"
    assert job.confirmations == []
    assert job.no_confirmations
