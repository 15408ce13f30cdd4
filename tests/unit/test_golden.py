"""What earlier versions wrote is read by this one: datasets, runs, a sweep, checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from iobench.base.text import escaped
from iobench.checkpoint.catalog import CheckpointRoot
from iobench.record.run import load_run
from tests.checkpoints import blank, restore, same
from tests.golden.tiny import STEP, WRITERS, tiny_state
from tests.processes import document, printed, refused

HERE = Path(__file__).parent.parent / "golden"
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if (folder / "runs").is_dir())


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of one version's files, since some verbs write."""
    return Path(shutil.copytree(HERE / request.param, tmp_path / "golden"))


def test_a_version_is_kept() -> None:
    assert "0.1.0" in VERSIONS


def test_datasets_are_read(golden: Path) -> None:
    names = sorted(p.name for p in (golden / "datasets").iterdir() if (p / "data").is_dir())
    assert len(names) == 9
    for name in sorted(set(names) - {"half"}):
        assert "24 samples" in printed("verify", golden / "datasets" / name), name


def test_a_half_generated_dataset_is_finished(
    golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(golden)
    printed("generate", "./small.yaml", "--to", "datasets/half", "--workers", "1")
    whole, half = golden / "datasets/tar", golden / "datasets/half"
    for name in ("data/small-000002.tar", "samples.arrow", "shards.arrow"):
        assert (half / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_scanned_dataset_is_found(golden: Path) -> None:
    from iobench.data.dataset import load_manifest

    manifest = load_manifest(golden / "datasets/scanned.manifest")
    assert (manifest.sample_count, manifest.shard_count) == (24, 3)
    assert manifest.header.origin.endswith("/datasets/tar/data")
    origin = golden / "datasets/tar/data"  # what it says lay on another machine
    assert "24 samples" in printed(
        "verify", golden / "datasets/scanned.manifest", "--origin", origin
    )


def test_datasets_are_cleaned(golden: Path) -> None:
    for folder in sorted((golden / "datasets").iterdir()):
        if (folder / "data").is_dir():
            printed("clean", folder)
            assert list(folder.glob("**/*")) == [], folder


def recorded(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "run.json").read_text()))


def test_runs_are_reported_with_their_figures(golden: Path) -> None:
    runs = sorted((golden / "runs").iterdir())
    assert len(runs) == 11
    for run in runs:
        was = recorded(run)
        code = 3 if was["validity"] == "invalid" else 0
        now = document("report", run, code=code)
        assert (now["run_id"], now["status"]) == (was["run_id"], was["status"]), run
        # The wait for the save before counted as writing, and was 1 ms in that study.
        rel = 1e-3 if run.name == "checkpoint-dcp-async" else 1e-6
        for name, figure in was["metrics"].items():
            median = pytest.approx(figure["median"], rel=rel)
            assert now["metrics"][name]["median"] == median, (run, name)
            assert now["metrics"][name]["n"] == figure["n"], (run, name)
        assert printed("report", run, code=code)


@pytest.mark.parametrize("writer", WRITERS)
def test_checkpoints_are_restored(golden: Path, writer: str) -> None:
    target = CheckpointRoot.open(str(golden / "checkpoints" / writer)).latest()
    assert target.number == STEP
    state = blank(tiny_state())
    torch.set_num_threads(1)
    restore(writer, target, state)
    assert same(state, tiny_state())


def test_checkpoints_are_cleaned(golden: Path) -> None:
    for writer in WRITERS:
        printed("clean", golden / "checkpoints" / writer)
        assert not list((golden / "checkpoints" / writer).glob("**/*"))


# Records of other versions


ROOT = Path(__file__).parents[2]
GOLDEN, REFERENCE = ROOT / "tests/golden/0.1.0/runs", ROOT / "results/reference"


@pytest.mark.parametrize(
    "file",
    [GOLDEN / "calibrated/run.json", GOLDEN.parent / "sweep/sweep.json", REFERENCE / "ab/ab.json"],
    ids=lambda file: file.stem,
)
def test_a_record_of_another_schema_is_refused_by_its_version(file: Path, tmp_path: Path) -> None:
    document = json.loads(file.read_text())
    (tmp_path / "run").mkdir()
    for version in ("0.9", "3.0", "x"):
        changed = {**document, "schema_version": version, "iobench_version": "0.0.7"}
        (tmp_path / "run" / file.name).write_text(json.dumps(changed))
        told = refused("report", tmp_path / "run", code=1)
        assert f"'{version}'" in told
        assert "0.0.7" in told


@pytest.mark.parametrize("path", ["job.workload.reader", "job.dataset.spec"])
def test_a_setting_that_this_version_does_not_have_is_refused_by_its_name(
    path: str, tmp_path: Path
) -> None:
    shutil.copytree(GOLDEN / "calibrated", tmp_path / "run")
    document: Any = json.loads((tmp_path / "run" / "run.json").read_text())
    part(document, path)["later"] = 1
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    assert f"'{path}.later'" in refused("report", tmp_path / "run", code=1)


PARTS = (
    *("hosts.0", "storage", "job.workload", "job.dataset", "job.loader"),
    "job.ceilings.fetch.details",
    *("job.saves.spec", "job.saves.scaling", "job.saves.meaning.asked"),
)


def part(document: dict[str, Any], path: str) -> dict[str, Any]:
    found: Any = document
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found.setdefault(key, {})
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("run", ["calibrated", "beside-saves"])
def test_keys_of_a_newer_version_are_kept(run: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / run, tmp_path / "run")
    document: Any = json.loads((tmp_path / "run" / "run.json").read_text())
    parts = [path for path in PARTS if "saves" not in path or document["job"]["saves"]]
    assert len(parts) == (9 if run == "beside-saves" else 6)
    for path in parts:
        part(document, path)["copy"] = {"added": ["later", 1, None, True]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    again = json.loads(printed("report --json", tmp_path / "run"))
    for path in parts:
        shown, recorded = part(again, path), part(document, path)
        assert shown.keys() == recorded.keys(), path
        plain = {key for key, value in recorded.items() if not isinstance(value, dict)} | {"copy"}
        assert {key: shown[key] for key in plain} == {key: recorded[key] for key in plain}, path


def test_texts_under_unknown_keys_are_made_safe_to_show(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "calibrated", tmp_path / "run")
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    document["hosts"][0]["later"] = {"a": "\x1b[2J"}
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    doc = load_run(tmp_path / "run")
    assert (doc.host.model_extra or {})["later"] == {"a": "\x1b[2J"}
    assert "\x1b" not in str(escaped(doc).host.model_extra)
