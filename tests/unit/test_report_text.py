"""What a person reads, and what other programs get."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.verdict.bind import verdict
from iobench.cli.main import main
from iobench.cli.verbs import VERBS
from iobench.documents import json_text
from iobench.schema.checkpoint import Study
from iobench.schema.record import Summary, TrainingRecord
from iobench.schema.training import FindMax, FindMaxPoint
from tests.reports import run_csv, run_markdown, run_text

Build = Callable[..., TrainingRecord]

NULL = {
    "workload": {"accelerator": {"kind": "null", "name": "null", "step_time": None}},
    "rates": {"accelerator": None},
    "au": None,
}
RUNS: dict[str, dict[str, Any]] = {
    "fed": {},
    "starved": {"rates": {"storage_raw": 650, "fetch": 600}, "measured": 580, "au": 0.29},
    "no fio": {"rates": {"storage_raw": None}},
    "null": NULL,
    "nothing": {
        "rates": dict.fromkeys(("storage_raw", "fetch", "prep", "harness")),
        "repetitions": 0,
        "status": "interrupted",
    },
    "failed": {"status": "failed", "error": "a worker died"},
    "huge harness": {"rates": {"harness": 500_000}},
    "mlperf": {"rules": "mlperf", "au": 0.5, "repetitions": 2},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("width", [80, 100])
def test_fits_the_width_without_escapes(make_run: Build, name: str, width: int) -> None:
    text = run_text(make_run(**RUNS[name]), width=width)
    assert "\x1b" not in text
    assert max(len(line) for line in text.splitlines()) <= width
    assert "None" not in text
    assert "nan" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_verdict_comes_first(make_run: Build) -> None:
    lines = run_text(make_run(**RUNS["starved"])).splitlines()
    assert lines[0] == "Verdict: storage binds (valid, quick rules)"
    assert lines[1].startswith("Storage starves 2 accelerators (29.0 % busy, 90 % required)")


def cold_line(doc: TrainingRecord) -> str:
    lines = run_text(doc).splitlines()
    return next((line for line in lines if line.startswith("  cold reads")), "")


def test_a_cold_run_says_what_came_from_storage(make_run: Build) -> None:
    epoch = {"epoch": 0, "sample_bytes": 1000, "bytes_fetched": 250}
    assert "100.0 %" in cold_line(make_run())
    assert "10 epochs" in cold_line(make_run())
    assert "25.0 %" in cold_line(make_run(repetition={"epochs": [epoch]}))
    uncounted = {"epochs": [{"epoch": 0, "fetched_how": "not measured: a reason"}]}
    assert "a reason" in cold_line(make_run(repetition=uncounted))
    direct = cold_line(make_run(repetition=uncounted, loader={"direct": True}))
    assert direct
    assert "not measured" not in direct
    assert not cold_line(make_run(workload={"cache": "any"}))


def test_ceilings_are_bars_of_one_unit(make_run: Build) -> None:
    text = run_text(make_run(**RUNS["starved"]))
    rows = {line.strip().split("  ")[0]: line for line in text.splitlines() if "█" in line}
    assert set(rows) == {
        "storage, raw",
        "fetch",
        "prep",
        "harness",
        "all cores",
        "accelerators",
        "predicted",
        "measured",
    }
    assert "MiB/s of stored bytes and samples/s" in text
    assert rows["fetch"].split()[1:3] == ["57.22", "600"]  # 600 x 100 kB
    assert rows["fetch"].endswith("< binds")
    assert sum("< binds" in row for row in rows.values()) == 1
    assert rows["accelerators"].count("█") > 3 * rows["fetch"].count("█")


def test_a_long_bar_is_cut_and_marked(make_run: Build) -> None:
    text = run_text(make_run(**RUNS["huge harness"]))
    harness = next(line for line in text.splitlines() if line.strip().startswith("harness "))
    assert harness.endswith("▶")


def test_what_was_not_measured_says_why(make_run: Build) -> None:
    text = run_text(make_run(**RUNS["no fio"]))
    assert "storage_raw left out by the test" in text
    null = run_text(
        make_run(
            **NULL,
            repetition={
                "not_measured": {"accelerator_utilization_sustained": "the accelerator is null"}
            },
        )
    )
    assert "accelerator utilization       not measured: the accelerator is null" in null


def test_metrics_show_median_min_max_and_n(make_run: Build) -> None:
    text = run_text(make_run())
    assert "median [min, max] of 5 repetitions" in text
    assert "accelerator utilization       95.0 % [95.0 %, 95.0 %]" in text


def test_a_proof_of_a_part_says_that_it_is_one(make_run: Build) -> None:
    proof = {
        "delivered": 32,
        "missing": None,
        "repeated": 0,
        "unknown": 0,
        "of": 64,
        "whole_epoch": False,
    }
    for repeated, told in ((0, "each once"), (2, "2 repeated")):
        loader = {
            "kind": "grain",
            "library": "grain 1",
            "delivery": proof | {"repeated": repeated},
            "shuffle": {"distance": 1.0},
        }
        doc = make_run(loader=loader)
        text = " ".join(run_text(doc).split())
        assert "32 samples" in text
        assert "64" in text
        assert told in text
        assert [finding.rule for finding in doc.findings] == ["loader.delivery"] * bool(repeated)
        assert "0 missing" not in text


def test_find_max_curve_is_ordered(make_run: Build) -> None:
    points = [
        FindMaxPoint(
            accelerators=n,
            accelerator_utilization=au,
            accelerator_utilization_sustained=au,
            samples_per_s=1.0,
            read_bytes_per_s=2.0**30,
            passed=au >= 0.9,
        )
        for n, au in ((4, 0.95), (8, 0.6), (6, 0.8))
    ]
    text = run_text(
        make_run(
            find_max=FindMax(required_accelerator_utilization=0.9, accelerators=4, points=points)
        )
    )
    assert "90.0 % utilization or more: 4" in text
    curve = [
        line.split()[0]
        for line in text.splitlines()
        if line.endswith("█") and ("fed " in line or "starved " in line)
    ]
    assert curve == ["4", "6", "8"]
    none = FindMax(
        required_accelerator_utilization=0.9,
        accelerators=None,
        points=[],
        bound="the host has no more cores",
    )
    assert "none of those tried" in run_text(make_run(find_max=none))
    assert "not even one" in run_text(make_run(find_max=none.model_copy(update={"bound": ""})))


def test_findings_carry_remedies(make_run: Build) -> None:
    text = run_text(make_run(au=0.5))
    (line,) = [line for line in text.splitlines() if "au.threshold" in line]
    assert line.split()[0] == "warning"
    assert "50.0 %" in line
    assert "-> " in text[text.index(line) :]


def test_color_only_when_asked(make_run: Build) -> None:
    assert "\x1b[" in run_text(make_run(au=0.5), color=True)


def test_json_is_the_document(make_run: Build) -> None:
    doc = make_run()
    assert TrainingRecord.model_validate(json.loads(json_text(doc))) == doc


def test_csv_has_a_line_for_each_repetition_and_blanks_for_what_was_not_measured(
    make_run: Build,
) -> None:
    rows = list(csv.DictReader(io.StringIO(run_csv(make_run(**NULL)))))
    assert [row["repetition"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[0]["samples_per_s"] == "1900.0"
    assert rows[0]["accelerator_utilization"] == ""


def test_markdown_has_rectangular_tables(make_run: Build) -> None:
    text = run_markdown(make_run(**RUNS["no fio"]))
    tables = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(tables) == 2
    for lines in tables:
        assert len({line.count("|") for line in lines}) == 1
    assert "not measured: storage_raw left out by the test" in text


def test_the_default_transport_is_told_beside_the_harness(make_run: Build) -> None:
    doc = make_run()
    doc.job.ceilings["harness"].details.tensor_samples_per_s = 3000.0
    assert (
        "with torch's default transport the harness would end at 286 MiB/s (3,000 samples/s)"
        in run_text(doc)
    )


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_prose_of_the_terminals_width(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    description = capsys.readouterr().out.split("\n\n")[1]
    assert max(map(len, description.splitlines())) <= 80


def test_saves_beside_a_run_are_no_repetitions_and_are_named_where_they_are_left_out(
    make_run: Build,
) -> None:
    doc = make_run(**RUNS["starved"])
    doc.job.saves = Study(
        model="m", writer="stream", ranks=1, bytes=1, full_bytes=1, tensors=1, files=1
    )
    doc.metrics["blocked_s"] = Summary(median=1.0, min=1.0, max=1.0, n=99)
    text = run_text(doc)
    assert "99" not in text.split("Measured:")[1].splitlines()[0]
    assert "29.0 %" in verdict(doc).sentence


def test_what_a_library_costs_is_the_median_of_its_repetitions(make_run: Any) -> None:
    """10, 20, 30 and 40 CPU seconds for 10 GB, over a fetch of 0.5 CPU s/GB."""
    proof = {
        "delivered": 9,
        "missing": 0,
        "repeated": 0,
        "unknown": 0,
        "of": 9,
        "whole_epoch": True,
    }
    loader = {
        "kind": "webdataset",
        "library": "webdataset 1.0",
        "delivery": proof,
        "shuffle": {"distance": 1.0},
    }
    doc = make_run(repetitions=4, loader=loader, repetition={"sample_bytes": 10**10})
    for number, repetition in enumerate(doc.job.repetitions):
        repetition.cpu_s = 10.0 * (number + 1)
    assert re.search(r"CPU s/GB\s+2\.50\b.*\b0\.50\b.*\b2\.00\b", run_text(doc), flags=re.S)
