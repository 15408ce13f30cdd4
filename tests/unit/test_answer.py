"""The answer of a run: on one screen, with the bottleneck marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord, load_run
from iobench.record.training import Ceiling
from iobench.record.verdict import Ablation, Advice, Estimate
from iobench.report.answer import answer
from iobench.report.record import sections
from iobench.report.render_text import render_text
from iobench.report.sections import first_screen
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


@pytest.mark.parametrize(
    ("cpu_s", "told"),
    [(20.0, ["all", "cores", "4.80", "GB/s"]), (1200.0, ["all", "cores,", "at", "least", "190"])],
)
def test_all_cores_deliver_no_less_than_the_run(cpu_s: float, told: list[str]) -> None:
    """1,200 s for 120,000 samples are 800/s on 8 cores; it was the start of workers, of which the
    rate of 1,900/s has nothing.
    """
    doc = build_run(repetition={"cpu_s": cpu_s})
    (found,) = [each.split() for each in text_of(doc).splitlines() if "all cores" in each]
    assert found[: len(told)] == told
    assert "verdict.gap" not in {each.rule for each in doc.findings}


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


@pytest.mark.parametrize(
    ("bottleneck", "fed", "told"),
    [
        # It may be to blame, or deliver enough for 14: 0 is not what it could feed.
        ("undecided", {"low": 0, "high": 14}, "0 of 1 now; the storage alone could feed 0 to 14"),
        ("undecided", {"potential": 12}, "as advised"),
        # The picture has both rates, and each number says which of them it is of.
        ("accelerator", {"accelerators": 16, "today": 9}, "could feed 9 as it is read, 16"),
    ],
)
def test_how_many_accelerators_are_fed_is_told_with_its_condition(
    bottleneck: str, fed: dict[str, int], told: str
) -> None:
    starved = bottleneck == "undecided"
    busy = 0.5 if starved else 0.95
    doc = build_run(rates={"fetch": 9000.0}, au=busy, measured=1000, accelerators=1)
    verdict = doc.job.verdict
    feeds = verdict.fed.model_copy(update={"accelerators": 0, **fed})
    changed = {"bottleneck": bottleneck, "starved": starved, "fed": feeds}
    for advice in (verdict.advice, []):
        found = verdict.model_copy(update={**changed, "advice": advice})
        texts = {each.label: each.text for each in answer(doc.with_job(verdict=found)).gauges}
        # Nothing is as advised where nothing is advised.
        assert (told in texts["accelerators fed"]) == (bool(advice) or told != "as advised")


# Tables
