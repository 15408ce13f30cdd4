"""The published JSON schemas are those of the classes, and tell records from damaged ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from iobench.base.documents import json_text
from iobench.cli.main import main
from iobench.cli.verbs import SCHEMAS
from iobench.record.published import DOCUMENTS, json_schema
from iobench.record.run import load_run
from tests.unit.conftest import build_run
from tests.unit.test_ab import FASTER

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
Json = dict[str, Any]


@cache
def validator(name: str) -> Draft202012Validator:
    return Draft202012Validator(json_schema(name))


def recorded(path: Path) -> Json:
    """A record as ``iobench report --json`` prints it; older ones are converted."""
    found: Json = json.loads(json_text(load_run(path)))
    return found


TRAINING = recorded(GOLDEN / "0.1.0" / "runs" / "beside-saves")
CHECKPOINT = recorded(GOLDEN / "0.1.0" / "runs" / "checkpoint-dcp-async")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_schema_is_published_as_the_classes_have_it(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = validator(name).schema
    Draft202012Validator.check_schema(schema)
    file = ROOT / "results" / f"{name}.schema.json"
    assert json.loads(file.read_text("ascii")) == schema, "run: python -m tests.snapshots"
    assert main(["list", "--schema", name]) == 0
    assert capsys.readouterr().out == file.read_text("ascii")
    assert set(SCHEMAS) == set(DOCUMENTS)


@pytest.mark.parametrize(
    "path", sorted(GOLDEN.rglob("run.json")), ids=lambda path: str(path.relative_to(GOLDEN))
)
def test_records_of_all_versions_fit(path: Path) -> None:
    assert list(validator("run").iter_errors(recorded(path))) == []


@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("sweep.json")), ids=str)
def test_sweeps_fit(path: Path) -> None:
    document = json.loads(path.read_text())
    assert list(validator("sweep").iter_errors(document)) == []
    assert not validator("sweep").is_valid({**document, "status": 7, "points": {}})


def test_what_is_made_today_fits() -> None:
    assert validator("run").is_valid(json.loads(json_text(build_run())))
    comparison = json.loads(json_text(FASTER))
    assert list(validator("ab").iter_errors(comparison)) == []
    assert not validator("ab").is_valid({**comparison, "rounds": None})
    assert not validator("run").is_valid(comparison)


DAMAGE: dict[str, tuple[Json, Callable[[Json], object]]] = {
    "no run id": (TRAINING, lambda run: run.pop("run_id")),
    "an unknown kind": (TRAINING, lambda run: run["job"].update(kind="serving")),
    "negative memory": (TRAINING, lambda run: run["hosts"][0].update(memory_bytes=-1)),
    "half a step": (TRAINING, lambda run: run["job"]["repetitions"][0].update(steps=1.5)),
    "a save without its time": (CHECKPOINT, lambda run: run["job"]["saves"][0].pop("blocked_s")),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_record_does_not_fit(name: str) -> None:
    record, damage = DAMAGE[name]
    broken = copy.deepcopy(record)
    damage(broken)
    assert broken != record
    assert not validator("run").is_valid(broken)
