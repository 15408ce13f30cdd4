"""All sentences and figures on what the storage can feed agree, in records with planted causes.

Demand, rates and curves are those of runs whose truth was planted. One accelerator takes 1,000
samples/s, of which 900 are required.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from iobench.analyse.figures.in_flight import bytes_per_sample
from iobench.analyse.verdict.rebuild import conclude
from iobench.report.run import sections
from iobench.report.sections import Facts, Table
from iobench.schema.curve import Rate
from iobench.schema.record import TrainingRecord
from iobench.schema.verdict import Advice, Confirmation, Estimate, Fed, FedAt, Turn, Verdict
from tests.unit.test_causes import curve, run_curve, without

Build = Callable[..., TrainingRecord]


def told(doc: TrainingRecord) -> tuple[Verdict, Fed]:
    return doc.job.verdict, doc.job.verdict.fed


def latent(*, most: float = 1400.0, each: float = 100.0, points: int = 8) -> Any:
    """A storage on which each read in flight brings ``each`` reads/s, up to ``most``."""
    return run_curve(curve(*(min(each * 2**power, most) for power in range(points))))


def with_curve(doc: TrainingRecord, found: Any, **changes: Any) -> TrainingRecord:
    raw = doc.job.ceilings["storage_raw"]
    details = raw.details.model_copy(update={"read_bytes_per_sample": 1e5})
    ceilings = {"storage_raw": raw.model_copy(update={"details": details})}
    return conclude(doc.with_job(curve=found, ceilings=doc.job.ceilings | ceilings, **changes))


def test_a_gain_beside_another_stage_does_not_starve_them(make_run: Build) -> None:
    """Preparation binds. One round without the storage brought something, too, but the storage
    alone delivers 14 times the demand: it could feed 15, and not 0.
    """
    doc = make_run(
        accelerators=1,
        measured=230.0,
        au=0.23,
        rates={"fetch": 14_320.0, "prep": 230.0, "harness": 9000.0},
        knock_outs=without(storage=1.36, prep=(4.2, 4.6)),
    )
    found, fed = told(doc)
    assert (found.binds, found.starved) == ("prep", True)
    assert found.headroom == pytest.approx(14.32)
    assert (fed.accelerators, fed.today, fed.potential) == (15, 15, None)


def test_what_the_advice_makes_possible_is_no_absolute_no(make_run: Build) -> None:
    """4 reads in flight starve the accelerator, and 16 feed it: the report has both numbers."""
    doc = make_run(
        accelerators=1,
        measured=380.0,
        au=0.38,
        rates={"fetch": 400.0},
        workload={"reader": {"concurrency": 2, "decode": True}},
        knock_outs=without(storage=(2.4, 2.8)),
    )
    found, fed = told(with_curve(doc, latent()))
    assert (found.binds, found.storage_bound) == ("storage", "latency")
    assert found.advice[0].id == "concurrency"
    assert (fed.accelerators, fed.today, fed.potential) == (0, 0, 1)


def test_larger_reads_of_the_same_storage_count_as_well(make_run: Build) -> None:
    """Operations are spent: the curve of the job's own reads knows no better setting, but the
    advice to read in order does.
    """
    doc = make_run(
        accelerators=1,
        measured=330.0,
        au=0.33,
        rates={"fetch": 340.0},
        dataset={"shards": 60},
        workload={"reader": {"concurrency": 32, "access": "random", "decode": True}},
        knock_outs=without(storage=(2.9, 3.0)),
    )
    mine = curve(100.0, 200.0, 340.0, 340.0, 340.0, 340.0, 340.0, 340.0)
    large = curve(*[900.0] * 5, size=4_000_000, order="sequential")
    found, fed = told(with_curve(doc, run_curve(mine, large)))
    assert "pack" in [each.id for each in found.advice]
    assert (fed.accelerators, fed.potential) == (0, 1)


def test_another_storage_is_no_potential_of_this_one(make_run: Build) -> None:
    doc = make_run(
        accelerators=1,
        measured=330.0,
        au=0.33,
        rates={"fetch": 340.0},
        knock_outs=without(storage=(2.9, 3.0)),
    )
    found, fed = told(with_curve(doc, run_curve(curve(*[340.0] * 8))))
    assert [each.id for each in found.advice] == ["faster-storage"]
    assert (fed.accelerators, fed.potential) == (0, None)


@pytest.mark.parametrize(("rate", "potential"), [(950.0, 1), (500.0, None)])
def test_what_was_tried_counts_before_what_was_promised(
    make_run: Build, rate: float, potential: int | None
) -> None:
    doc = make_run(
        accelerators=1,
        measured=380.0,
        au=0.38,
        rates={"fetch": 400.0},
        workload={"reader": {"concurrency": 2, "decode": True}},
        knock_outs=without(storage=(2.4, 2.8)),
    )
    plain = with_curve(doc, latent())
    advice: Advice = told(plain)[0].advice[0]
    turns = [
        Turn(turn=number, samples_per_s=rate + number, base_samples_per_s=380.0, seconds=9.0)
        for number in range(3)
    ]
    tried = Confirmation(
        id=advice.id,
        change=advice.change,
        settings=advice.settings,
        promised=Estimate(value=advice.predicted_gain or 1.0),
        turns=turns,
    )
    found, fed = told(conclude(plain.with_job(confirmations=[tried])))
    assert found.advice[0].found is not None
    assert fed.potential == potential


def test_a_lucky_window_feeds_nobody(make_run: Build) -> None:
    """One window with one read in flight hit a cache. All figures come from the others."""
    rates = [377.0, 240.0, 246.0, 251.0, 249.0, 252.0, 250.0]
    mine = curve(*rates)
    points = [
        each.model_copy(update={"reads_per_s": Rate(value=rate, windows=1)})
        for each, rate in zip(mine.points, rates, strict=True)
    ]
    doc = make_run(
        accelerators=1,
        measured=25.0,
        au=0.96,
        rates={"fetch": 250.0, "storage_raw": 252.0},
        workload={"batch_size": 1, "accelerator": {"kind": "emulated", "step_time": 0.038}},
    )
    found, fed = told(with_curve(doc, run_curve(mine.model_copy(update={"points": points}))))
    assert found.headroom == pytest.approx(9.5)
    assert (fed.accelerators, fed.today) == (10, 10)


def test_more_ranks_get_no_more_than_the_run_received(make_run: Build) -> None:
    """The curve promises 5,000 samples/s, but the run received 600: eight accelerators share them.

    Where reads in flight are too few, eight accelerators have eight times as many.
    """
    more = FedAt(
        ranks=8,
        accelerator_utilization=Estimate(value=0.55, low=0.5, high=0.6, n=40),
        fed=None,
        how="extrapolated",
    )
    doc = make_run(
        accelerators=1,
        measured=600.0,
        au=0.6,
        rates={"fetch": 5000.0},
        repetition={"at_more_ranks": [more]},
        knock_outs=without(storage=(1.5, 1.6)),
    )
    _, fed = told(with_curve(doc, run_curve(curve(*[5000.0] * 8))))
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(600 / 8000)
    assert fed.at[-1].fed is False
    few = doc.with_job(
        workload=doc.job.workload.model_copy(
            update={"reader": doc.job.workload.reader.model_copy(update={"concurrency": 1})}
        )
    )
    _, fed = told(with_curve(few, latent(most=6000.0, each=300.0, points=10)))
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(0.55)


def fact(doc: TrainingRecord, label: str) -> str:
    """A line of the box of answers."""
    boxes = [each for each in sections(doc) if isinstance(each, Facts) and each.id == "glance"]
    (found,) = [each.text for box in boxes for each in box.facts if each.label == label]
    return found


def numbers(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("utilization", [0.8999, 0.89962, 0.899999, 0.9004, 0.9, 0.85])
def test_a_utilization_beside_what_is_required_shows_the_difference(
    make_run: Build, utilization: float
) -> None:
    """In the sentence, in the rule and in the box of answers."""
    doc = make_run(accelerators=1, measured=1000.0 * utilization, au=utilization)
    rules = [each.evidence for each in doc.findings if each.rule == "au.threshold"]
    assert bool(rules) == (utilization < 0.9)
    for text in (told(doc)[0].sentence, fact(doc, "utilization"), *rules):
        busy, *rest = (float(each) for each in re.findall(r"(\d+(?:\.\d+)?) %", text))
        assert 90.0 in rest
        assert (busy < 90) == (utilization < 0.9)
        assert (busy == 90) == (utilization == 0.9)


EIGHT = FedAt(
    ranks=8,
    accelerator_utilization=Estimate(value=0.66, low=0.6, high=0.7, n=40),
    fed=None,
    how="extrapolated",
)
"""What the steps of the run say of eight ranks."""


def burst(make_run: Build, after: float = 500.0, **changes: Any) -> TrainingRecord:
    """980 samples/s for 9 s of each repetition, then ``after`` for 15 s; the curve knows 8,000."""
    series = [980.0 + number for number in range(9)] + [after + number % 3 for number in range(15)]
    mean = sum(series) / len(series)
    bins = {"bin_s": 1.0, "samples_per_s": series, "stored_bytes_per_s": [1e5 * x for x in series]}
    given: dict[str, Any] = {
        "accelerators": 1,
        "measured": mean,
        "au": mean / 1000,
        "rates": {"fetch": 8100.0, "storage_raw": 8100.0},
        "knock_outs": without(storage=(990 / mean, 1010 / mean)),
        "repetition": {"rates": bins, "at_more_ranks": [EIGHT]},
    } | changes
    return with_curve(make_run(**given), run_curve(curve(*[8000.0] * 8)))


def test_a_verdict_rests_on_the_rate_that_lasts(make_run: Build) -> None:
    """Half of the demand lasts. So the storage costs a factor of 2, and not 1.47."""
    doc = burst(make_run)
    found, fed = told(doc)
    assert (found.binds, found.starved) == ("storage", True)
    assert found.measured_samples_per_s == pytest.approx(501, abs=1)
    assert found.headroom == pytest.approx(0.501, abs=0.002)
    assert found.gains["storage"].value == pytest.approx(2.0, abs=0.03)
    first = found.advice[0]
    assert first.id == "faster-storage"
    assert first.predicted_gain == pytest.approx(2.0, abs=0.03)
    assert (fed.accelerators, fed.today, fed.potential, fed.basis) == (0, 0, None, "run")
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(0.0626, abs=0.001)
    assert "rate.falls" in {each.rule for each in doc.findings}
    notes = [
        note
        for each in sections(doc)
        if isinstance(each, Table) and each.id in ("ceilings", "curve", "knock-outs")
        for note in each.notes
    ]
    assert len([note for note in notes if "fall" in note]) == 3
    assert conclude(doc) == doc


def test_a_fall_in_one_repetition_of_three_does_not_last(make_run: Build) -> None:
    doc = burst(make_run, repetitions=3)
    steady = {"bin_s": 1.0, "samples_per_s": [680.0] * 24, "stored_bytes_per_s": [6.8e7] * 24}
    several = [
        each if number == 0 else type(each).model_validate(each.model_dump() | {"rates": steady})
        for number, each in enumerate(doc.job.repetitions)
    ]
    found, fed = told(conclude(doc.with_job(repetitions=several)))
    assert found.measured_samples_per_s == pytest.approx(682, abs=1)
    assert found.gains["storage"].value == pytest.approx(1.47, abs=0.01)
    assert fed.basis != "run"


def test_a_fall_that_still_feeds_them_starves_nobody(make_run: Build) -> None:
    doc = make_run(
        accelerators=1,
        measured=955.0,
        au=0.955,
        repetition={
            "rates": {
                "bin_s": 1.0,
                "samples_per_s": [1040.0] * 8 + [920.0] * 16,
                "stored_bytes_per_s": [1.04e8] * 8 + [9.2e7] * 16,
            }
        },
    )
    found, fed = told(doc)
    assert found.starved is False
    assert fed.basis != "run"
    assert (fed.accelerators or 0) >= 1


def test_a_burst_that_hides_that_they_starve_does_not(make_run: Build) -> None:
    """95.5 % busy over the whole time, 70 % after the fall: what lasts is too little."""
    series = [1000.0] * 40 + [700.0] * 8
    mean = sum(series) / len(series)
    doc = make_run(
        accelerators=1,
        measured=mean,
        au=mean / 1000,
        rates={"fetch": 3000.0},
        knock_outs=without(storage=(1.06, 1.08)),
        repetition={
            "rates": {
                "bin_s": 1.0,
                "samples_per_s": series,
                "stored_bytes_per_s": [1e5 * each for each in series],
            }
        },
    )
    found, fed = told(doc)
    assert (found.binds, found.starved) == ("storage", True)
    assert fed.accelerators == 0
    assert {each.rule for each in doc.findings} >= {"rate.falls", "au.threshold"}


def test_a_rate_that_falls_is_no_burst_of_a_storage_that_is_not_to_blame(make_run: Build) -> None:
    doc = burst(
        make_run,
        rates={"fetch": 8100.0, "prep": 505.0},
        knock_outs=without(storage=(0.98, 1.02), prep=(1.46, 1.48)),
    )
    found, fed = told(doc)
    assert found.binds == "prep"
    assert fed.basis != "run"
    assert fed.accelerators == 9  # 8,100 samples/s


def with_tail(rates: Sequence[float], usual_s: float, slow_s: float) -> Any:
    """A curve of one window a point; its slowest hundredth of reads takes ``slow_s``."""
    mine = curve(*rates)
    points = [
        each.model_copy(update={"latency_p50_s": usual_s, "latency_p99_s": slow_s})
        for each in mine.points
    ]
    return run_curve(mine.model_copy(update={"points": points}))


GROWING = (160.0, 330.0, 400.0, 520.0, 700.0, 900.0, 1150.0, 1150.0)
FLAT = (400.0, 800.0, 1100.0, 1150.0, 1150.0, 1150.0, 1150.0, 1150.0)


@pytest.mark.parametrize("rates", [GROWING, FLAT])
def test_a_tail_is_named_and_more_batches_hide_it(make_run: Build, rates: Any) -> None:
    """2 % of reads take 200 ms instead of 2. The storage has bandwidth for the demand, and a loop
    of reads may reach it with the job's own number of them: batches wait for the slow ones.
    """
    starved: dict[str, Any] = {
        "accelerators": 1,
        "measured": 500.0,
        "au": 0.5,
        "rates": {"fetch": 520.0, "storage_raw": 1150.0},
        "dataset": {"shards": 60_000},
        "knock_outs": without(storage=(1.95, 2.0)),
        "repetition": {"at_more_ranks": [EIGHT]},
    }
    doc = make_run(**starved)
    found, fed = told(with_curve(doc, with_tail(rates, 0.002, 0.202)))
    assert (found.binds, found.storage_bound) == ("storage", "stragglers")
    first = found.advice[0]
    assert first.id == "workers"
    (setting,) = first.settings
    assert setting.startswith("loader.workers=")
    assert int(setting.partition("=")[2]) > 2
    assert 1.5 < (first.predicted_gain or 0) <= 2.0
    assert "faster-storage" not in {each.id for each in found.advice}
    assert (fed.accelerators, fed.potential) == (0, 1)
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(1150 / 8000, rel=0.02)
    even, _ = told(with_curve(doc, with_tail(rates, 0.002, 0.004)))
    assert even.storage_bound != "stragglers"
    prep = make_run(**starved | {"knock_outs": without(storage=(0.98, 1.02), prep=(1.9, 2.0))})
    other, _ = told(with_curve(prep, with_tail(rates, 0.002, 0.202)))
    assert other.storage_bound != "stragglers"


def test_a_tail_of_a_storage_whose_bandwidth_is_spent_is_not_the_limit(make_run: Build) -> None:
    doc = make_run(
        accelerators=1,
        measured=500.0,
        au=0.5,
        rates={"fetch": 520.0, "storage_raw": 530.0},
        dataset={"shards": 60_000},
        knock_outs=without(storage=(1.95, 2.0)),
    )
    found, _ = told(with_curve(doc, with_tail([530.0] * 8, 0.002, 0.202)))
    assert (found.binds, found.storage_bound) == ("storage", "operations or bandwidth")


def test_few_slow_reads_among_slow_ones_are_not_the_limit(make_run: Build) -> None:
    """A batch of 100 reads of 40 ms, four at a time, takes 1 s: one of 400 ms changes little."""
    doc = make_run(
        accelerators=1,
        measured=190.0,
        au=0.19,
        rates={"fetch": 200.0, "storage_raw": 1150.0},
        dataset={"shards": 60_000},
        knock_outs=without(storage=(4.9, 5.1)),
    )
    found, _ = told(with_curve(doc, with_tail(LATENT, 0.04, 0.41)))
    assert (found.binds, found.storage_bound) == ("storage", "latency")
    assert found.advice[0].id == "concurrency"


LATENT = (25.0, 50.0, 100.0, 200.0, 400.0, 800.0, 1150.0, 1150.0)


def test_bytes_of_columns_are_those_that_were_delivered(make_run: Build) -> None:
    """40 of 200 columns were read, without a calibration: 160 of the 761 bytes of a row."""
    doc = make_run(
        rates={"fetch": None},
        dataset={"sample_bytes_mean": 761.0},
        workload={"reader": {"columns": 40, "decode": True}},
        repetition={"samples": 1000, "sample_bytes": 160_000},
    )
    assert bytes_per_sample(doc) == pytest.approx(160)
