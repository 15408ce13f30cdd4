"""Pages of records that are odd: without figures, of one step, of many ranks, cut short."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from iobench.base.errors import IobenchError
from iobench.judge.rebuild import conclude
from iobench.record.run import KINDS, RunRecord
from iobench.report.record import sections
from iobench.report.render_html import page
from tests.hostile import leaves, replaced
from tests.processes import in_process
from tests.unit.conftest import build_run
from tests.unit.test_sections import Page, assert_only_own_elements

RUNS = Path(__file__).parent.parent / "golden" / "0.1.0" / "runs"


def read(document: Mapping[str, Any]) -> RunRecord:
    return KINDS[document["job"]["kind"]].model_validate(document)


def shown(doc: RunRecord) -> Page:
    text = page(doc, sections(conclude(doc)))
    assert_only_own_elements(text)
    told = Page(text)
    assert "None" not in told.told
    assert "nan" not in told.told.split()
    return told


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("beside-saves", marks=pytest.mark.slow),
        pytest.param("find-max", marks=pytest.mark.slow),
        "checkpoint-dcp-async",
    ],
)
def test_a_page_of_a_run_of_which_nothing_is_known(name: str) -> None:
    """Every value that may be null is null at once."""
    document = dict(json.loads((RUNS / name / "run.json").read_text()))
    unknown = 0
    for path in leaves(document):
        try:
            changed = replaced(document, path, None)
            conclude(read(changed))
        except (ValidationError, IobenchError, KeyError, TypeError, IndexError):
            continue  # it must have a value, or is no longer there
        document, unknown = changed, unknown + 1
    assert unknown > 50
    shown(read(document))


def test_a_page_of_512_ranks_is_small() -> None:
    time = {"wall_s": 10.0, "busy_s": 8.0, "fill_s": 0.5, "fetch_s": 1.0, "prep_s": 0.5}
    ranks = [{"rank": rank, **time, "sync_s": rank / 512} for rank in range(512)]
    doc = build_run(accelerators=512, repetition={"ranks": ranks})
    text = page(doc, sections(doc))
    assert_only_own_elements(text)
    assert len(text) < (1 << 20) + len(doc.model_dump_json(indent=2))


@pytest.mark.parametrize("place", ["missing/out.html", ".", "/dev/full", "link/out.html"])
def test_a_page_that_can_not_be_written_leaves_no_trace(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is not there, a folder, a full disk, a link to nowhere."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "old.html").write_text("old")
    code, out, err = in_process("report", RUNS / "calibrated", "--html", "-o", place)
    assert (code in (1, 2), out) == (True, ""), (code, err)
    assert err.count("iobench: ") == 1, err
    assert "Traceback" not in err
    assert {each.name for each in tmp_path.iterdir()} == {"link", "old.html"}
