"""Data that is replaced while it is measured: the run says so and is INVALID."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from iobench.cli.main import main
from iobench.generator import generate
from iobench.schema.base import build
from iobench.schema.dataset import DatasetSpec
from iobench.storage.local.storage import LocalStorage
from tests.processes import loader_workers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    spec = {
        "name": "changing",
        "samples": 64,
        "sample_size": {"mean": 20_000},
        "format": "tar",
        "samples_per_shard": 8,
    }
    generate(build(DatasetSpec, spec, where="test"), LocalStorage(tmp_path / "data"))
    (tmp_path / "changing.yaml").write_text(
        "{name: changing, samples: 64, sample_size: {mean: 20kB}, format: tar}\n"
    )
    (tmp_path / "job.yaml").write_text(
        "{name: job, dataset: ./changing.yaml, batch_size: 8, accelerator: {kind: 'null'}, loader: "
        "{workers: 1}, reader: {direct: false}}\n"
    )
    return tmp_path


def run(home: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, object]]:
    code = main(
        [
            "run",
            "./job.yaml",
            "--data",
            "throttled+data?latency=60ms",
            "--repeat",
            "2",
            "--calibration",
            "0",
            "--json",
        ]
    )
    return code, json.loads(capsys.readouterr().out)


def test_a_shard_replaced_by_its_own_bytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    victim = home / "data" / "data" / "changing-000003.tar"

    ended = threading.Event()

    def replace() -> None:
        while not loader_workers() and not ended.wait(0.01):
            pass  # versions are taken before anything is read
        fresh = victim.with_name("fresh")
        fresh.write_bytes(victim.read_bytes())
        fresh.replace(victim)

    writer = threading.Thread(target=replace, daemon=True)
    writer.start()
    code, doc = run(home, capsys)
    ended.set()
    writer.join()
    assert code == 3
    assert doc["validity"] == "invalid"
    assert doc["job"]["dataset"]["changed"] == ["data/changing-000003.tar"]  # type: ignore[index]
    assert "data.changed" in [finding["rule"] for finding in doc["findings"]]  # type: ignore[index, attr-defined]


def test_data_that_stays(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, doc = run(home, capsys)
    assert code == 0
    assert doc["validity"] == "valid"
    assert doc["job"]["dataset"]["changed"] == []  # type: ignore[index]
