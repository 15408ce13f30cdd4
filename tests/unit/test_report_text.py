"""What a person reads, and what other programs get."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from iobench.cli.main import main
from iobench.cli.verbs import VERBS
from iobench.schema.record import TrainingRecord
from tests.reports import run_csv, run_text

Build = Callable[..., TrainingRecord]

NULL = {
    "workload": {"accelerator": {"kind": "null", "name": "null", "step_time": None}},
    "rates": {"accelerator": None},
    "au": None,
}


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


def test_color_only_when_asked(make_run: Build) -> None:
    assert "\x1b[" in run_text(make_run(au=0.5), color=True)


def test_csv_has_a_line_for_each_repetition_and_blanks_for_what_was_not_measured(
    make_run: Build,
) -> None:
    rows = list(csv.DictReader(io.StringIO(run_csv(make_run(**NULL)))))
    assert [row["repetition"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert rows[0]["samples_per_s"] == "1900.0"
    assert rows[0]["accelerator_utilization"] == ""


@pytest.mark.parametrize("verb", VERBS)
def test_help_is_prose_of_the_terminals_width(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([*verb.split(), "--help"])
    description = capsys.readouterr().out.split("\n\n")[1]
    assert max(map(len, description.splitlines())) <= 80


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
