"""``iobench size`` against hand arithmetic: MLPerf's workloads have published appetites, the rest
is division.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from iobench.ask.capacity.margin import Margin
from iobench.ask.capacity.measured import SizedJob, measured_storage
from iobench.ask.capacity.requirement import Demand, requirement
from iobench.base.errors import UsageError
from iobench.data.dataset import layout_of
from iobench.judge.figures.curve import conclude_curve
from iobench.judge.rebuild import conclude
from iobench.record.host import StorageFacts
from iobench.record.training import FindMax
from iobench.record.verdict import Estimate, RunCurve
from iobench.report.render_text import render_text
from iobench.report.size import sections
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.instances import Instance
from iobench.settings.workload import Workload, load_workload
from tests.curves import curve, point
from tests.unit.conftest import build_run
from tests.unit.test_fed_agrees import waiting

FACTOR = 1.04
WHOLE_BLOCKS = {"spec": {"sample_size": {"mean": 24 * 4096}}}
"""Files of which no more is read than they have."""


@pytest.fixture(autouse=True)
def _known_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is simulated in test_margin.py, and for whole jobs in the snapshots of ``size``."""
    known: dict[str, Any] = {"factor": FACTOR, "filling": 1.01, "highest": 1.0, "spread": 0.1}
    job = {"steps": 500, "ranks": 8, "queue": 8, "barrier": True}
    monkeypatch.setattr(
        "iobench.ask.capacity.requirement.margin", lambda *given: Margin(**known, **job)
    )


def size(name: str, demand: Demand, run: Any = None, overrides: tuple[str, ...] = ()) -> Any:
    workload = load_workload(name, overrides)
    return requirement(workload, load_dataset_spec(workload.dataset), demand, run)


def test_unet3d_on_64_b200() -> None:
    """7 samples of 146.6 MB in 0.162 s are 6.33 GB/s (MLPerf Storage v3.0); 64 of them at 90 % are
    365 GB/s.
    """
    need = size("unet3d-b200", Demand(accelerators=64, hosts=8, latency_s=0.005))
    assert need.demanded_read_bytes_per_s == pytest.approx(64 * 6.33e9, rel=0.01)
    assert need.read_bytes_per_s == pytest.approx(0.9 * need.demanded_read_bytes_per_s, rel=1e-3)
    assert need.reads_per_s == pytest.approx(need.samples_per_s * 35)  # 146.6 MB in blocks of 4 MiB
    assert need.opens_per_s == pytest.approx(need.samples_per_s)  # a file each
    assert need.buy_bytes_per_s == pytest.approx(FACTOR * need.read_bytes_per_s)
    assert need.reads_in_flight == pytest.approx(need.buy_reads_per_s * 0.005, abs=1)
    assert need.network_bits_per_s_per_host == pytest.approx(
        need.buy_bytes_per_s
    )  # x 8 bits / 8 hosts


def test_the_cache_is_worth_less_than_its_size_when_reshuffled() -> None:
    """Half of the data: 15.3 % of the reads from a page cache, 50 % from a pinned one."""
    whole = size("resnet50-h100", Demand(accelerators=1)).dataset_bytes
    need = size("resnet50-h100", Demand(accelerators=1, cache_bytes=round(whole / 2)))
    assert need.cache.page_cache_hit_rate == pytest.approx(0.153, abs=0.001)
    assert need.cache.page_cache_read_bytes_per_s == pytest.approx(
        need.buy_bytes_per_s * (1 - 0.1534), rel=1e-3
    )
    assert need.cache.pinned_read_bytes_per_s == pytest.approx(need.buy_bytes_per_s / 2, rel=1e-6)
    assert need.read_bytes_per_s == pytest.approx(
        0.9 * need.demanded_read_bytes_per_s, rel=1e-3
    )  # the first epoch finds nothing cached
    half = need.cache_to_halve_bytes_per_host / whole
    assert half + (1 - half) * math.log(1 - half) == pytest.approx(0.5, abs=1e-4)


def test_what_a_measured_storage_would_do() -> None:
    """The run's reader gets 4,000 samples/s of 100 kB: 400 MB/s. One H100 at 90 % draws 184 MB/s in
    resnet50.
    """
    each = 0.9 * 400 / 0.224 * 114_660
    one = size("resnet50-h100", Demand(accelerators=2), build_run(dataset=WHOLE_BLOCKS))
    assert one.measured.read_bytes_per_s == pytest.approx(400e6)
    assert one.measured.accelerators_fed == int(400e6 / each) == 2
    assert one.measured.missing_bytes_per_s == 0
    assert one.cores == pytest.approx(
        1.5 * 2 * each / 1e9, rel=1e-3
    )  # three stages of 0.5 CPU s/GB
    many = size("resnet50-h100", Demand(accelerators=16, hosts=4), build_run(dataset=WHOLE_BLOCKS))
    assert many.measured.accelerators_fed == 2
    assert many.measured.accelerators_fed_local == 8
    assert many.measured.missing_bytes_per_s == pytest.approx(16 * each * FACTOR - 400e6, rel=1e-3)


def test_a_storage_that_several_hosts_measured_is_not_that_of_one() -> None:
    """Two hosts got 800 MB/s together, so that four with such drives of their own get 400 each."""
    doc = build_run(dataset=WHOLE_BLOCKS, rates={"fetch": 8000.0, "storage_raw": 9000.0})
    two = doc.model_copy(update={"hosts": doc.hosts * 2})
    need = size("resnet50-h100", Demand(accelerators=16, hosts=4), two)
    assert (need.measured.accelerators_fed, need.measured.accelerators_fed_local) == (4, 8)
    assert "2 hosts together" in render_text(sections(need), width=100)


def test_what_a_storage_feeds_is_not_said_of_it_alone_where_no_rate_is_enough() -> None:
    need = size("resnet50-h100", Demand(accelerators=1), build_run())
    why = {**need.not_measured, "buy_bytes_per_s": "no storage is fast enough"}
    none = replace(need, buy_bytes_per_s=None, not_measured=why)
    for found, alone in ((need, True), (none, False)):
        [fed] = [each for each in sections(found)[0].gauges if each.label == "would feed"]
        assert (fed.note.endswith(" alone")) is alone


def test_latency_comes_from_the_best_evidence() -> None:
    demand = Demand(accelerators=1)
    doc = build_run(dataset={"shards": 60_000})
    derived = size("resnet50-h100", demand, doc)
    assert derived.latency_s == pytest.approx(
        2 * 2 * 4 / 4000
    )  # 2 ranks x 2 workers x 4 in flight over 4,000 reads/s
    assert "Little" in derived.latency_from
    stated = size(
        "resnet50-h100", demand, doc.model_copy(update={"storage": StorageFacts(latency_s=0.02)})
    )
    assert stated.latency_s == 0.02
    assert size("resnet50-h100", Demand(accelerators=1, latency_s=0.5), doc).latency_s == 0.5


@pytest.mark.parametrize(("most", "latency_s"), [(200.0, 0.00014), (1e5, 0.00513)])
def test_the_time_that_a_full_storage_takes_for_a_read_is_not_its_latency(
    most: float, latency_s: float
) -> None:
    """One read at a time takes 5.14 ms. A link of 200 reads/s is busy with it for 5 ms of these."""
    points = [
        point(1, 170, latency_p50_s=0.00514, latency_p99_s=0.0062),
        *(point(2**number, most) for number in range(1, 5)),
    ]
    doc = build_run().with_job(curve=RunCurve(curve=conclude_curve(curve(points)), in_flight=8))
    need = size("resnet50-h100", Demand(accelerators=1), doc)
    assert need.latency_s == pytest.approx(latency_s)
    assert need.latency_p99_s == pytest.approx(0.0062 - 1 / most, abs=1e-9)
    assert need.reads_in_flight is not None


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ({"residency": 0.5}, "INVALID (cache.cold-residency)"),
        ({"workload": {"cache": "warm"}, "residency": 1.0}, "'warm'"),
        ({"rates": {"prep": 600}, "measured": 590, "au": 0.3}, "prep"),
    ],
)
def test_figures_that_may_not_carry_over_say_so(run: dict[str, Any], says: str) -> None:
    notes = size("unet3d-b200", Demand(accelerators=1), build_run(**run)).measured.notes
    assert [note for note in notes if "another size" in note or "content" in note] == [*notes[:2]]
    assert says in notes[2]


def test_a_run_without_ceilings_is_refused() -> None:
    nothing = dict.fromkeys(("storage_raw", "fetch", "prep", "loader"))
    with pytest.raises(UsageError, match="--calibration"):
        size("demo", Demand(accelerators=1), build_run(rates=nothing))


def test_only_the_columns_that_are_read_are_demanded() -> None:
    """MLPerf Storage's DLRM on a B200 reads 40 of 200 columns, 160 of 761 bytes: 5.24 GB/s, not the
    24.9 GB/s of whole rows.
    """
    from iobench.runner.plan_figures import describe_plan

    workload = load_workload("dlrm-b200")
    found = requirement(workload, load_dataset_spec("dlrm"), Demand(accelerators=1))
    assert found.demanded_read_bytes_per_s == pytest.approx(5.24e9, rel=0.001)
    plan = describe_plan(workload, None, accelerators=1, repetitions=1)
    assert plan.demanded_bytes_per_s == pytest.approx(5.24e9, rel=0.001)
    assert plan.demanded_samples_per_s == pytest.approx(found.demanded_samples_per_s)
    whole = load_workload("dlrm-b200", ["reader.columns=null"])
    plan = describe_plan(whole, None, accelerators=1, repetitions=1)
    assert plan.demanded_bytes_per_s == pytest.approx(24.9e9, rel=0.002)


@pytest.mark.parametrize("override", ["reader.shuffle=true", "reader.shuffle=false"])
def test_a_page_cache_serves_in_a_plan_what_it_serves_in_size(
    override: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of the columns that are read, which are a fifth of the rows."""
    from iobench.runner import plan_figures

    workload = load_workload("dlrm-b200", [override])
    spec = load_dataset_spec(workload.dataset)
    memory = spec.samples * 160 // 3
    monkeypatch.setattr(plan_figures, "total_bytes", lambda: memory)
    plan = plan_figures.describe_plan(workload, None, accelerators=1, repetitions=1)
    cache = requirement(workload, spec, Demand(accelerators=1, cache_bytes=memory)).cache
    assert plan.expected_cache_hit_rate == pytest.approx(cache.page_cache_hit_rate, rel=1e-3)


# Read amplification


def layout_size(name: str, demand: Demand, overrides: tuple[str, ...] = ()) -> Any:
    workload = load_workload(name, overrides)
    spec = load_dataset_spec(workload.dataset)
    return requirement(workload, spec, demand, layout=layout_of(spec))


def test_a_random_row_of_parquet_costs_its_row_group() -> None:
    """FLUX: 7 rows of 2,164,832 bytes fill a row group of 16 MiB; 8 accelerators that read rows in
    order are fed by 0.55 GB/s, in random order by 7 times that.
    """
    order = layout_size("flux-b200", Demand(accelerators=8))
    assert order.read_bytes_per_s == pytest.approx(0.554e9, rel=0.001)
    assert order.block_samples == 7
    random = layout_size("flux-b200", Demand(accelerators=8), ("reader.access=random",))
    assert random.read_bytes_per_s == pytest.approx(7 * order.read_bytes_per_s, rel=0.001)
    assert random.read_amplification == pytest.approx(7, rel=0.001)
    assert random.demanded_read_bytes_per_s == order.demanded_read_bytes_per_s
    # 15 MB in blocks of 4 MiB
    assert random.reads_per_s == pytest.approx(random.samples_per_s * 4, rel=0.001)


def test_small_random_samples_cost_whole_blocks() -> None:
    """4,096 tokens of 2 bytes and a bit begin anywhere: 8 kB cost one block of 4 KiB more."""
    need = layout_size("llm-pretrain", Demand(accelerators=8))
    assert need.access == "random"
    assert need.read_amplification == pytest.approx((need.sample_bytes + 4095) / need.sample_bytes)
    exact = layout_size("llm-pretrain", Demand(accelerators=8, alignment=1))
    assert exact.read_amplification == 1


# What a run measured


def test_without_a_new_order_a_page_cache_holds_all_or_nothing() -> None:
    whole = size("resnet50-h100", Demand(accelerators=4)).dataset_bytes
    fixed = ("reader.shuffle=false",)
    for share, hits in ((0.9, 0.0), (1.01, 1.0)):
        demand = Demand(accelerators=4, cache_bytes=round(share * whole))
        assert size("resnet50-h100", demand, None, fixed).cache.page_cache_hit_rate == hits
    # Each of 4 hosts reads its own quarter in each epoch.
    demand = Demand(accelerators=4, hosts=4, cache_bytes=round(0.26 * whole))
    need = size("resnet50-h100", demand, None, fixed)
    assert need.cache.page_cache_hit_rate == 1
    assert need.cache_to_halve_bytes_per_host == pytest.approx(whole / 4)


def test_a_measured_storage_counts_by_its_low_end() -> None:
    """[3,000, 4,400] samples/s around 4,000: 300 MB/s are what the job can rely on."""
    doc = build_run(dataset=WHOLE_BLOCKS)
    fetch = doc.job.ceilings["fetch"].model_copy(
        update={"windows": Estimate(value=4000.0, low=3000.0, high=4400.0, n=5)}
    )
    doc = doc.with_job(ceilings=doc.job.ceilings | {"fetch": fetch})
    one = size("resnet50-h100", Demand(accelerators=2), doc)
    assert one.measured.read_bytes_per_s == pytest.approx(400e6)
    assert one.measured.counted_bytes_per_s == pytest.approx(300e6)
    assert one.measured.with_margin
    assert one.measured.accelerators_fed == 1
    assert one.measured.missing_bytes_per_s == pytest.approx(one.buy_bytes_per_s - 300e6, rel=1e-3)


def test_what_a_run_received_overrides_a_ceiling_below_it() -> None:
    """The fetch ceiling was measured in a bad minute: 150 MB/s. The accelerators received 190."""
    doc = build_run(rates={"fetch": 1500.0, "storage_raw": 1600.0})
    found = size("resnet50-h100", Demand(accelerators=8), doc).measured
    assert found.counted_bytes_per_s == pytest.approx(190e6, rel=0.01)
    assert not found.with_margin
    warm = build_run(
        rates={"fetch": 1500.0, "storage_raw": 1600.0}, workload={"cache": "warm"}, residency=1.0
    )
    assert size("resnet50-h100", Demand(accelerators=8), warm).measured.read_bytes_per_s == 150e6


def test_a_storage_feeds_the_job_that_it_fed() -> None:
    """Files that end within a block, whose rest the reads of the run do not count."""
    rates = {"storage_raw": 1900, "fetch": 1830}
    doc = build_run(rates=rates, measured=1830, au=0.915, repetition={"read_amplification": 1.0})
    workload = Workload.model_validate(doc.job.workload.model_dump())
    need = requirement(workload, doc.job.dataset.spec, Demand(accelerators=2), doc)
    assert need.read_amplification == pytest.approx(1.024)
    assert need.measured.accelerators_fed == doc.job.verdict.fed.accelerators == 2


def test_a_search_needs_no_margin() -> None:
    """It has counted what whole jobs received, with their waits for others and their filling."""
    search = FindMax(required_accelerator_utilization=0.9, accelerators=3, low=2, high=3, points=[])
    doc = build_run(dataset=WHOLE_BLOCKS).with_job(find_max=search)
    doc = conclude(doc)
    found = size("resnet50-h100", Demand(accelerators=16), doc)
    assert not found.measured.with_margin
    assert found.measured.read_bytes_per_s == pytest.approx(3 * 0.9 * 1000 * 1e5)
    assert found.measured.counted_bytes_per_s == pytest.approx(2 * 0.9 * 1000 * 1e5)
    assert found.measured.needed_bytes_per_s == pytest.approx(found.read_bytes_per_s, rel=1e-3)


def test_a_search_whose_interval_begins_at_none_can_be_relied_on_for_none() -> None:
    search = FindMax(required_accelerator_utilization=0.9, accelerators=1, low=0, high=1, points=[])
    doc = conclude(build_run().with_job(find_max=search))
    found = size("resnet50-h100", Demand(accelerators=1), doc).measured
    assert (found.counted_bytes_per_s, found.accelerators_fed) == (0.0, 0)


def test_a_storage_feeds_as_many_as_a_search_found() -> None:
    """The specification states samples that are 0.1 % larger than those of the run."""
    search = FindMax(required_accelerator_utilization=0.9, accelerators=2, low=2, high=3, points=[])
    job = SizedJob(
        spec=load_dataset_spec("resnet50"),
        bytes_per_sample=100_100,
        samples_per_s_per_accelerator=1000.0,
        accelerators=2,
        hosts=1,
        required=0.9,
    )
    found = measured_storage(conclude(build_run().with_job(find_max=search)), job)
    assert (found.accelerators_fed, found.missing_bytes_per_s) == (2, 0.0)


@pytest.mark.parametrize(
    ("read_bytes", "said"), [(4e6, "may deliver more"), (1e4, "may deliver less"), (1e5, "")]
)
def test_a_curve_of_other_reads_than_the_jobs_is_no_limit(read_bytes: float, said: str) -> None:
    """Its reads have 100 kB."""
    job = SizedJob(
        spec=load_dataset_spec("resnet50"),
        bytes_per_sample=100_000,
        samples_per_s_per_accelerator=1000.0,
        accelerators=100,
        hosts=1,
        required=0.9,
        read_bytes=read_bytes,
    )
    found = measured_storage(waiting(), job)
    assert found.at_least == (said == "may deliver more")
    told = [note for note in found.notes if "may deliver" in note]
    assert len(told) == bool(said)
    assert all(said in note for note in told)


@pytest.mark.parametrize(
    ("sustained", "told"), [(10.0, "2 x as many hosts"), (6.0, "more hosts don't help")]
)
def test_more_hosts_do_not_share_the_gradients(sustained: float, told: str) -> None:
    """Each of 4 hosts gets 6.1 Gb/s of samples, and 4.9 of gradients, of many hosts 6.6."""
    instance = Instance(type="t", network_baseline_gbps=sustained)
    demand = Demand(accelerators=16, hosts=4, gradient_bytes=102_000_000, instance=instance)
    need, eight = (size("resnet50-h100", replace(demand, hosts=hosts)) for hosts in (4, 8))
    assert told in render_text(sections(need), width=200)
    assert (8 * eight.network.needed / 1e9 <= sustained) is (told == "2 x as many hosts")
