"""The events of a run belong to its record: what was exchanged or edited is told, and not valid."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.processes import in_process

RULE = "record.changed"

WORKLOAD = """
name: small
dataset: demo
batch_size: 4
accelerator: {kind: emulated, step_time: 2ms}
epochs: 2
loader: {workers: 0}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of one workload, each of two repetitions; the first one has ceilings."""
    home = tmp_path_factory.mktemp("changed")
    size = ("--set", "samples=80", "--set", "sample_size.mean=20kB")
    (home / "small.yaml").write_text(WORKLOAD)
    assert in_process("generate", "demo", "--to", home / "data", *size, "--quiet")[0] == 0
    found = []
    for name, calibration in (("one", "0.1s"), ("other", "0s")):
        run = ("run", home / "small.yaml", "--data", home / "data", "--results", home / name)
        flags = ("--repeat", 2, "--calibration", calibration, "--no-ablations", "--quiet")
        code, _, err = in_process(*run, *flags)
        assert code == 0, err
        found += list((home / name).iterdir())
    one, other = found
    return one, other


@pytest.fixture
def run(runs: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs[0], tmp_path / "run"))


def document(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    record = json.loads((path / "run.json").read_text())
    change(record)
    (path / "run.json").write_text(json.dumps(record))


def rows(path: Path, change: Callable[[dict[str, list[Any]]], object]) -> None:
    """Other values in the events, in a file that can be read."""
    table = pq.read_table(path / "events.parquet")
    columns = table.to_pydict()
    change(columns)
    pq.write_table(pa.Table.from_pydict(columns, schema=table.schema), path / "events.parquet")


def slower(columns: dict[str, list[Any]]) -> None:
    columns["wait_ns"] = [value * 10 for value in columns["wait_ns"]]


def edited(record: dict[str, Any]) -> None:
    record["metrics"]["samples_per_s"]["median"] *= 2


def higher(stage: str) -> Callable[[dict[str, Any]], None]:
    def change(record: dict[str, Any]) -> None:
        record["job"]["ceilings"][stage]["samples_per_s"] *= 3

    return change


CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "the events of another run": lambda run, other: shutil.copy(other / "events.parquet", run),
    "other times in the events": lambda run, other: rows(run, slower),
    "what the host did in another run": lambda run, other: (run / "resources.parquet").write_bytes(
        (other / "events.parquet").read_bytes()
    ),
    "a figure in the record": lambda run, other: document(run, edited),
    "a ceiling that has events": lambda run, other: document(run, higher("fetch")),
    "the ceiling of the raw storage": lambda run, other: document(run, higher("storage_raw")),
    "no digests": lambda run, other: document(run, lambda record: record.pop("files")),
}


def told(path: Path) -> dict[str, Any]:
    code, out, err = in_process("report", path, "--json")
    assert (code, err) == (0, ""), err
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_run_as_it_was_written_is_valid(runs: tuple[Path, Path]) -> None:
    for path in runs:
        found = told(path)
        assert found["validity"] == "valid"
        assert RULE not in [each["rule"] for each in found["findings"]]
        rows = {name: pq.read_metadata(path / name).num_rows for name in found["files"]}
        assert {name: one["rows"] for name, one in found["files"].items()} == rows
        assert "events.parquet" in rows


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_told(change: str, run: Path, runs: tuple[Path, Path]) -> None:
    CHANGES[change](run, runs[1])
    found = told(run)
    assert found["validity"] == "unknown"
    [finding] = [each for each in found["findings"] if each["rule"] == RULE]
    assert finding["level"] == "unknown"


def test_every_form_of_the_report_is_there_and_the_readable_ones_tell_it(
    run: Path, runs: tuple[Path, Path]
) -> None:
    shutil.copy(runs[1] / "events.parquet", run)
    for form in ("text", "html", "markdown", "csv", "github", "openmetrics"):
        code, out, _ = in_process("report", run, "--format", form)
        assert code == 0
        assert RULE in out or form not in ("text", "html", "markdown")


def test_verbs_that_read_the_record_alone_know_of_other_events(
    run: Path, runs: tuple[Path, Path]
) -> None:
    shutil.copy(runs[1] / "events.parquet", run)
    code, out, err = in_process("compare", run.parent, "--over-time", "small", "--json")
    assert code == 0, err
    assert "unknown" in out


def test_events_that_are_gone_are_told(run: Path) -> None:
    (run / "events.parquet").unlink()
    code, out, err = in_process("report", run)
    assert code == 0
    assert "events.parquet" in err
    assert out


def test_a_digest_of_another_name_leads_nowhere(run: Path, tmp_path: Path) -> None:
    digest = {"rows": 1, "xxh3": "0" * 16}
    document(run, lambda record: record["files"].update({"../../x": digest, "/etc/passwd": digest}))
    assert told(run)["validity"] == "valid"
    document(run, lambda record: record["files"].update({"events.parquet": {"rows": -1}}))
    assert in_process("report", run)[0] == 1
