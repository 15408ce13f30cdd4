"""Sweeps by the command line on storage of planted speed: the advice is what the arithmetic says,
and fresh runs bear it out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main

Run = Any


@pytest.fixture
def iobench(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """``iobench("sweep", ...)``: (exit code, the JSON document), in ``tmp_path``."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, Any]:
        code = main([*words, "--json"])
        out, err = capsys.readouterr()
        assert err == ""
        return code, json.loads(out)

    return call


def _job(folder: Path, dataset: str, **workload: Any) -> None:
    (folder / "bytes.yaml").write_text(dataset)
    (folder / "job.yaml").write_text(
        json.dumps(
            {"name": "job", "dataset": "./bytes.yaml", "accelerator": {"kind": "null"}, **workload}
        )
    )


def test_workers_against_latency_confirmed_by_fresh_runs(iobench: Run, tmp_path: Path) -> None:
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
    axes = ("--sweep", "loader.workers=4,8", "--repeat", "4", "--calibration", "0")
    code, swept = iobench(
        "sweep", "./job.yaml", "--to", "throttled+data?bandwidth=20MB&latency=10ms", *axes
    )
    assert code == 0
    assert swept["default"] == {"loader.workers": 1}  # nobody asked for it, and gains are over it
    assert list((tmp_path / "data").rglob("*")) == []
    _, advice = iobench("advise", swept["directory"])
    assert advice["settings"] == {"loader.workers": "4"}
    assert advice["gain"] == pytest.approx(3, rel=0.1)
    code, found = iobench("sweep", "--confirm", swept["directory"])
    assert (code, found["confirmed"]) == (0, True)
    [row] = [row for row in found["comparison"] if row["metric"] == "samples_per_s"]
    assert (len(row["baseline"]), len(row["candidate"])) == (5, 5)
    assert (row["claim"]["answer"], row["claim"]["better"]) == ("different", True)
    assert row["claim"]["ratio"]["value"] == pytest.approx(3, rel=0.1)
    runs = [
        json.loads(path.read_text())
        for folder in (swept, found)
        for path in Path(folder["directory"]).glob("*/run.json")
    ]
    seeds = [
        {doc["job"]["repetitions"][0]["seed"] for doc in runs if doc["run_id"] in _ids(folder)}
        for folder in (swept, found)
    ]
    assert not seeds[0] & seeds[1]


def _ids(folder: Any) -> set[str]:
    return {path.parent.name for path in Path(folder["directory"]).glob("*/run.json")}


def test_compression_is_worth_what_storage_lacks(iobench: Run, tmp_path: Path) -> None:
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
    axes = ("--sweep", "dataset.codec=none,zstd:1", "--repeat", "3", "--calibration", "0.2")
    _, slow = iobench("sweep", "./job.yaml", "--to", "throttled+data?bandwidth=20MB", *axes)
    _, advice = iobench("advise", slow["directory"])
    assert advice["settings"] == {"dataset.codec": "zstd:1"}
    assert advice["gain"] == pytest.approx(2, rel=0.1)
    memory = Path("/dev/shm") / f"iobench-{tmp_path.name}"  # as fast as storage can be
    _, fast = iobench(
        "sweep",
        "./job.yaml",
        "--to",
        str(memory),
        *axes,
        "--set",
        "reader.direct=false",
        "--set",
        "cache=any",
    )
    memory.rmdir()
    _, advice = iobench("advise", fast["directory"])
    assert advice["settings"] == {"dataset.codec": "none"}


def test_advice_that_is_false_is_not_confirmed(iobench: Run, tmp_path: Path) -> None:
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
    axes = ("--sweep", "loader.workers=1,4", "--repeat", "4", "--calibration", "0")
    _, swept = iobench("sweep", "./job.yaml", "--to", "throttled+data?bandwidth=20MB", *axes)
    for path in Path(swept["directory"]).glob("*/run.json"):
        doc = json.loads(path.read_text())
        if doc["job"]["workload"]["loader"]["workers"] == 4:
            doc["job"]["repetitions"][0]["samples_per_s"] *= 2
            path.write_text(json.dumps(doc))
    code, found = iobench("sweep", "--confirm", swept["directory"])
    assert (code, found["confirmed"]) == (4, False)


def test_today_is_best_and_there_is_nothing_to_confirm(
    tmp_path: Path, iobench: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    _job(
        tmp_path,
        "{name: b, samples: 60, sample_size: {mean: 100kB}}",
        batch_size=5,
        reader={"concurrency": 8},
        loader={"workers": 1},
    )
    axes = ("--sweep", "reader.concurrency=8,16", "--repeat", "4", "--calibration", "0")
    _, swept = iobench("sweep", "./job.yaml", "--to", "throttled+data?bandwidth=20MB", *axes)
    assert main(["sweep", "--confirm", swept["directory"]]) == 2
    assert capsys.readouterr().err.count("\n") == 1
