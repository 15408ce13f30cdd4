"""The answer of a run: on one screen, with the bottleneck marked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from iobench.judge.fed import UTILIZATION
from iobench.judge.rebuild import conclude
from iobench.record.run import Summary, TrainingRecord, load_run
from iobench.record.training import Ceiling
from iobench.record.verdict import Ablation, Advice, Estimate
from iobench.report.answer import answer
from iobench.report.figures import ENDS, TableOf, unit_of
from iobench.report.record import sections
from iobench.report.render_csv import render_csv
from iobench.report.render_text import render_text
from iobench.report.sections import Cell, Column, Row, Table, first_screen, joined
from tests.unit.conftest import build_run
from tests.unit.test_causes import RANK, READS

ROOT = Path(__file__).resolve().parents[2]
RECORDS = sorted(ROOT.glob("results/reference/*/run.json"))
"""The others are looked at by test_sections.py."""

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


@pytest.mark.parametrize(("asked", "told"), [(60_000, True), (10, False)])
def test_a_quota_of_the_server_is_on_the_first_screen(asked: int, told: bool) -> None:
    repetition = {"throttled": asked, "requests": 100_000}
    rates = {"storage_raw": 900.0, "fetch": 900.0}
    text = text_of(build_run(rates=rates, au=0.4, measured=900.0, repetition=repetition))
    assert "Storage is the bottleneck" in text
    assert ("The limit is a quota of its server" in text) == told


@pytest.mark.parametrize(("low", "told"), [(1.5, True), (0.6, False)])
def test_what_would_bring_more_is_not_claimed_beside_an_advice_that_is_inconclusive(
    low: float, told: bool
) -> None:
    doc = build_run(rates={"storage_raw": 900.0, "fetch": 900.0}, au=0.4, measured=900.0)
    pack = Advice(id="pack", change="pack", basis="", predicted_gain=2.0, low=low, high=9.0)
    changed = {"storage_bound": "operations", "advice": [pack]}
    text = text_of(doc.with_job(verdict=doc.job.verdict.model_copy(update=changed)))
    assert "The limit is its number of reads per second" in text
    assert ("larger reads would bring more" in text) == told
    assert ("inconclusive  pack" in text) != told


def test_a_bottleneck_whose_rate_was_not_measured_is_in_the_picture() -> None:
    doc = build_run(rates={"prep": 600.0}, au=0.3, measured=600)
    ceilings = {**doc.job.ceilings, "prep": Ceiling(not_measured="no time")}
    found = [each for each in text_of(doc.with_job(ceilings=ceilings)).splitlines() if "<" in each]
    assert [each.split() for each in found] == [
        ["preparation", "not", "measured", "|", "<", "bottleneck"]
    ]


def test_the_title_of_a_training_claims_no_more_than_its_sentence() -> None:
    """What its loader waited for may be a storage, or a lock."""
    doc = build_run(
        measured=200,
        au=0.2,
        loader={"kind": "user", "user": {"fetches": 10, "fetch_wall_s": 10.0, "wait_s": 10.0}},
        watched={"world": 1, "ranks": []},
        repetition={"ranks": [RANK | READS]},
    )
    assert doc.job.verdict is not None
    assert doc.job.verdict.bottleneck == "storage"
    assert "lock" in doc.job.verdict.sentence
    assert "lock" in answer(doc).state


def test_the_bar_of_a_slow_sampler_is_marked_and_not_that_of_the_loader() -> None:
    facts = {"fetches": 10, "fetch_wall_s": 1.0, "wait_s": 10.0, "sampler_s": 8.0, "samples": 1600}
    doc = build_run(measured=200, au=0.2, loader={"kind": "user", "user": facts})
    (found,) = [each for each in text_of(doc).splitlines() if "< bottleneck" in each]
    assert found.split()[:3] == ["sampler", "40.0", "MB/s"]  # 100 kB: 1,600 in 8 s, of 2 ranks


def test_accelerators_are_not_told_to_starve_by_themselves() -> None:
    """They are the bottleneck, and less busy than is required: no stage alone is why."""
    doc = build_run(rates={"fetch": 1500.0}, au=0.5, measured=1000)
    limits = {"bottleneck": "accelerator", "also": [], "starved": True}
    told = answer(doc.with_job(verdict=doc.job.verdict.model_copy(update=limits))).title
    assert "starved" not in told
    assert "no stage" in told
    gains = [
        Ablation(stage=stage, gain=Estimate(value=gain, low=gain, high=gain, n=5))
        for stage, gain in (("storage", 1.0), ("prep", 1.0), ("accelerator", 3.0))
    ]
    doc = build_run(rates={"fetch": 1500.0}, au=0.8, measured=1900, ablations=gains)
    assert doc.job.verdict.bottleneck == "accelerator"
    assert "No change that helps was found" in doc.job.verdict.sentence
    assert "no change is needed" not in text_of(doc).lower()


def test_what_an_undecided_storage_feeds_is_a_range() -> None:
    """It may be to blame, or deliver enough for 14: 0 is not what it could feed."""
    doc = build_run(rates={"fetch": 9000.0}, au=0.5, measured=1000, accelerators=1)
    fed = doc.job.verdict.fed.model_copy(update={"accelerators": 0, "low": 0, "high": 14})
    changed = {"bottleneck": "undecided", "starved": True, "fed": fed}
    doc = doc.with_job(verdict=doc.job.verdict.model_copy(update=changed))
    texts = {each.label: each.text for each in answer(doc).gauges}
    assert texts["accelerators fed"] == "0 of 1 now; the storage alone could feed 0 to 14"


def test_nothing_is_as_advised_where_nothing_is_advised() -> None:
    doc = build_run(rates={"fetch": 9000.0}, au=0.5, measured=1000, accelerators=1)
    fed = doc.job.verdict.fed.model_copy(update={"accelerators": 0, "potential": 12})
    for advice in ([], doc.job.verdict.advice):
        assert not advice or advice[0].id != "none"
        changed = {"bottleneck": "undecided", "starved": True, "fed": fed, "advice": advice}
        found = answer(doc.with_job(verdict=doc.job.verdict.model_copy(update=changed)))
        told = {each.label: each.text for each in found.gauges}["accelerators fed"]
        assert "12" in told
        assert ("as advised" in told) == bool(advice)


def test_what_a_storage_feeds_as_it_is_read_stands_beside_its_best() -> None:
    """The picture has both rates, and each number says which of them it is of."""
    doc = build_run(rates={"fetch": 9000.0}, measured=1000, accelerators=1)
    fed = doc.job.verdict.fed.model_copy(update={"accelerators": 16, "today": 9})
    changed = {"bottleneck": "accelerator", "starved": False, "fed": fed}
    doc = doc.with_job(verdict=doc.job.verdict.model_copy(update=changed))
    texts = {each.label: each.text for each in answer(doc).gauges}
    assert "could feed 9 as it is read, 16" in texts["accelerators fed"]


@pytest.mark.parametrize(("lowest", "told"), [(0.87, True), (0.91, False)])
def test_repetitions_on_both_sides_of_what_is_required_are_told(lowest: float, told: bool) -> None:
    doc = build_run(rates={"fetch": 9000.0}, au=0.92, measured=1100, accelerators=1)
    several = {"min": lowest, "max": 0.93, "n": 3}
    used = doc.metrics[UTILIZATION].model_copy(update=several)
    doc = doc.model_copy(update={"metrics": {**doc.metrics, UTILIZATION: used}})
    assert any("some do not" in each for each in answer(doc).sentences) is told


# Tables


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("samples_per_s", "samples/s"),
        ("read_bytes_per_s", "bytes/s"),
        ("buy_reads_per_s", ""),  # a rate, and no time
        ("wall_s", "s"),
        ("cpu_s_per_gb", "s/GB"),
    ],
)
def test_a_column_has_the_unit_of_its_name(name: str, unit: str) -> None:
    assert unit_of(name) == unit
    rows = TableOf([SimpleNamespace(**{name: 90.0})])
    rows.add(name, "figure")
    assert rows.made("t").columns[0].unit == unit


def test_a_cell_has_the_interval_of_its_figure_or_the_range_of_its_median() -> None:
    found = SimpleNamespace(
        took_s=Estimate(value=2.0, low=1.0, high=4.0),
        alone_s=Estimate(value=2.0),
        seen_s=Summary(median=2.0, min=1.0, max=4.0, n=3),
        none_s=None,
    )
    rows = TableOf([found])
    rows.add("took_s", ends=ENDS)
    rows.add_each(dict.fromkeys(("alone_s", "seen_s", "none_s"), ""))
    table = rows.made("t")
    took, low, high, alone, seen, none = table.rows[0].cells
    assert (took.value, took.low, took.high) == (seen.value, seen.low, seen.high) == (2.0, 1.0, 4.0)
    assert took.text == seen.text != alone.text
    assert (low.value, high.value) == (1.0, 4.0)
    assert [each.name for each in table.columns][1:3] == ["took_s_low", "took_s_high"]
    assert (none.value, none.shown) == (None, "-")


def test_rows_beyond_the_most_are_counted() -> None:
    table = TableOf(range(7), most=5, more=10).made("t")
    assert (len(table.rows), table.more) == (5, 12)
    assert TableOf(range(3), most=5).made("t").more == 0


def test_parts_that_have_nothing_to_say_are_left_out() -> None:
    part = TableOf([1]).made("t")
    assert joined(None, part, [None, part], []) == [part, part]


def test_tables_of_data_that_differ_in_labels_of_the_user_become_one() -> None:
    def table(name: str, **values: str) -> Table:
        cells = tuple(Cell(value=value) for value in values.values())
        columns = tuple(Column(name=key) for key in values)
        return Table(id=name, columns=columns, rows=(Row(cells=cells),), where="data")

    found = render_csv([table("a", run="1", tag_box="x"), table("b", run="2", tag_site="y")])
    assert found.splitlines() == ["run,tag_box,tag_site", "1,x,", "2,,y"]
