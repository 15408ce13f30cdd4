"""The answer of a run: on one screen, with the bottleneck marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord, load_run
from iobench.report.answer import answer
from iobench.report.record import sections
from iobench.report.render_text import render_text
from iobench.report.sections import first_screen
from tests.unit.conftest import build_run

ROOT = Path(__file__).resolve().parents[2]
RECORDS = [
    *sorted(ROOT.glob("tests/golden/*/runs/*/run.json")),
    *sorted(ROOT.glob("results/reference/*/run.json")),
]

LINES, COLUMNS = 30, 80
WHERE = 4
"""Lines that say where the results are."""


def text_of(doc: TrainingRecord) -> str:
    return render_text(answer(doc).plain(), width=COLUMNS)


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.parent.name)
def test_the_answer_fits_on_one_screen(path: Path) -> None:
    answers = first_screen(sections(conclude(load_run(path))))
    lines = render_text(answers, width=COLUMNS).splitlines()
    assert len(lines) <= LINES - WHERE
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize(("raw", "rows"), [(900.0, 1), (9000.0, 2)])
def test_the_best_of_the_storage_is_no_less_than_what_is_read(raw: float, rows: int) -> None:
    text = text_of(build_run(rates={"storage_raw": raw, "fetch": 1500.0}, au=0.5, measured=1000))
    assert text.count("  storage, ") == rows
    assert "storage, as it is read" in text


@pytest.mark.parametrize(
    ("rates", "au", "title", "marked"),
    [
        ({"fetch": 600.0}, 0.3, "starved by storage", "storage, as it is read"),
        ({"prep": 600.0}, 0.3, "starved by preparation", "preparation"),
        ({}, 0.97, "fed", ""),
    ],
)
def test_the_bottleneck_is_named_and_marked(
    rates: dict[str, float], au: float, title: str, marked: str
) -> None:
    doc = build_run(rates=rates, au=au, measured=2000 * au)
    lines = text_of(doc).splitlines()
    assert lines[0].endswith(f": {title}") or f"{lines[0]} {lines[1].strip()}".endswith(title)
    found = [line.split("  ")[1] for line in lines if line.endswith("< bottleneck")]
    assert found == [marked] * bool(marked)


def test_what_an_undecided_storage_feeds_is_a_range() -> None:
    """It may be to blame, or deliver enough for 14: 0 is not what it could feed."""
    doc = build_run(rates={"fetch": 9000.0}, au=0.5, measured=1000, accelerators=1)
    fed = doc.job.verdict.fed.model_copy(update={"accelerators": 0, "low": 0, "high": 14})
    changed = {"bottleneck": "undecided", "starved": True, "fed": fed}
    doc = doc.with_job(verdict=doc.job.verdict.model_copy(update=changed))
    texts = {each.label: each.text for each in answer(doc).gauges}
    assert texts["accelerators fed"] == "0 of 1 now; the storage alone could feed 0 to 14"
