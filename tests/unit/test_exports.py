"""What other programs get of a record: OpenMetrics, MLPerf's names, a trace, a CI summary."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from iobench.record.ab import save_ab
from iobench.record.metrics import METRICS
from iobench.record.run import Finding, load_run
from iobench.report.export_mlperf import mlperf
from iobench.report.export_openmetrics import family_name, openmetrics
from iobench.report.media import MEDIA, RECORDS, refusal
from iobench.report.record import sections
from iobench.report.render_csv import render_csv
from iobench.report.render_markdown import render_github
from iobench.report.stages import stage_rates
from tests.hostile import HOSTILE, RAW
from tests.processes import document, in_process, printed, refused
from tests.unit.conftest import build_run
from tests.unit.test_ab import FASTER

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
RUNS = ["calibrated", "checkpoint-stream", "failed"]
WITH_EVENTS = ["beside-saves", "calibrated"]
Json = dict[str, Any]


# OpenMetrics


def samples(text: str) -> dict[tuple[str, str], float]:
    """Values by the name of the sample, and its labels but that of the run."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "run"}
            found[sample.name, ",".join(map("=".join, labels.items()))] = sample.value
    return found


@pytest.mark.parametrize("name", [*RUNS, "serving"])
def test_openmetrics_has_the_medians_of_the_record(name: str) -> None:
    text = printed("report --format openmetrics", GOLDEN / name)
    recorded = document("report", GOLDEN / name)
    found = samples(text)
    for metric in METRICS:
        summary = recorded["metrics"].get(metric.name)
        if summary is not None and metric.of == "repetition" and metric.median:
            for stat in ("median", "min", "max"):
                value = found.get((family_name(metric), f"stat={stat}"))
                assert value == summary[stat], metric.name
    for level in ("invalid", "unknown", "warning", "info"):
        count = sum(each["level"] == level for each in recorded["findings"])
        assert found["iobench_findings", f"level={level}"] == count
    validity = recorded["validity"]
    assert found["iobench_run_validity", f"iobench_run_validity={validity}"] == 1
    assert text.endswith("\n# EOF\n")
    assert "NaN" not in text
    assert "Inf" not in text


def test_a_figure_is_exported_once_where_two_kinds_of_runs_have_one_of_its_name() -> None:
    """Loads of a model have a load_bytes_per_s, too."""
    found = samples(openmetrics(load_run(REFERENCE / "kv")))
    assert ("iobench_request_load_bytes_per_second", "stat=median") in found
    assert not any(name.startswith("iobench_load_") for name, _ in found)


def test_the_demand_is_that_of_the_step_time_as_in_the_report() -> None:
    """Two accelerators of 1,000 samples/s; in a short window steps seemed shorter than they are."""
    found = samples(openmetrics(build_run(rates={"accelerator": 2951.0})))
    assert found["iobench_ceiling_samples_per_second", "stage=accelerator"] == 2000
    assert found["iobench_ceiling_samples_per_second", "stage=fetch"] == 4000


def test_the_steps_of_a_real_model_alone_are_those_of_the_report() -> None:
    """Beside the loader they were slower: 1,000 samples/s."""
    doc = build_run(
        accelerators=1,
        rates={"accelerator": 1800.0},
        trained={"model": "resnet50"},
        workload={"accelerator": {"kind": "model", "model": "resnet50"}},
        repetition={"samples": 52_560, "busy_s": 52.56},
    )
    alone = {each.name: each.rate for each in stage_rates(doc)}["accelerator"]
    found = samples(openmetrics(doc))
    assert found["iobench_ceiling_samples_per_second", "stage=accelerator"] == alone == 1800


def test_a_run_that_was_interrupted_is_told_from_a_complete_one() -> None:
    doc = build_run(status="interrupted")
    found = samples(openmetrics(doc))
    assert found["iobench_run_status", "iobench_run_status=interrupted"] == 1
    assert found["iobench_run_status", "iobench_run_status=ok"] == 0
    rows = [*csv.DictReader(io.StringIO(render_csv(sections(doc))))]
    assert {(row["status"], row["validity"]) for row in rows} == {("interrupted", doc.validity)}


def test_labels_of_openmetrics_are_escaped() -> None:
    """The quote comes first: a long text is cut."""
    doc = build_run().model_copy(update={"run_id": '",evil="\\' + HOSTILE})
    text = openmetrics(doc)
    assert not RAW.search(text)
    labels = [
        sample.labels
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert not any("evil" in each for each in labels)
    (run,) = {each["run"] for each in labels}
    assert run.startswith('",evil="')


# MLPerf


def test_mlperf_has_its_names_and_the_figures_of_the_record() -> None:
    found = json.loads(printed("report --format mlperf", GOLDEN / "calibrated"))
    recorded = document("report", GOLDEN / "calibrated")
    job, metric = recorded["job"], found["metric"]
    au = [100 * each["accelerator_utilization"] for each in job["repetitions"]]
    assert metric["train_au_percentage"] == au
    assert metric["train_au_mean_percentage"] == pytest.approx(statistics.fmean(au))
    assert metric["train_au_stdev_percentage"] == pytest.approx(statistics.pstdev(au))
    assert metric["train_au_meet_expectation"] == "success"
    rates = [each["read_bytes_per_s"] / 2**20 for each in job["repetitions"]]
    assert metric["train_io_mean_MB_per_second"] == pytest.approx(statistics.fmean(rates))
    assert found["num_accelerators"] == job["accelerators"]
    assert found["num_files_train"] == job["dataset"]["shards"]
    assert found["num_samples_per_file"] * found["num_files_train"] == job["dataset"]["samples"]
    assert found["num_files_eval"] is None
    assert found["host_meminfo"] is None
    assert "not an MLPerf submission" in found["iobench"]["notes"][0]


@pytest.mark.parametrize(("held_out", "files"), [(60_000, (8, 2)), (0, (10, None))])
def test_mlperf_counts_the_files_that_are_evaluated_apart(
    held_out: int, files: tuple[int, int | None]
) -> None:
    doc = build_run(dataset={"samples": 300_000, "shards": 10, "held_out": held_out})
    found = mlperf(doc)
    assert (found["num_files_train"], found["num_files_eval"]) == files


def test_mlperf_names_saves_and_restores() -> None:
    doc = load_run(GOLDEN / "checkpoint-stream")
    found: Json = mlperf(doc)["metric"]  # type: ignore[assignment]
    times = [each.wall_s for each in doc.checkpoints.restores]
    assert found["load_checkpoint_duration_mean_seconds"] == pytest.approx(statistics.fmean(times))
    assert found["checkpoint_size_GB"] == doc.checkpoints.bytes / 2**30
    assert found["save_checkpoint_io_mean_GB_per_second"] > 0
    assert not [name for name in found if name.startswith("train_")]


# The trace


def read_trace(text: str) -> list[Json]:
    """Read a trace as the format demands it; fail where it would be refused or drawn wrongly."""
    recorded = json.loads(text)
    assert set(recorded) == {"displayTimeUnit", "otherData", "traceEvents"}
    events: list[Json] = recorded["traceEvents"]
    named: dict[str, set[tuple[int, ...]]] = {"process_name": set(), "thread_name": set()}
    open_until: dict[tuple[int, int], list[float]] = {}
    for event in events:
        assert event["ph"] in "MXCi"
        assert isinstance(event["pid"], int)
        assert event["pid"] > 0
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            place = (event["pid"], event["tid"])
            if event["name"] == "process_name":
                named["process_name"].add(place[:1])
            elif event["name"] == "thread_name":
                named["thread_name"].add(place)
            continue
        assert (event["pid"],) in named["process_name"]
        if event["ph"] == "C":
            assert all(math.isfinite(value) and value >= 0 for value in event["args"].values())
            continue
        track = (event["pid"], event["tid"])
        assert track in named["thread_name"]
        if event["ph"] == "i":
            continue
        assert event["dur"] >= 0
        start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        ends = open_until.setdefault(track, [])
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], "slices of a thread follow or contain one another"
        ends.append(end)
    return events


def slices(events: list[Json], category: str) -> list[Json]:
    return [each for each in events if each["ph"] == "X" and each["cat"] == category]


@pytest.mark.parametrize("name", WITH_EVENTS)
def test_a_trace_has_each_step_and_its_parts(name: str) -> None:
    from iobench.host.timeline import read_events

    found = read_trace(printed("report --format trace", GOLDEN / name))
    rows = read_events(GOLDEN / name / "events.parquet")
    steps = slices(found, "step")
    assert len(steps) == len(rows["step"])
    assert {each["pid"] for each in steps} == {int(rank) + 1 for rank in np.unique(rows["rank"])}
    assert sum(each["args"]["bytes_read"] for each in steps) == int(rows["bytes_read"].sum())
    waited = sum(each["dur"] for each in slices(found, "wait"))
    assert waited == pytest.approx(rows["wait_ns"].sum() / 1e3, rel=0.05)
    keys = set(zip(rows["phase"], rows["repetition"].tolist(), strict=True))
    assert len(slices(found, "phase")) == len(keys)
    assert any(each["ph"] == "C" and each["args"]["B/s"] > 0 for each in found)
    if name == "beside-saves":
        assert len(slices(found, "save")) == int((rows["checkpoint_ns"] > 0).sum())


# The summary for CI


@pytest.mark.parametrize("name", RUNS)
def test_a_summary_has_the_verdict_and_what_failed_before_what_is_folded(name: str) -> None:
    text = printed("report --format github", GOLDEN / name)
    recorded = document("report", GOLDEN / name)
    first, _, rest = text.partition("<details>")
    assert text.startswith("### ")
    for finding in recorded["findings"]:
        part = rest if finding["level"] == "info" else first
        assert f"`{finding['rule']}`" in part
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    if recorded["metrics"] and recorded["job"]["kind"] == "training":
        assert "- samples/s: " in first
        assert "| sample throughput, samples/s |" in rest


def test_a_summary_shows_texts_as_they_are() -> None:
    text = "</summary><img src=x onerror=1> | [x](y) **b** `c` @me #1 \\| a_b_"
    finding = Finding(rule="x", level="warning", evidence=text + HOSTILE)
    doc = build_run().model_copy(update={"findings": [finding], "run_id": text})
    shown = render_github(sections(doc))
    tags = set(re.findall(r"<[^>]*>", shown))
    assert tags == {"<details>", "</details>", "<summary>", "</summary>", "<pre>", "</pre>"}
    assert not RAW.search(shown.replace("\n", ""))
    assert "@me" not in shown
    assert "](" not in shown
    for block in shown.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1


# Formats and kinds of records


def record_of(kind: str, tmp_path: Path) -> Path:
    if kind == "ab":
        (tmp_path / "ab").mkdir()
        save_ab(tmp_path / "ab", FASTER)
        return tmp_path / "ab"
    return GOLDEN / {"training": "calibrated", "checkpoint": "checkpoint-stream"}[kind]


@pytest.mark.parametrize("kind", ["training", "checkpoint", "ab"])
@pytest.mark.parametrize("form", RECORDS)
def test_each_format_shows_a_record_or_refuses_it_in_one_line(
    form: str, kind: Any, tmp_path: Path
) -> None:
    shows = kind in MEDIA[form].kinds
    assert bool(refusal(form, kind)) is not shows
    command = ("report --format", form, record_of(kind, tmp_path))
    assert printed(*command) if shows else refused(*command)


# Dashboards


ROOT = Path(__file__).resolve().parents[2]
DASHBOARD: Any = json.loads((ROOT / "deploy/grafana/iobench.json").read_text("utf-8"))
EXPORTED = (
    ROOT / "tests/golden/0.1.0/runs/checkpoint-stream",
    ROOT / "results/reference/storage-bound",  # with every stage left out once
)


def expressions() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (
        variable["definition"]
        for variable in DASHBOARD["templating"]["list"]
        if variable["type"] == "query"
    )


def exported() -> dict[str, set[str]]:
    """The labels of each sample that a run may have, by its name."""
    labels = {family_name(metric): {"run", "stat"} for metric in METRICS}
    text = openmetrics(*map(load_run, EXPORTED))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def test_every_metric_and_label_that_is_asked_for_is_exported() -> None:
    known = exported()
    asked = set()
    for text in expressions():
        for name, selected in re.findall(r"(iobench_\w+)(?:\{([^}]*)\})?", text):
            assert name in known, text
            assert set(re.findall(r"(\w+)\s*=", selected)) <= known[name], text
            asked.add(name)
    assert len(asked) > 15


def test_a_run_below_a_directory_with_damaged_events_is_left_out(tmp_path: Path) -> None:
    for name in ("calibrated", "throttled"):
        shutil.copytree(ROOT / "tests/golden/0.1.0/runs" / name, tmp_path / name)
    (damaged := tmp_path / "throttled/events.parquet").write_bytes(b"PAR1")
    code, out, err = in_process("report", tmp_path, "--json")
    assert [each["run_id"] for each in json.loads(out)] == [
        load_run(tmp_path / "calibrated").run_id
    ]
    assert (code, err.count("\n")) == (0, 1)
    assert f"left out: cannot read the step events {damaged}" in err
    code, _, err = in_process("report", tmp_path, f"{damaged.parent}/")  # it is asked for by name
    assert (code, err.splitlines()[-1].startswith("iobench: cannot read")) == (1, True)
