"""Values of the wrong kind in recorded documents are one line that names the file and the key."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from iobench.record.checkpoint import Meaning
from iobench.record.run import CheckpointRecord, TrainingRecord
from iobench.settings.base import OpenRecord
from tests.hostile import check, leaves, replaced, run

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0"
ANSWERS = (0, 1, 2, 3, 4)

WRONG: tuple[Any, ...] = (
    *("x", -1, [], None, {}, "\ud800", 0, [None], 1e30, True, 1e-90, {"a": {"b": 1}}, 2**63, ""),
    *(-1.5, ["x"]),
)
READERS = """
report run --json
whatif run --workers 3 --cache 1GiB --step-time 2x
report run
cost run --host-price-per-hour 1 --host-spot-price-per-hour 0.5 --epochs 3 --deadline 1h
whatif run --hosts 4 --cache 1GiB --storage-limit 1GB/s
report run --format markdown --rules mlperf
compare plain run
size demo --accelerators 8 --hosts 2 --from run
advise .
report run --format csv
report run --format github
report run --format openmetrics
report run --format mlperf
compare . --over-time smallrun
compare run plain --by host.cores --format csv
"""


MORE = ("beside-saves",) if os.environ.get("IOBENCH_LOOPS") == "all" else ()
"""Its keys are those of a run and of a checkpoint, each of which is tried."""


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["calibrated", "checkpoint-stream", "library", *MORE])
def test_every_key_of_a_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong values and verbs take turns, so that each meets each in the course of a document."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shutil.copytree(GOLDEN / "runs" / name, "run")
    shutil.copytree(GOLDEN / "runs" / name, "plain")
    document: Any = json.loads(Path("run/run.json").read_text())
    wrong, readers = itertools.cycle(WRONG), itertools.cycle(READERS.strip().splitlines())
    for path in leaves(document):
        value = next(wrong)
        Path("run/run.json").write_text(json.dumps(replaced(document, path, value)))
        verb = next(readers).split()
        check(run(*verb), ANSWERS, (path, value, verb))


KINDS: dict[str, tuple[Any, ...]] = {
    "text": ("x",),
    "number": (1, 1.0, 0.5),
    "truth": (True,),
    "list": ([], ["x"], [1.0], [None]),
    "mapping": ({}, {"a": 1.0}, {"a": {"b": 1}}),
}
"""Values of each kind that JSON has, one of which is within the bounds of any key."""


def kinds_of(model: type[BaseModel], key: str) -> set[str]:
    """The kinds of values that a model accepts for one of its keys, whatever else it needs."""

    def accepts(value: Any) -> bool:
        try:
            model.model_validate({key: value})
        except ValidationError as error:
            return all(problem["loc"][:1] != (key,) for problem in error.errors())
        return True

    return {kind for kind, values in KINDS.items() if any(map(accepts, values))}


def models(top: type[BaseModel]) -> set[type[BaseModel]]:
    """A model and all those that its keys are made of."""
    found = {top}
    for field in top.model_fields.values():
        for inner in _within(field.annotation):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                found |= models(inner)
    return found


def _within(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _within(inner)


def test_each_key_that_the_analysis_reads_is_of_one_kind() -> None:
    """A key that is declared as anything would be accepted as anything, and refused nowhere."""
    every = models(TrainingRecord) | models(CheckpointRecord)
    parts = {model for model in every if issubclass(model, OpenRecord)}
    assert Meaning not in parts  # computed again from the study, and never read from a file
    found = {
        f"{model.__name__}.{key}": kinds_of(model, key)
        for model in parts
        for key in model.model_fields
    }
    assert len(found) > 80
    assert {key for key, kinds in found.items() if len(kinds) > 1} == set()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("job.ceilings.fetch.details.round_steps", []),
        ("job.ceilings.loader.details.tensor_samples_per_s", "x"),
        ("job.workload.reader", 7),
        ("job.workload.batch_size", "x"),
        ("job.workload.accelerator.step_time", [1]),
        ("job.workload.required_accelerator_utilization", 0),
        ("job.workload.epochs", {}),
        ("job.dataset.samples", "x"),
        ("job.dataset.spec", [1]),
        ("job.dataset.spec.compress_ratio", "x"),
        ("job.dataset.changed", 3),
        ("hosts.0.cores", "x"),
        ("hosts.0.packages", [1]),
        ("hosts.0.instance_type", {"a": 1}),
        ("job.loader.workers", {}),
        ("job.loader.workers", None),
        ("storage.latency_s", "x"),
        ("job.repetitions.0.wall_s", "x"),
        ("metrics.samples_per_s", 3),
        ("created", 1),
        ("job.accelerators", 0),
        ("job.kind", "baking"),
        ("job", 3),
    ],
)
def test_the_line_names_the_file_and_the_key(
    key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(GOLDEN / "runs/calibrated", "run")
    document: Any = json.loads(Path("run/run.json").read_text())
    path = [int(part) if part.isdigit() else part for part in key.split(".")]
    if key == "storage.latency_s":
        document["storage"]["latency_s"] = None
    Path("run/run.json").write_text(json.dumps(replaced(document, path, value)))
    for verb, code in (
        (("report", "run"), 1),
        (("cost", "run", "--host-price-per-hour", "1"), 2),
        (("compare", ".", "--over-time", "smallrun"), 2),
    ):
        ended, out, err = run(*verb)
        assert (ended, out, err.count("\n")) == (code, "", 1), verb
        assert "run.json" in err
        assert f"'{key}" in err


def test_every_key_of_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shutil.copytree(GOLDEN / "sweep", "sweep")
    for name in ("small.yaml", "smallrun.yaml"):
        shutil.copy(GOLDEN / name, name)
    document = json.loads(Path("sweep/sweep.json").read_text())
    wrong = itertools.cycle(WRONG)
    for path in leaves(document):
        value, resume = next(wrong), ("sweep", "--resume", "sweep", "--quiet")
        if path[-1] in ("repetitions", "runs") and value in (2**63, [], ["x"]):
            continue  # such a sweep is not finished, and would go on
        Path("sweep/sweep.json").write_text(json.dumps(replaced(document, path, value)))
        for verb in (("advise", "sweep"), resume):
            check(run(*verb), ANSWERS, (path, value, verb))


def test_every_key_of_a_manifest_and_its_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    shutil.copytree(GOLDEN / "datasets/tar", "data")
    manifest = json.loads(Path("data/manifest.json").read_text())
    marker = json.loads(Path("data/.iobench-dataset").read_text())
    wrong = itertools.cycle(WRONG)
    for path in leaves(manifest):
        value = next(wrong)
        Path("data/manifest.json").write_text(json.dumps(replaced(manifest, path, value)))
        check(run("plan", "demo", "--data", "data"), ANSWERS, (path, value))
        check(run("verify", "data", "--workers", "1"), ANSWERS, (path, value))
    Path("data/manifest.json").write_text(json.dumps(manifest))
    for path in leaves(marker):
        value = next(wrong)
        Path("data/.iobench-dataset").write_text(json.dumps(replaced(marker, path, value)))
        check(run("clean", "data", "--dry-run"), ANSWERS, (path, value))
