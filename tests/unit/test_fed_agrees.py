"""All sentences and figures on what the storage can feed agree, in records with planted causes.

Demand, rates and curves are those of runs whose truth was planted. One accelerator takes 1,000
samples/s, of which 900 are required.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from iobench.ask.compare.pace import pace_of
from iobench.judge.rebuild import conclude
from iobench.record.curve import Rate
from iobench.record.run import TrainingRecord
from iobench.record.verdict import (
    Advice,
    Estimate,
    Fed,
    FedAt,
    Verdict,
)
from iobench.report.run import sections
from iobench.report.sections import Table
from tests.unit.conftest import build_run
from tests.unit.test_advice import tried
from tests.unit.test_causes import curve, run_curve, without


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


EIGHT = FedAt(
    ranks=8,
    accelerator_utilization=Estimate(value=0.55, low=0.5, high=0.6, n=40),
    fed=None,
    how="extrapolated",
)
"""What the steps of the run say of eight ranks."""


def waiting() -> TrainingRecord:
    """A run whose 4 reads in flight are too few."""
    doc = build_run(
        accelerators=1,
        measured=380.0,
        au=0.38,
        rates={"fetch": 400.0},
        workload={"reader": {"concurrency": 2, "decode": True}},
        ablations=without(storage=(2.4, 2.8)),
    )
    return with_curve(doc, latent())


def test_its_own_ranks_starve_in_the_table_as_they_do_in_the_verdict() -> None:
    """90.7 % busy over the whole time, and 86 % after the rate fell, where 90 % are required."""
    rates = [2000.0] * 10 + [1720.0] * 20
    stored = [1e5 * each for each in rates]
    doc = build_run(
        measured=sum(rates) / 30,
        au=0.907,
        rates={"fetch": 1720.0, "storage_raw": 1720.0},
        repetition={"rates": {"bin_s": 1.0, "samples_per_s": rates, "stored_bytes_per_s": stored}},
    )
    found, fed = told(doc)
    assert (found.starved, fed.at[0].fed) == (True, False)
    assert fed.at[0].accelerator_utilization.value == pytest.approx(0.86, abs=0.001)


def test_the_fill_of_a_cut_run_is_no_part_of_the_rate_after_its_fall() -> None:
    """A check whose first batch took a fifth of the time. 1,700 samples/s after the rate fell keep
    accelerators that demand 2,000 busy for 85 % of it, and not 85 % / 0.8.
    """
    rates = [2000.0] * 10 + [1700.0] * 20
    part = {"wall_s": 37.5, "busy_s": 27.0, "fill_s": 7.5, "fetch_s": 3.0, "prep_s": 0.0}
    stored = [1e5 * each for each in rates]
    doc = build_run(
        measured=sum(rates) / 37.5,
        au=sum(rates) / 37.5 / 2000,
        rates={"fetch": 1700.0, "storage_raw": 1700.0},
        storage={"url": "/mnt/iobench-check-1"},
        repetition={
            "ranks": [{"rank": rank} | part for rank in range(2)],
            "rates": {"bin_s": 1.0, "samples_per_s": rates, "stored_bytes_per_s": stored},
        },
    )
    found, _ = told(doc)
    assert (found.starved, found.measured_samples_per_s) == (True, 1700.0)
    assert "85.0 % busy" in found.sentence


def test_saves_are_in_the_rate_after_its_fall_as_in_that_of_the_whole_time() -> None:
    """Saves take 30 % of the time. Between them 1,700 samples/s are left of 2,000."""
    rates, wall_s = [2000.0] * 10 + [1700.0] * 20, 30 / 0.7
    part = {"wall_s": wall_s, "busy_s": 27.0, "fill_s": 0.0, "fetch_s": 3.0, "prep_s": 0.0}
    stored = [1e5 * each for each in rates]
    doc = build_run(
        measured=sum(rates) / wall_s,
        au=0.9,
        rates={"fetch": 1700.0, "storage_raw": 1700.0},
        repetition={
            "ranks": [{"rank": rank, "saves_s": 0.3 * wall_s} | part for rank in range(2)],
            "wall_s": wall_s,
            "checkpoint_s": 0.3 * wall_s,
            "rates": {"bin_s": 1.0, "samples_per_s": rates, "stored_bytes_per_s": stored},
        },
    )
    found, _ = told(doc)
    assert found.starved
    assert found.measured_samples_per_s == pytest.approx(0.7 * 1700)
    assert "85.0 % busy" in found.sentence
    pace = pace_of([doc])
    assert pace is not None
    assert pace.middle == pytest.approx(1700)


def saving(**changes: Any) -> TrainingRecord:
    """Four accelerators get 2,800 of 4,000 samples/s between saves, which take 30 % of the time."""
    part = {"wall_s": 60.0, "busy_s": 29.4, "fetch_s": 12.6, "saves_s": 18.0}
    return build_run(
        accelerators=4,
        measured=0.7 * 2800,
        au=0.7,
        rates={"fetch": 2800.0, "storage_raw": 2800.0},
        repetition={
            "ranks": [{"rank": rank, "fill_s": 0.0, "prep_s": 0.0} | part for rank in range(4)],
            "at_more_ranks": [EIGHT],
        },
        **changes,
    )


def test_what_a_storage_feeds_is_asked_between_saves() -> None:
    """2,800 samples/s feed 3 accelerators, and keep 8 busy for 35 % of the time between saves."""
    found, fed = told(saving(ablations=without(storage=(1.25, 1.28))))
    assert found.bottleneck == "storage"
    assert (fed.accelerators, fed.today) == (3, 3)
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(0.35)


def test_a_lucky_try_feeds_no_more_than_the_ranks_of_the_run_can_take() -> None:
    """Its saves were faster by chance: 3.5 x, where saves that last as long allow 3.33 x."""
    part = {"wall_s": 60.0, "busy_s": 15.96, "fetch_s": 26.04, "saves_s": 18.0}
    doc = build_run(
        accelerators=1,
        measured=0.7 * 380,
        au=0.38,
        rates={"fetch": 400.0},
        workload={"reader": {"concurrency": 2, "decode": True}},
        ablations=without(storage=(1.9, 2.0)),
        repetition={"ranks": [{"rank": 0, "fill_s": 0.0, "prep_s": 0.0} | part]},
    )
    plain = with_curve(doc, latent())
    advice: Advice = told(plain)[0].advice[0]
    kept = tried(*advice.settings, Estimate(value=1.7), *((931.0 + n, 266.0) for n in range(3)))
    _, fed = told(conclude(plain.with_job(confirmations=[kept])))
    assert fed.potential == 1


def test_saves_starve_nobody_since_no_utilization_has_their_time() -> None:
    found, _ = told(saving())
    assert (found.bottleneck, found.starved) == ("checkpoint", True)
    said = "4 accelerators starve (70.0 % busy, 90 % required), and saving checkpoints is the"
    assert found.sentence.startswith(said)


def test_a_gain_beside_another_stage_does_not_starve_them() -> None:
    """Preparation is the bottleneck. One round without the storage brought something, too, but the
    storage alone delivers 14 times the demand: it could feed 15, and not 0.
    """
    doc = build_run(
        accelerators=1,
        measured=230.0,
        au=0.23,
        rates={"fetch": 14_320.0, "prep": 230.0, "loader": 9000.0},
        ablations=without(storage=1.36, prep=(4.2, 4.6)),
    )
    found, fed = told(doc)
    assert (found.bottleneck, found.starved) == ("prep", True)
    assert found.headroom == pytest.approx(14.32)
    assert (fed.accelerators, fed.today, fed.potential) == (15, 15, None)


def test_what_the_advice_makes_possible_is_no_absolute_no() -> None:
    """4 reads in flight starve the accelerator, and 16 feed it: the report has both numbers."""
    found, fed = told(waiting())
    assert (found.bottleneck, found.storage_bound) == ("storage", "latency")
    assert found.advice[0].id == "concurrency"
    assert (fed.accelerators, fed.today, fed.potential) == (0, 0, 1)


@pytest.mark.parametrize("most", [650.0, 1300.0])
def test_more_reads_get_no_more_than_any_number_of_them_got(most: float) -> None:
    """The reader gets 640 samples/s, and the curve 400 with as many reads, and at most ``most``."""
    doc = build_run(
        accelerators=1,
        measured=600.0,
        au=0.6,
        rates={"fetch": 640.0, "storage_raw": most},
        workload={"reader": {"concurrency": 2, "decode": True}},
        ablations=without(storage=(1.6, 1.66)),
    )
    rates = [min(rate, most) for rate in (160.0, 330.0, 400.0, 520.0, 1300.0, 1300.0, 1300.0)]
    found, fed = told(with_curve(doc, run_curve(curve(*rates))))
    more = [each.predicted_gain for each in found.advice if each.id == "concurrency"]
    assert more == ([pytest.approx(1.63)] if most > 1000 else [])
    assert (found.storage_bound == "latency") == bool(more)
    assert fed.potential == (1 if more else None)


@pytest.mark.parametrize(("rate", "potential"), [(950.0, 1), (500.0, None)])
def test_what_was_tried_counts_before_what_was_promised(rate: float, potential: int | None) -> None:
    plain = waiting()
    advice: Advice = told(plain)[0].advice[0]
    promised = Estimate(value=advice.predicted_gain or 1.0)
    kept = tried(*advice.settings, promised, *((rate + number, 380.0) for number in range(3)))
    found, fed = told(conclude(plain.with_job(confirmations=[kept])))
    assert found.advice[0].found is not None
    assert fed.potential == potential


def test_a_promise_that_has_room_for_nothing_feeds_nobody() -> None:
    """What larger reads get was not measured, and may be nothing: 200 samples/s stay 200."""
    doc = build_run(
        accelerators=1,
        measured=200.0,
        au=0.2,
        rates={"fetch": 200.0, "storage_raw": 200.0},
        dataset={"shards": 60_000},
        ablations=without(storage=(4.9, 5.0)),
    )
    found, fed = told(with_curve(doc, run_curve(curve(*[200.0] * 8))))
    assert (found.advice[0].id, found.advice[0].low) == ("pack", 1.0)
    assert (fed.accelerators, fed.potential) == (0, None)


def test_a_lucky_window_feeds_nobody() -> None:
    """One window with one read in flight hit a cache. All figures come from the others."""
    rates = [377.0, 240.0, 246.0, 251.0, 249.0, 252.0, 250.0]
    mine = curve(*rates)
    points = [
        each.model_copy(update={"reads_per_s": Rate(value=rate, windows=1)})
        for each, rate in zip(mine.points, rates, strict=True)
    ]
    doc = build_run(
        accelerators=1,
        measured=25.0,
        au=0.96,
        rates={"fetch": 250.0, "storage_raw": 252.0},
        workload={"batch_size": 1, "accelerator": {"kind": "emulated", "step_time": 0.038}},
    )
    found, fed = told(with_curve(doc, run_curve(mine.model_copy(update={"points": points}))))
    assert found.headroom == pytest.approx(9.5)
    assert (fed.accelerators, fed.today) == (10, 10)


def test_more_ranks_get_no_more_than_the_run_received() -> None:
    """The curve promises 5,000 samples/s, but the run received 600: eight accelerators share them.

    Where reads in flight are too few, eight accelerators have eight times as many.
    """
    doc = build_run(
        accelerators=1,
        measured=600.0,
        au=0.6,
        rates={"fetch": 5000.0, "storage_raw": 6000.0},
        repetition={"at_more_ranks": [EIGHT]},
        ablations=without(storage=(1.5, 1.6)),
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


def burst(series: list[float], **changes: Any) -> TrainingRecord:
    """A run that got so many samples/s in each second of a repetition."""
    mean = sum(series) / len(series)
    bins = {"bin_s": 1.0, "samples_per_s": series, "stored_bytes_per_s": [1e5 * x for x in series]}
    repetition = {"rates": bins, "at_more_ranks": [EIGHT]}
    return build_run(
        accelerators=1, measured=mean, au=mean / 1000, repetition=repetition, **changes
    )


def test_a_verdict_rests_on_the_rate_that_lasts() -> None:
    """Half of the demand lasts. So the storage costs a factor of 2, and not 1.47."""
    series = [980.0 + number for number in range(9)] + [500.0 + number % 3 for number in range(15)]
    gain = 1000 * len(series) / sum(series)
    rates = {"fetch": 8100.0, "storage_raw": 8100.0}
    doc = burst(series, rates=rates, ablations=without(storage=(0.99 * gain, 1.01 * gain)))
    doc = with_curve(doc, run_curve(curve(*[8000.0] * 8)))
    found, fed = told(doc)
    assert (found.bottleneck, found.starved) == ("storage", True)
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
        if isinstance(each, Table) and each.id in ("ceilings", "curve", "ablations")
        for note in each.notes
    ]
    assert len([note for note in notes if "fall" in note]) == 3
    assert conclude(doc) == doc


def test_a_table_of_rounds_says_what_the_verdict_counts_instead() -> None:
    """A round brought 1.60 x beside accelerators of which 12 % are idle."""
    doc = burst([880.0] * 30, rates={"fetch": 900.0}, ablations=without(storage=(1.6, 1.6)))
    table = next(each for each in sections(doc) if each.id == "ablations")
    assert isinstance(table, Table)
    assert "1.14 x" in table.notes[0]


def test_a_burst_that_hides_that_they_starve_does_not() -> None:
    """95.5 % busy over the whole time, 70 % after the fall: what lasts is too little."""
    series = [1000.0] * 40 + [700.0] * 8
    doc = burst(series, rates={"fetch": 3000.0}, ablations=without(storage=(1.06, 1.08)))
    found, fed = told(doc)
    assert (found.bottleneck, found.starved) == ("storage", True)
    assert fed.accelerators == 0
    assert {each.rule for each in doc.findings} >= {"rate.falls", "au.threshold"}


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
def test_a_tail_is_named_and_more_batches_hide_it(rates: Any) -> None:
    """2 % of reads take 200 ms instead of 2. The storage has bandwidth for the demand, and a loop
    of reads may reach it with the job's own number of them: batches wait for the slow ones.
    """
    starved: dict[str, Any] = {
        "accelerators": 1,
        "measured": 500.0,
        "au": 0.5,
        "rates": {"fetch": 520.0, "storage_raw": 1150.0},
        "dataset": {"shards": 60_000},
        "ablations": without(storage=(1.95, 2.0)),
        "repetition": {"at_more_ranks": [EIGHT]},
    }
    doc = build_run(**starved)
    found, fed = told(with_curve(doc, with_tail(rates, 0.002, 0.202)))
    assert (found.bottleneck, found.storage_bound) == ("storage", "stragglers")
    assert [each.id for each in found.advice] == ["workers"]
    assert (fed.accelerators, fed.potential) == (0, 1)
    assert fed.at[-1].accelerator_utilization.value == pytest.approx(1150 / 8000, rel=0.02)
    even, _ = told(with_curve(doc, with_tail(rates, 0.002, 0.004)))
    assert even.storage_bound != "stragglers"
    prep = build_run(**starved | {"ablations": without(storage=(0.98, 1.02), prep=(1.9, 2.0))})
    other, _ = told(with_curve(prep, with_tail(rates, 0.002, 0.202)))
    assert other.storage_bound != "stragglers"
