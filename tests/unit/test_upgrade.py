"""Runs of other versions: what they say in other ways has its place, and no key is lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.cli.main import main
from iobench.schema.record import CheckpointRecord, load_run, load_training
from iobench.schema.upgrade import upgraded
from iobench.text import escaped, markdown, printable

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


@pytest.mark.parametrize(("run", "raw"), [("calibrated", "fio"), ("throttled", "reader")])
def test_who_measured_a_ceiling_is_known_of_older_runs(run: str, raw: str) -> None:
    assert '"by"' not in (GOLDEN / run / "run.json").read_text()
    found = {name: ceiling.by for name, ceiling in load_training(GOLDEN / run).job.ceilings.items()}
    assert found == {
        "storage_raw": raw,
        "fetch": "reader",
        "prep": "reader",
        "harness": "loader",
        "accelerator": "accelerator",
    }


def test_iobenchs_own_loader_has_its_name_of_today() -> None:
    assert '"kind":"torch"' in (GOLDEN / "calibrated/run.json").read_text().replace(" ", "")
    job = load_training(GOLDEN / "calibrated").job
    assert (job.loader.kind, job.workload.loader.kind) == ("iobench", "iobench")
    library = load_training(GOLDEN / "library").job
    assert library.loader.kind == library.workload.loader.kind != "iobench"


def ceilings(recorded: object) -> object:
    """The ceilings of an upgraded run of version 1 that recorded these."""
    run: Any = upgraded({"schema_version": "1.0", "ceilings": recorded})
    return run["job"]["ceilings"]


def test_what_a_run_says_itself_stays() -> None:
    found = {"fetch": {"by": "fio", "how": "x"}, "prep": {"not_measured": "y"}}
    assert ceilings(found) == found


def test_what_is_of_no_known_form_stays() -> None:
    for found in (3, {"fetch": 3}, {"x": {}}):
        assert ceilings(found) == found
    assert ceilings({"prep": {"how": "loader 'x' over files"}}) == {
        "prep": {"how": "loader 'x' over files", "by": "loader"}
    }
    for run in ({}, {"schema_version": "2.1", "ceilings": {"prep": {"how": "loader"}}}):
        assert upgraded(run) == run
    study = upgraded({"schema_version": "1.1", "host": {}, "checkpoint": {"model": "m"}})
    assert study == {
        "schema_version": "2.1",
        "hosts": [{}],
        "job": {"kind": "checkpoint", "model": "m"},
    }


PARTS = (
    *("hosts.0", "storage", "job.workload", "job.workload.reader", "job.dataset"),
    *("job.dataset.spec", "job.loader", "job.ceilings.fetch.details"),
    *("job.saves.spec", "job.saves.scaling", "job.saves.meaning.asked"),
)


def part(document: dict[str, Any], path: str) -> dict[str, Any]:
    found: Any = document
    for key in path.split("."):
        found = found[int(key)] if isinstance(found, list) else found.setdefault(key, {})
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("run", ["calibrated", "beside-saves"])
def test_keys_of_a_newer_version_are_kept(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(GOLDEN / run, tmp_path / "run")
    document: Any = upgraded(json.loads((tmp_path / "run" / "run.json").read_text()))
    parts = [path for path in PARTS if "saves" not in path or document["job"]["saves"]]
    assert len(parts) == (11 if run == "beside-saves" else 8)
    for path in parts:
        part(document, path)["copy"] = {"added": ["later", 1, None, True]}
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    for path in parts:
        assert part(again, path) == part(document, path), path


def test_texts_under_unknown_keys_are_made_safe_to_show(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "calibrated", tmp_path / "run")
    document = json.loads((tmp_path / "run" / "run.json").read_text())
    document["host"]["later"] = {"a": "\x1b[2J"}
    (tmp_path / "run" / "run.json").write_text(json.dumps(document))
    doc = load_run(tmp_path / "run")
    assert (doc.host.model_extra or {})["later"] == {"a": "\x1b[2J"}
    assert "\x1b" not in str(escaped(doc).host.model_extra)


@pytest.mark.parametrize("escape", [printable, markdown])
def test_what_is_made_safe_has_no_keys_that_were_not_given(escape: Callable[..., str]) -> None:
    doc = load_run(GOLDEN / "checkpoint-stream")
    assert isinstance(doc, CheckpointRecord)
    shown = escaped(doc, escape)
    assert shown.job.spec.model_fields_set == doc.job.spec.model_fields_set
