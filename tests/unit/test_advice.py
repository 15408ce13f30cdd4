"""What advice promises, in which order it stands, and what it does not blame on the job. The base
run is that of build_run: demand 2,000, storage 4,000, prep 6,000, loader 8,000.
"""

from __future__ import annotations

from typing import Any

import pytest

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.whatif import what_if
from iobench.base.units import Quantity
from iobench.judge.promise import in_order
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord
from iobench.record.verdict import Advice, Confirmation, ConfirmationRound, Estimate, Verdict
from tests.unit.conftest import build_run
from tests.unit.test_causes import DEMANDED, SLOW, curve, run_curve, verdict_on, without

PACKED = {"shards": 60, "samples": 60_000}
SPENT = run_curve(
    curve(200, 400, 401, 400), curve(200, 390, 400, 399, size=4_000_000, order="sequential")
)
"""400 reads/s, whatever their size."""


def verdict_of(doc: TrainingRecord) -> Verdict:
    return doc.job.verdict


def spent(**changes: Any) -> TrainingRecord:
    """Operations are spent, on shards of 1,000 samples that are read at random."""
    slow = SLOW | {"workload": {"reader": {"concurrency": 2, "access": "random"}}}
    return build_run(
        **slow | {"dataset": PACKED, "curve": SPENT, "ablations": without(storage=(2.0, 2.1))}
        | changes
    )  # fmt: skip


def tried(setting: str, promised: Estimate, *rates: tuple[float, float]) -> Confirmation:
    rounds = [
        ConfirmationRound(round=number, samples_per_s=rate, base_samples_per_s=base, seconds=1.0)
        for number, (rate, base) in enumerate(rates)
    ]
    return Confirmation(change="c", settings=[setting], promised=promised, rounds=rounds)


def test_a_free_setting_that_was_tried_and_kept_stands_before_new_hardware() -> None:
    """Faster storage could bring 2.05 x. The setting brought 1.94 x, and costs nothing."""
    doc = spent()
    assert [each.id for each in verdict_of(doc).advice] == ["pack", "faster-storage"]
    setting = verdict_of(doc).advice[0].settings[0]
    kept = tried(setting, Estimate(value=2.02), (776, 400), (770, 398), (782, 402))
    found = verdict_of(conclude(doc.with_job(confirmations=[kept])))
    assert [each.id for each in found.advice] == ["pack", "faster-storage"]
    assert found.advice[0].found is not None
    assert setting in found.sentence
    useless = tried(setting, Estimate(value=2.02), (400, 400), (401, 398), (400, 402))
    found = verdict_of(conclude(doc.with_job(confirmations=[useless])))
    assert [each.id for each in found.advice] == ["faster-storage", "pack"]


@pytest.mark.parametrize(
    ("free", "bought", "enough", "first"),
    [
        (1.06, 3.0, 4.0, "faster-storage"),
        (1.50, 3.0, 4.0, "concurrency"),  # a third of it, by logarithms
        (1.10, 3.0, 1.08, "concurrency"),  # all that is required
        (1.06, 1.10, None, "concurrency"),
        (1.06, None, None, "concurrency"),  # nothing tells what the bought one brings
    ],
)
def test_what_is_free_stands_first_if_it_brings_enough(
    free: float, bought: float | None, enough: float | None, first: str
) -> None:
    setting = Advice(id="concurrency", change="c", basis="b", settings=["a=1"], predicted_gain=free)
    storage = Advice(id="faster-storage", change="c", basis="b", predicted_gain=bought)
    assert in_order([storage, setting], enough)[0].id == first


@pytest.mark.parametrize(
    ("mapped", "own", "gain"),
    [
        (True, 400.0, 3.0),  # each sample is three page faults
        (True, 133.0, None),  # the map is as fast as reads
        (False, 400.0, None),
    ],
)
def test_a_map_of_the_files_is_given_up_where_reads_get_more(
    mapped: bool, own: float, gain: float | None
) -> None:
    """A random sample out of shards takes one read of 400/s, or three page faults."""
    found = verdict_of(
        build_run(
            accelerators=1,
            rates={"storage_raw": own, "fetch": 133.3, "accelerator": 1000},
            measured=133.3,
            au=0.133,
            workload={"reader": {"concurrency": 2, "access": "random", "mmap": mapped}},
            dataset=PACKED,
            curve=run_curve(curve(own / 2, own, own, own)),
        )
    )
    assert found.bottleneck == "storage"
    advised = {each.id: each.predicted_gain for each in found.advice}
    assert advised.get("mapping") == (None if gain is None else pytest.approx(gain, rel=0.02))
    assert found.advice[0].settings == (["reader.mmap=false"] if gain else found.advice[0].settings)


@pytest.mark.parametrize("stage", ["storage", "prep", "fill", "sync", "checkpoint", "log"])
@pytest.mark.parametrize("gain", [(6.0, 7.0), 6.5])
def test_no_promise_exceeds_what_the_accelerators_demand(stage: str, gain: Any) -> None:
    """A round without the stage began beside other load: 6.5 x of 395 is more than 2,000."""
    rates = {"prep": {"fetch": 5000, "prep": 400}, "fill": {}}.get(stage, SLOW["rates"])
    found = verdict_on(**SLOW | {"rates": rates}, ablations=without(**{stage: gain}))
    promises = [each for each in found.advice if each.predicted_gain is not None]
    assert promises
    for each in promises:
        assert (each.predicted_gain or 0) <= DEMANDED * (1 + 1e-9)
        assert (each.high or 0) <= DEMANDED * (1 + 1e-9)
        assert each.at_most or (each.predicted_gain or 0) < DEMANDED


def test_longer_epochs_are_promised_no_more_than_the_storage_delivers() -> None:
    """200 samples/s, 6.5 times as many by the events without the fill; the storage has 800."""
    rates, short = {"storage_raw": 800, "fetch": 800}, {"steps": 44}
    more = {"measured": 200, "au": 0.1, "ablations": without(fill=(6.0, 7.0))}
    found = verdict_on(rates=rates, repetition=short, **more)
    assert found.bottleneck == "fill"
    [longer] = [each for each in found.advice if each.id == "longer-epochs"]
    assert (longer.predicted_gain, longer.at_most) == (pytest.approx(4.0), True)


def test_a_log_that_batches_wait_for_is_blamed_without_a_run_that_lacks_it() -> None:
    time = {"wall_s": 60.0, "busy_s": 6.0, "fetch_s": 3.0, "sync_s": 48.0, "saves_s": 0.0}
    found = verdict_on(
        measured=200,
        au=0.1,
        workload={
            "accelerator": {"kind": "emulated", "step_time": 0.1, "sync": "none"},
            "log": {"to": "/mnt/log"},
        },
        repetition={"ranks": [{"rank": rank, "fill_s": 0.0, **time} for rank in range(2)]},
    )
    assert found.bottleneck == "log"
    [advice] = [each for each in found.advice if each.id == "faster-log"]
    assert advice.predicted_gain == pytest.approx(5.0, rel=0.01)


@pytest.mark.parametrize(
    ("spent_by", "smaller"), [(SPENT, False), (run_curve(curve(200, 400, 401, 400)), True)]
)
def test_smaller_row_groups_are_as_many_reads(spent_by: Any, smaller: bool) -> None:
    """Where operations are spent, a smaller row group costs as much as a larger one."""
    doc = spent(
        curve=spent_by, dataset=PACKED | {"blocks": True}, repetition={"bytes_read": 30_000_000_000}
    )
    [found] = [each for each in doc.findings if each.rule == "read.amplification"]
    assert ("block_size" in found.remedy) is smaller


def test_an_upper_bound_is_not_broken_from_below() -> None:
    """At most 2.05 x was promised, by what leaving the storage out brought; 1.5 x was found."""
    doc = spent()
    first = verdict_of(doc).advice[0]
    assert first.at_most
    promise = Estimate(value=first.predicted_gain or 0, low=first.low, high=first.high)
    less = tried(first.settings[0], promise, (600, 400), (603, 398), (597, 402))
    [found] = conclude(doc.with_job(confirmations=[less])).job.confirmations
    assert found.answer == "kept"
    none = tried(first.settings[0], promise, (400, 400), (401, 398), (400, 402))
    [found] = conclude(doc.with_job(confirmations=[none])).job.confirmations
    assert found.answer == "not kept"


def test_a_further_change_is_promised_no_more_than_the_run_without_its_storage() -> None:
    """109 of 292 samples/s. Without the storage it were 231, by test; twice the bandwidth is 214,
    so after that no storage brings more than 1.08 x.
    """
    doc = build_run(
        accelerators=1,
        rates={"storage_raw": 107, "fetch": 107, "prep": 1200, "loader": 2000, "accelerator": 292},
        measured=107,
        au=0.37,
        workload={"accelerator": {"kind": "emulated", "name": "h", "step_time": 100 / 292}},
        dataset={"shards": 60_000},
        ablations=without(storage=(2.10, 2.21)),
    )
    found = what_if([(doc, {})], Change(storage_bandwidth=Quantity(2, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert rate == pytest.approx(214, rel=0.01)
    for advice in verdict_of(found.what_if).advice:
        if advice.id == "faster-storage":
            assert (advice.predicted_gain or 0) * rate <= 2.21 * 107 * (1 + 1e-9)
    faster = what_if([(doc, {})], Change(storage_bandwidth=Quantity(10, relative=True)))
    assert faster.what_if.metrics["samples_per_s"].median <= 2.21 * 107 * (1 + 1e-9)


def test_two_rounds_that_differ_do_not_bound_what_faster_storage_brings() -> None:
    """Without its storage the run was 0.8 x and 1.7 x as fast: 1.17 x, known to nothing."""
    rounds = [
        {"repetition": at, "samples_per_s": gain * 330, "base_samples_per_s": 330, "seconds": 1}
        for at, gain in enumerate((0.8, 1.7))
    ]
    one = {"stage": "storage", "gain": {"value": 1.17, "low": 0.01, "high": 126.0, "n": 2}}
    doc = build_run(
        accelerators=1,
        rates={"storage_raw": 330, "fetch": 330, "prep": 5000},
        measured=330,
        au=0.33,
        ablations=[one | {"rounds": rounds}],
        dataset={"shards": 60_000},
    )
    found = what_if([(doc, {})], Change(storage_bandwidth=Quantity(2, relative=True)))
    assert found.what_if.metrics["samples_per_s"].median == pytest.approx(1.7 * 330)


FILL = {"fill": (1.38, 1.42), "storage": (0.98, 1.02)}


@pytest.mark.parametrize(("persistent", "says"), [(True, False), (False, True)])
def test_data_of_a_loader_of_the_users_own_is_what_it_is(persistent: bool, says: bool) -> None:
    """Longer epochs are no change that its user can make; workers that stay are a setting."""
    found = verdict_on(
        measured=1400,
        au=0.7,
        loader={"kind": "user"},
        workload={"loader": {"workers": 2, "persistent_workers": persistent}},
        ablations=without(**FILL),
    )
    assert found.bottleneck == "fill"
    ids = [each.id for each in found.advice]
    assert "first-batches" in ids
    assert "longer-epochs" not in ids
    assert ("persistent_workers" in found.advice[0].change) is says


@pytest.mark.parametrize(
    ("ranks", "workers", "advised", "gain"), [(3, 2, 3, 8 / 6), (5, 0, 2, 8 / 5), (3, 1, 2, 2.0)]
)
def test_more_workers_are_more_and_bring_what_the_cores_allow(
    ranks: int, workers: int, advised: int, gain: float
) -> None:
    """Of 8 cores, which can't be divided evenly among the ranks."""
    doc = build_run(
        accelerators=ranks,
        rates={"prep": 400.0 * ranks, "fetch": 9000.0, "storage_raw": 9000.0, "loader": 9000.0},
        measured=400.0 * ranks,
        au=0.4,
        loader={"workers": workers},
        workload={"loader": {"workers": workers}},
    )
    first = doc.job.verdict.advice[0]
    assert first.settings == [f"loader.workers={advised}"]
    assert first.predicted_gain == pytest.approx(gain)
    assert first.change.endswith(f" instead of {ranks * workers}")


def test_faster_storage_is_promised_what_saves_leave_of_it() -> None:
    """Saves take 10 % of the time. Without a wait, 1,530 samples/s become 1 / (1 / 2,000 + 0.1 /
    1,530) of them, as the what-if says, and not 2,000.
    """
    part = {"wall_s": 60.0, "busy_s": 45.9, "fill_s": 0.0, "fetch_s": 8.1, "prep_s": 0.0}
    doc = build_run(
        measured=1530.0,
        au=0.85,
        rates={"fetch": 1700.0, "storage_raw": 1700.0},
        repetition={"ranks": [{"rank": rank, "saves_s": 6.0} | part for rank in range(2)]},
    )
    first = doc.job.verdict.advice[0]
    found = what_if([(doc, {})], Change(storage_bandwidth=Quantity(10, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert first.id == "faster-storage"
    assert first.predicted_gain == pytest.approx(rate / 1530) == pytest.approx(1.156, abs=0.001)


# What if


def test_a_model_is_not_corrected_by_another_stages_error() -> None:
    """The CPU was overestimated; with steps of 5 times the length the accelerators are fed at 600
    samples/s, whatever the CPU does.
    """
    doc = build_run(
        accelerators=3,
        rates={"storage_raw": 9000, "fetch": 2600, "prep": 2000},
        measured=1130,
        au=0.38,
    )
    found = what_if([(doc, {})], Change(step_time=Quantity(5, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert rate == pytest.approx(600)
    assert found.corrected_samples_per_s in (None, pytest.approx(600))


def test_workers_that_take_turns_are_modelled_as_that() -> None:
    """Fetch 1,000 and prep 1,200 in turns are 545. Reads of half the latency: 750."""
    doc = build_run(
        rates={"storage_raw": 9000, "fetch": 1000, "prep": 1200, "loader": None},
        measured=545,
        au=0.27,
        dataset={"shards": 60_000},
        workload={"reader": {"concurrency": 1}},
    )
    found = what_if([(doc, {})], Change(latency=Quantity(0.5, relative=True)))
    rate = found.what_if.metrics["samples_per_s"].median
    assert rate == pytest.approx(1 / (1 / 2000 + 1 / 1200), rel=0.05)


def test_saves_do_not_look_like_workers_that_take_turns() -> None:
    """4,000 samples/s between saves, as storage delivers them, are 2,800 with saves for 30 % of the
    time. One after the other, reads and preparation would be 2,807. Without the storage the limit
    is 10,000, so 2,800 become 1 / (1 / 10,000 + 0.3 / 2,800).
    """
    part = {"wall_s": 60.0, "busy_s": 8.4, "fill_s": 0.0, "fetch_s": 33.6, "saves_s": 18.0}
    doc = build_run(
        accelerators=20,
        measured=2800.0,
        au=0.2,
        rates={"storage_raw": 4000.0, "fetch": 4000.0, "prep": 10_000.0, "loader": 160_000.0},
        host={"effective_cores": 64.0, "cores": 64, "affinity_cores": 64},
        repetition={"ranks": [{"rank": rank, "prep_s": 0.0} | part for rank in range(20)]},
    )
    found = verdict_of(doc)
    assert found.bottleneck == "storage"
    gain = 1 / (1 / 10_000 + 0.3 / 2800) / 2800
    assert found.advice[0].predicted_gain == pytest.approx(gain)


def test_preparation_that_was_not_measured_alone_but_binds_by_test_gets_advice() -> None:
    """20 ms a sample are 100 samples/s of 2 workers: what the run had, by no ceiling."""
    doc = build_run(
        accelerators=1,
        rates={"prep": None},
        measured=93.0,
        au=0.093,
        workload={"reader": {"prep_time": 0.02, "decode": True}},
        ablations=without(prep=10.0),
    )
    [advice] = doc.job.verdict.advice
    assert advice.settings == ["loader.workers=22"]
    assert advice.predicted_gain == pytest.approx(10)
