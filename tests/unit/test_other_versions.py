"""Records of other versions: another schema is refused, and no key of a newer one is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from iobench.base.text import escaped
from iobench.record.run import load_run
from tests.processes import printed, refused

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
    for version in ("0.9", "3.0", "", "x"):
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
