"""What-if: each model against hand arithmetic on the base run (2 accelerators of 1,000 samples/s of
100 kB; fetch 4,000, prep 6,000).
"""

from __future__ import annotations

from typing import Any

import pytest

from iobench.ask.capacity.ceilings import NETWORK, Change
from iobench.ask.capacity.sizing import READS, cache_of
from iobench.ask.capacity.whatif import Prediction, what_if
from iobench.base.errors import UsageError
from iobench.base.units import Quantity, format_percent
from iobench.judge.judged import judge
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord
from iobench.record.training import CeilingDetails
from iobench.report.glance import resting_on
from iobench.report.render_text import render_text
from iobench.report.whatif import sections
from tests.unit.conftest import build_run
from tests.unit.test_causes import curve, run_curve

TWICE = Quantity(2, relative=True)
WARM = {"workload": {"cache": "warm"}, "residency": 1.0, "rates": {"storage_raw": None}}


@pytest.fixture
def starved() -> Any:
    """Storage is the bottleneck: 600 of 2,000 samples/s, the device is spent. Reading costs 0.05
    CPU seconds per GB.
    """
    return cheap(
        build_run(
            rates={"storage_raw": 650, "fetch": 600},
            measured=580,
            au=0.29,
            dataset={"shards": 60_000},
        )
    )


def cheap(doc: Any, **details: Any) -> Any:
    """Fetching at 0.05 CPU s/GB: 8 cores read 160 GB/s; details for the raw ceiling."""
    fetch = doc.job.ceilings["fetch"].model_copy(update={"cpu_s_per_gb": 0.05})
    raw = doc.job.ceilings["storage_raw"].model_copy(update={"details": CeilingDetails(**details)})
    return doc.with_job(ceilings=doc.job.ceilings | {"fetch": fetch, "storage_raw": raw})


def rates(found: Prediction) -> dict[str, float | None]:
    evidence = judge(found.what_if).evidence
    return {
        name: getattr(evidence, name)
        for name in ("raw", "fetch", "prep", "loader", "accelerator", "predicted")
    }


def test_twice_the_bandwidth_of_a_spent_device(starved: Any) -> None:
    found = what_if([(starved, {})], Change(storage_bandwidth=TWICE))
    moved = rates(found)
    assert moved["fetch"] == pytest.approx(1200)
    assert moved["raw"] == pytest.approx(1300)
    assert (moved["prep"], moved["loader"], moved["accelerator"]) == (6000, 8000, 2000)
    verdict = found.what_if.job.verdict
    assert verdict.bottleneck == "storage"
    assert verdict.headroom == pytest.approx(0.6)
    assert verdict.accelerators_fed == 1
    assert found.model_error == pytest.approx(600 / 580 - 1)
    assert found.corrected_samples_per_s == pytest.approx(1200 * 580 / 600)


def test_faster_storage_never_feeds_fewer_than_the_recorded_one() -> None:
    """The storage delivers 9,000 samples/s, and the job's own reader gets 3,000 of them."""
    rates = {"storage_raw": 9000, "fetch": 3000, "prep": 600}
    doc = cheap(build_run(rates=rates, measured=580, au=0.29), read_bytes_per_sample=1e5)
    doc = conclude(doc.with_job(curve=run_curve(curve(4000, 8000, 9000, 9000, 9000))))
    found = what_if([(doc, {})], Change(storage_bandwidth=TWICE))
    assert doc.job.verdict.accelerators_fed == 10
    assert found.what_if.job.verdict.accelerators_fed == 20


def test_saves_take_as_long_as_they_did() -> None:
    """Half of the time goes into saves: 1,000 samples/s with them, and 2,000 between them."""
    ranks = [{"rank": 0, "wall_s": 20.0, "busy_s": 10.0, "fill_s": 0.0, "saves_s": 10.0}]
    doc = cheap(build_run(measured=1000, au=1.0, repetition={"ranks": ranks}))
    assert doc.job.verdict.bottleneck == "checkpoint"
    for change, rate, between, stage in (
        (Change(storage_bandwidth=TWICE), 1000, 1.0, "checkpoint"),
        (Change(step_time=Quantity(0.5, relative=True)), 4000 / 3, 1.0, "checkpoint"),
        (Change(accelerators=TWICE), 2000, 1.0, "checkpoint"),
        # 400 samples/s by the storage are 2.5 ms each, and the saves 0.5 ms.
        (Change(storage_bandwidth=Quantity(0.1, relative=True)), 1000 / 3, 0.2, "storage"),
    ):
        found = what_if([(doc, {})], change)
        metrics, verdict = found.what_if.metrics, found.what_if.job.verdict
        assert found.model_error == pytest.approx(0)
        assert metrics["samples_per_s"].median == pytest.approx(rate)
        assert metrics["accelerator_utilization_sustained"].median == pytest.approx(between)
        assert verdict.bottleneck == stage
        assert verdict.starved == (between < 0.9)


def test_more_reads_get_no_more_than_the_curve_had_with_as_many() -> None:
    """16 reads in flight get 80 samples/s, 64 and 128 get 220: no plateau, yet no 640 of 128."""
    doc = cheap(build_run(rates={"storage_raw": 220, "fetch": 80}, measured=80, au=0.04))
    rates = (5, 10, 20, 40, 80, 160, 220, 220)
    doc = conclude(doc.with_job(curve=run_curve(curve(*rates))))
    for reads, rate in ((8, 160), (32, 220)):
        found = what_if([(doc, {})], Change(concurrency=Quantity(reads)))
        assert judge(found.what_if).evidence.fetch == pytest.approx(rate)


SHARDS = {"dataset": {"shards": 60_000}}
RUNS: dict[str, dict[str, Any]] = {
    "spent": {"rates": {"storage_raw": 650, "fetch": 600}, "measured": 580, "au": 0.29},
    # 4 workers with 4 reads in flight take 16 / 600 s a read.
    "waits": {"rates": {"storage_raw": 1500, "fetch": 600}, "measured": 590, "au": 0.3},
    # A read takes 16 / 800 = 20 ms, of which the storage states 15.
    "stated": {"rates": {"storage_raw": 9000, "fetch": 800}, "storage": {"latency_s": 0.015}},
}


@pytest.mark.parametrize(
    ("run", "change", "fetch"),
    [
        # 130 MB/s raw instead of 65: the reader keeps its share, 600 of 650.
        ("spent", Change(storage_bandwidth=Quantity(130e6)), 1200),
        # 16 reads in flight of 20 ms are 800 samples/s, whatever the bandwidth.
        ("spent", Change(storage_bandwidth=Quantity(650e6), latency=Quantity(0.02)), 800),
        # A network of 400 samples/s, of which a cache of half of the data leaves every second one.
        ("spent", Change(network_bytes_per_s=40e6), 400),
        ("spent", Change(network_bytes_per_s=40e9), 600),
        ("spent", Change(network_bytes_per_s=40e6, cache_bytes=3_000_000_000, pinned=True), 800),
        # Bandwidth does not help a reader that waits for latency; more reads do, up to the device.
        ("waits", Change(storage_bandwidth=TWICE), 600),
        ("waits", Change(concurrency=TWICE), 1200),
        ("waits", Change(concurrency=Quantity(32)), 1500),
        ("waits", Change(workers=TWICE), 1200),
        ("waits", Change(latency=Quantity(0.5, relative=True)), 1200),
        ("waits", Change(latency=Quantity(0.016)), 1000),
        ("waits", Change(storage_bandwidth=Quantity(40e6)), 400),
        # Of a read's time only the latency changes: 5 ms are left.
        ("stated", Change(latency=Quantity(0.0)), 16 / 0.005),
    ],
)
def test_what_the_reader_would_get(run: str, change: Change, fetch: float) -> None:
    found = what_if([(cheap(build_run(**RUNS[run], **SHARDS)), {})], change)
    assert rates(found)["fetch"] == pytest.approx(fetch, rel=1e-3)
    if change.network_bytes_per_s == 40e6:
        assert any(f"limited by {NETWORK}" in basis for basis in found.bases)
    if change.latency == Quantity(0.02):
        assert any(f"limited by {READS}" in basis for basis in found.bases)


def test_each_host_has_its_network_for_what_is_read_in_vain_too() -> None:
    """40 MB/s in each of two hosts, and of 100 kB samples twice as many bytes are read."""
    for read, fetch in ((1.0, 600), (2.0, 400)):
        doc = build_run(**RUNS["spent"], **SHARDS, repetition={"read_amplification": read})
        two = cheap(doc).model_copy(update={"hosts": doc.hosts * 2})
        found = what_if([(two, {})], Change(network_bytes_per_s=40e6))
        assert rates(found)["fetch"] == pytest.approx(fetch, rel=1e-3)


@pytest.mark.parametrize(("seconds", "times"), [(0.02, 800 / 600), (0.0, 4), (0.1, 1)])
def test_twice_the_bandwidth_does_not_shorten_the_latency(seconds: float, times: float) -> None:
    """The device is spent, and a read alone waits for so long: 16 of 20 ms are 800 samples/s.

    Where one alone took longer than each of 16, its time is none of theirs.
    """
    doc = cheap(build_run(**RUNS["spent"], **SHARDS))
    found = run_curve(curve(*[600] * 5))
    first = found.curve.points[0].model_copy(update={"latency_p50_s": seconds + 1 / 600})
    found.curve.points[0] = first
    doc = conclude(doc.with_job(curve=found))
    found = what_if([(doc, {})], Change(storage_bandwidth=Quantity(4, relative=True)))
    assert rates(found)["fetch"] == pytest.approx(times * 600, rel=1e-3)


@pytest.mark.parametrize("seen", [[600, 1200, 2400], [1500] * 5])
def test_more_reads_than_the_curve_had_bring_nothing_that_is_known(seen: list[float]) -> None:
    """Where the rate still grew with the last ones, which is told, and where it did not."""
    doc = cheap(build_run(rates={"storage_raw": max(seen), "fetch": 600}, **SHARDS))
    doc = conclude(doc.with_job(curve=run_curve(curve(*seen))))
    found = what_if([(doc, {})], Change(concurrency=Quantity(32)))
    assert rates(found)["fetch"] == pytest.approx(600)
    assert any("not known, and counts" in basis for basis in found.bases) == (len(seen) < 4)


@pytest.mark.parametrize("share", [0.6, 0.82, 0.94])
@pytest.mark.parametrize("most", [1000, 1100])
def test_more_reads_bring_what_the_advice_promises(share: float, most: float) -> None:
    """The run's 16 reads get a share of what 32 get, which is no more than the reader's raw rate
    allows; ``most``: what 64 get.
    """
    here = 1000 * share
    asked = {"storage_raw": 1000, "fetch": here}
    doc = cheap(build_run(rates=asked, measured=here, au=here / 2000, **SHARDS))
    rates = [here / 16, here / 8, here / 4, here / 2, here, 1000, most, most, most]
    doc = conclude(doc.with_job(curve=run_curve(curve(*rates))))
    advice = doc.job.verdict.advice[0]
    (setting,) = advice.settings
    reads = Quantity(float(setting.removeprefix("reader.concurrency=")))
    found = what_if([(doc, {})], Change(concurrency=reads))
    assert advice.predicted_gain > 1.05
    gain = found.what_if.metrics["samples_per_s"].median / here
    assert gain == pytest.approx(advice.predicted_gain)


def test_the_clients_cpu_bounds_faster_storage() -> None:
    """0.5 CPU s/GB on 8 cores are 16 GB/s, or 160,000 samples/s."""
    doc = build_run(rates={"storage_raw": 4100}, dataset={"shards": 60_000})
    found = what_if([(doc, {})], Change(storage_bandwidth=Quantity(1000, relative=True)))
    assert rates(found)["fetch"] == pytest.approx(160_000)


def test_a_cache_of_some_columns_holds_more_of_them() -> None:
    """Of 100 kB as stored 10 are read (the fetch calibration saw it): 0.6 GB of the 6 hold all that
    is read.
    """
    doc = build_run(
        rates={"storage_raw": 700, "fetch": 600},
        dataset={"shards": 60_000},
        workload={"reader": {"columns": 4}},
    )
    doc.job.ceilings["fetch"] = doc.job.ceilings["fetch"].model_copy(
        update={"bytes_per_s": 600 * 1e4, "cpu_s_per_gb": None}
    )
    half = rates(what_if([(doc, {})], Change(cache_bytes=300_000_000, pinned=True)))["fetch"]
    assert half == pytest.approx(
        1 / (0.5 / 8000 + 0.5 / 600), rel=1e-3
    )  # half from memory, as fast as the loader


@pytest.mark.parametrize("pinned", [False, True])
def test_the_caches_of_two_hosts_serve_what_size_says(pinned: bool) -> None:
    """Half of the data in each of them: pinned they hold all of it."""
    doc = cheap(build_run(rates={"storage_raw": 650, "fetch": 600}, **SHARDS))
    doc = doc.model_copy(update={"hosts": doc.hosts * 2})
    change = Change(cache_bytes=3_000_000_000, pinned=pinned)
    found = what_if([(doc, {})], change)
    size = cache_of(3 * 10**9, touched=6e9, hosts=2, shuffle=True, read_bytes_per_s=1.0)
    hits = size.pinned_hit_rate if pinned else size.page_cache_hit_rate
    assert any(f"serves {format_percent(hits)} of the reads" in basis for basis in found.bases)
    assert "in each of 2 hosts" in found.changes[0]
    assert found.what_if.job.workload.cache == ("warm" if pinned else "cold")


def test_no_more_reads_are_advised_than_the_other_stages_can_use() -> None:
    """4 workers with 4 reads in flight get 600 of 2,000 samples/s from a storage of 60,000."""
    doc = cheap(build_run(rates={"storage_raw": 60_000, "fetch": 600}, measured=590, **SHARDS))
    found = what_if([(doc, {})], Change(concurrency=Quantity(4)))
    settings = [each.settings for each in found.what_if.job.verdict.advice]
    assert ["reader.concurrency=20"] in settings  # 4 x 2,000 / 600 x 1.5


@pytest.mark.parametrize(
    ("workers", "stage", "rate"),
    [
        (3, "prep", 1500),
        (16, "prep", 2000),
        (0, "prep", 500),  # each of the two ranks prepares by itself
        (1, "loader", 4000),
        (8, "loader", 8000),
    ],
)
def test_workers_prepare_in_proportion_up_to_the_cores(
    workers: int, stage: str, rate: float
) -> None:
    """4 workers prepare 1,000 samples/s, 8 cores at most 2,000."""
    doc = build_run(rates={"prep": 1000}, measured=980, au=0.49)
    assert rates(what_if([(doc, {})], Change(workers=Quantity(workers))))[stage] == pytest.approx(
        rate
    )


SLEEPING = {"rates": {"prep": 100}, "measured": 98, "au": 0.05}
"""4 workers take 40 ms for a sample."""


@pytest.mark.parametrize(
    "waiting",
    [
        {"workload": {"reader": {"prep_time": 0.038}}},  # they compute for 2 ms of it
        {
            "loader": {"kind": "user", "user": {"fetch_wall_s": 10, "fetch_cpu_s": 0.5}},
            "workers": 2,
        },
    ],
    ids=["prep_time", "a loader of the user's"],
)
def test_workers_that_wait_prepare_in_proportion_beyond_the_cores(waiting: dict[str, Any]) -> None:
    """8 cores have room for 160 of them. That is also what the run itself advises."""
    doc = build_run(**SLEEPING, **waiting)
    for workers, rate in ((16, 800), (32, 1600), (100, 4000)):
        found = what_if([(doc, {})], Change(workers=Quantity(workers)))
        assert rates(found)["prep"] == pytest.approx(rate)
        assert any("for 95.0 % of its time" in basis for basis in found.bases)
    advice = doc.job.verdict.advice[0]
    assert (advice.id, advice.predicted_gain) == ("workers", pytest.approx(2000 / 98))
    assert build_run(**SLEEPING).job.verdict.advice[0].id == "workers"  # cores are idle
    busy = build_run(**SLEEPING, host={"effective_cores": 2.0})
    assert busy.job.verdict.advice[0].id == "cores"


@pytest.mark.parametrize(("slept", "workers"), [(0.038, 41), (0.04, 41), (0.01, None)])
def test_as_many_workers_that_sleep_are_advised_as_are_of_use(
    slept: float, workers: int | None
) -> None:
    """Each computes for 2 ms of 40, or hardly at all; or for 30, and two cores are busy."""
    workload = {"reader": {"prep_time": slept}}
    doc = build_run(
        **SLEEPING, host={"effective_cores": 8.0 if workers else 2.0}, workload=workload
    )
    advice = doc.job.verdict.advice[0]
    assert advice.settings == ([f"loader.workers={workers}"] if workers else [])
    assert advice.id == ("workers" if workers else "cores")


def test_other_ranks_on_the_cores_of_a_cpu_are_not_predicted() -> None:
    """Two of them would have half of the cores each; two GPUs have their own."""

    def trained(device: str | None) -> TrainingRecord:
        model = {"kind": "model", "model": "resnet50", "device": device}
        return build_run(trained={"model": "resnet50"}, workload={"accelerator": model})

    more = Change(accelerators=TWICE)
    with pytest.raises(UsageError, match="share its cores"):
        what_if([(trained(None), {})], more)
    what_if([(trained("cuda"), {})], more)


@pytest.mark.parametrize("model", [None, "resnet50"])
def test_the_steps_of_a_training_are_those_beside_the_loader(model: str | None) -> None:
    """Alone they take a shorter time, which the report of the run calls their ceiling."""
    doc = build_run(trained=model and {"model": model})
    told = render_text(sections(what_if([(doc, {})], Change(workers=TWICE))))
    assert ("accelerators, beside the loader" in told) == bool(model)


def test_what_a_search_found_overrides_the_models() -> None:
    """By the ceilings four accelerators are fed; the search found three, and 4 starved at 0.78."""
    points = [
        {
            "accelerators": n,
            "accelerator_utilization": au,
            "accelerator_utilization_sustained": au,
            "samples_per_s": rate,
            "read_bytes_per_s": rate * 1e5,
            "passed": au >= 0.9,
        }
        for n, au, rate in ((2, 0.95, 1900.0), (3, 0.92, 2760.0), (4, 0.78, 3120.0))
    ]
    search = {"required_accelerator_utilization": 0.9, "accelerators": 3, "points": points}
    doc = build_run(find_max=search)
    for ranks, rate in ((4, 3120), (6, 3120)):
        found = what_if([(doc, {})], Change(accelerators=Quantity(ranks)))
        verdict = found.what_if.job.verdict
        assert verdict.predicted_samples_per_s == rate
        assert (verdict.starved, verdict.accelerators_fed) == (True, 3)
        assert found.corrected_samples_per_s is None
    modelled = what_if([(doc, {})], Change(step_time=TWICE)).what_if.job
    assert modelled.find_max is None


def test_what_a_trial_of_the_advice_found_overrides_the_models() -> None:
    """By the models twice the reads bring 1,200 samples/s; tried, they brought 1.5 x 590."""
    one = {"samples_per_s": 900.0, "base_samples_per_s": 600.0, "seconds": 10.0}
    trial = {
        "change": "more reads",
        "settings": ["reader.concurrency=8"],
        "promised": {"value": 2.0, "n": 1},
        "rounds": [{"round": n, **one} for n in range(4)],
    }
    doc = cheap(build_run(**RUNS["waits"], confirmations=[trial]))
    found = what_if([(doc, {})], Change(concurrency=TWICE))
    assert found.what_if.metrics["samples_per_s"].median == pytest.approx(1.5 * 590)
    assert any("the trial of reader.concurrency=8 measured 885" in text for text in found.bases)
    for other in (Change(concurrency=Quantity(16)), Change(workers=TWICE)):
        assert not any("trial" in text for text in what_if([(doc, {})], other).bases)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({}, ""),
        ({"residency": 0.5}, "is INVALID (cache.cold-residency)"),
        ({"status": "failed"}, "failed"),
        ({"measured": None, "repetitions": 0}, "has no complete repetition (status ok)"),
    ],
)
def test_a_prediction_says_what_its_run_is_worth(run: dict[str, Any], said: str) -> None:
    doc = build_run(**run)
    first = resting_on([doc], sections(what_if([(doc, {})], Change(workers=TWICE))))[0]
    rest = [each for each in first.sentences if each.endswith("and the prediction rests on it.")]
    assert rest == ([f"Run run-1 {said}, and the prediction rests on it."] if said else [])


NO_CEILINGS = {"rates": dict.fromkeys(("storage_raw", "fetch", "prep", "loader"))}
NO_STEPS = {"workload": {"accelerator": {"kind": "null"}}}


@pytest.mark.parametrize(
    ("change", "run", "says"),
    [
        (Change(pinned=True), {}, "--storage-bandwidth"),
        (Change(storage_bandwidth=TWICE), NO_CEILINGS, "--calibration"),
        (Change(latency=TWICE), {"rates": {"fetch": None}}, "fetch"),
        (Change(concurrency=TWICE), {"rates": {"fetch": None}}, "fetch"),
        (Change(step_time=TWICE), NO_STEPS, "step time"),
        (Change(latency=TWICE), {"dataset": {"shards": 60_000}}, "--latency 2ms"),
        (Change(storage_bandwidth=TWICE), WARM, "the page cache was filled"),
        (Change(latency=Quantity(0.01)), WARM, "the page cache was filled"),
    ],
)
def test_what_can_not_be_predicted_is_refused(
    change: Change, run: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        what_if([(build_run(**run), {})], change)


@pytest.mark.parametrize(("hits", "shuffle"), [(0.153, True), (0.0, False)])
def test_a_page_cache_serves_nothing_without_a_new_order(
    starved: Any, hits: float, shuffle: bool
) -> None:
    """Half of the data fits: LRU evicts each sample just before it is read again."""
    reader = starved.job.workload.reader.model_copy(update={"shuffle": shuffle})
    doc = starved.with_job(workload=starved.job.workload.model_copy(update={"reader": reader}))
    found = what_if([(doc, {})], Change(cache_bytes=3_000_000_000))
    before = rates(what_if([(doc, {})], Change(workers=Quantity(2))))["fetch"]
    memory = 8 / (0.05 * 1e5 / 1e9)  # the samples/s of 8 cores, which read from the cache
    assert rates(found)["fetch"] == pytest.approx(
        1 / (hits / memory + (1 - hits) / before), rel=0.01
    )
    verdict = found.what_if.job.verdict
    assert verdict.bottleneck == "storage"  # it delivers what the cache does not hold
    assert "cache" not in verdict.sentence
    pinned = what_if([(doc, {})], Change(cache_bytes=3_000_000_000, pinned=True))
    assert rates(pinned)["fetch"] == pytest.approx(1 / (0.5 / memory + 0.5 / before), rel=0.01)
