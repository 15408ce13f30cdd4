"""Runs of several machines can be told apart, in CSV and in OpenMetrics."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from iobench.base.documents import json_text
from iobench.record.ab import save_ab
from iobench.record.run import load_run
from iobench.record.sweep import load_sweep, save_sweep
from iobench.settings.tags import parse_tags
from tests.processes import completed, printed, refused
from tests.unit.test_ab import FASTER

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def kept(place: Path, name: str, **changes: Any) -> Path:
    """A recorded run as that of another machine, with its own id."""
    document = json.loads(json_text(load_run(GOLDEN / name)))
    document["run_id"] = place.name
    document["hosts"][0] |= changes.pop("host", {})
    document["storage"] |= changes.pop("storage", {})
    document |= changes
    place.mkdir(parents=True)
    (place / "run.json").write_text(json.dumps(document))
    return place


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A directory of runs: two of one machine, one of another."""
    big = {"node": "big", "cores": 96, "effective_cores": 96.0, "instance_type": "p4d.24xlarge"}
    small = {"node": "small", "cores": 4, "effective_cores": 4.0, "instance_type": "g5.xlarge"}
    nfs, disk = {"url": "/mnt/nfs/data"}, {"url": "/scratch/data"}
    tags = {"box": "nfs-b", "site": "Basel, 2"}
    kept(tmp_path / "fleet/b/run-1", "calibrated", host=big, storage=nfs, tags=tags)
    kept(tmp_path / "fleet/b/run-2", "library", host=big, storage=nfs, tags={"box": "nfs-b"})
    kept(tmp_path / "fleet/s/run-3", "calibrated", host=small, storage=disk)
    return tmp_path / "fleet"


def test_rows_of_csv_name_their_machine(fleet: Path) -> None:
    found = list(csv.DictReader(io.StringIO(completed("report", fleet, "--format", "csv").stdout)))
    assert {row["run_id"] for row in found} == {"run-1", "run-2", "run-3"}
    for row in found:
        small = row["run_id"] == "run-3"
        assert row["host"] == ("small" if small else "big")
        assert float(row["cores"]) == (4 if small else 96)
        assert row["instance"] == ("g5.xlarge" if small else "p4d.24xlarge")
        assert row["storage"] == ("/scratch/data" if small else "/mnt/nfs/data")
        assert row["tag_box"] == ("" if small else "nfs-b")
        assert row["tag_site"] == ("Basel, 2" if row["run_id"] == "run-1" else "")
        assert row["workload"] == "smallrun"
        assert row["dataset"]
        assert row["accelerators"]
        assert row["created"].startswith("20")


def test_openmetrics_has_the_runs_in_one_document(fleet: Path) -> None:
    text = completed("report", fleet, fleet / "b/run-1", "--format", "openmetrics").stdout
    families = list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]
    assert len({family.name for family in families}) == len(families)
    (info,) = (family for family in families if family.name == "iobench_run")
    labels = {sample.labels["run"]: sample.labels for sample in info.samples}
    assert len(info.samples) == 3
    assert labels["run-1"]["instance"] == "p4d.24xlarge"
    assert float(labels["run-1"]["cores"]) == 96
    assert labels["run-1"]["accelerators"] == "1"
    assert labels["run-1"]["tag_site"] == "Basel, 2"
    assert labels["run-3"]["host"] == "small"
    name = "iobench_samples_per_second"
    (rates,) = (family for family in families if family.name == name)
    assert {sample.labels["run"] for sample in rates.samples} == {"run-1", "run-2", "run-3"}


def test_compared_runs_have_their_labels(tmp_path: Path) -> None:
    """A label that only some runs of a side have is said so."""
    for number, tags in enumerate(({"box": "a", "try": "1"}, {"box": "a"}, {"box": "b"})):
        kept(tmp_path / ("new" if number == 2 else "old") / f"run-{number}", "throttled", tags=tags)
    shown = printed("compare", tmp_path / "old", tmp_path / "new", "--details")
    assert "box=a, try=1 (1 of 2 runs)" in shown
    assert "box=b" in shown


def test_a_label_with_two_values_is_refused(tmp_path: Path) -> None:
    command = ("run", "demo", "--data", tmp_path, "--tag", "box=nfs-a")
    assert "--tag box" in refused(*command, "--tag", "box=nfs-b", code=2)
    assert parse_tags(["box=nfs-a", "box=nfs-a"]) == {"box": "nfs-a"}


@pytest.mark.parametrize("tags", [{"a b": "c"}, {'x"': "c"}, {"a": ""}, {"a": 3}, ["a"]])
def test_a_record_with_other_labels_is_refused(tags: object, tmp_path: Path) -> None:
    """They become names of columns and metrics."""
    assert refused("report", kept(tmp_path / "bad", "calibrated", tags=tags), code=1)


@pytest.mark.parametrize("kind", ["ab", "sweep"])
def test_what_has_several_runs_shows_its_labels(kind: str, tmp_path: Path) -> None:
    tags = {"tags": {"box": "nfs-b"}}
    if kind == "ab":
        save_ab(tmp_path, FASTER.model_copy(update=tags))
    else:
        save_sweep(tmp_path, load_sweep(GOLDEN.parent / "sweep").model_copy(update=tags))
    assert "box=nfs-b" in completed("report", tmp_path, "--details").stdout
    assert "box=nfs-b" in completed("report", tmp_path, "--html").stdout
    rows = list(
        csv.DictReader(io.StringIO(completed("report", tmp_path, "--format", "csv").stdout))
    )
    assert rows
    assert {row["tag_box"] for row in rows} == {"nfs-b"}
    assert json.loads(completed("report", tmp_path, "--json").stdout)["tags"] == {"box": "nfs-b"}


@pytest.mark.parametrize(
    "given",
    ["rack", "1rack=a", "rack-1=a", "=a", "rack=", "rack=a\nb", f"{'k' * 65}=1", "k=" + "v" * 201],
)
def test_what_is_no_label_is_refused_with_what_one_is(given: str) -> None:
    said = refused("run", "demo", "--data", "d", "--tag", given)
    assert "is no label" in said
    assert "a letter first" in said
    assert "in a line" in said
