"""What runs of earlier versions said in other ways is in its place after they were loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iobench.schema.result import load_run
from iobench.schema.upgrade import upgraded

GOLDEN = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


@pytest.mark.parametrize(("run", "raw"), [("calibrated", "fio"), ("throttled", "reader")])
def test_who_measured_a_ceiling_is_known_of_older_runs(run: str, raw: str) -> None:
    assert '"by"' not in (GOLDEN / run / "run.json").read_text()
    found = {name: ceiling.by for name, ceiling in load_run(GOLDEN / run).ceilings.items()}
    assert found == {
        "storage_raw": raw,
        "fetch": "reader",
        "prep": "reader",
        "harness": "loader",
        "accelerator": "accelerator",
    }


def test_what_a_newer_run_says_itself_stays() -> None:
    run = {"ceilings": {"fetch": {"by": "fio", "how": "x"}, "prep": {"not_measured": "y"}}}
    assert upgraded(run) == run


def test_what_is_of_no_known_form_stays() -> None:
    for run in ({}, {"ceilings": 3}, {"ceilings": {"fetch": 3}}, {"ceilings": {"x": {}}}):
        assert upgraded(run) == run
    assert json.dumps(upgraded({"ceilings": {"prep": {"how": "loader 'x' over files"}}})) == (
        '{"ceilings": {"prep": {"how": "loader \'x\' over files", "by": "loader"}}}'
    )
