"""``iobench size`` against hand arithmetic: MLPerf's workloads have published appetites, the rest
is division.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from iobench.ask.capacity.measured import SizedJob, measured_storage
from iobench.ask.capacity.requirement import Demand, requirement
from iobench.ask.capacity.sizing import Saves, ring_bytes
from iobench.base.errors import UsageError
from iobench.data.dataset import layout_of
from iobench.judge.rebuild import conclude
from iobench.record.host import StorageFacts
from iobench.record.training import CeilingDetails, FindMax
from iobench.record.verdict import Estimate
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.workload import load_workload
from tests.processes import document
from tests.unit.conftest import build_run


@pytest.fixture(autouse=True)
def _few_simulated_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The margin by itself is tested in test_margin.py."""
    monkeypatch.setattr("iobench.ask.capacity.margin._BATCHES", 500)


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
    # 0.9 needs a little more than 0.9 of the demand, and full speed would always do.
    assert 1 < need.buy_bytes_per_s / need.read_bytes_per_s < 1 / 0.9
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
    one = size("resnet50-h100", Demand(accelerators=2), build_run())
    assert one.measured.read_bytes_per_s == pytest.approx(400e6)
    assert one.measured.accelerators_fed == int(400e6 / each) == 2
    assert one.measured.missing_bytes_per_s == 0
    assert one.cores == pytest.approx(
        1.5 * 2 * each / 1e9, rel=1e-3
    )  # three stages of 0.5 CPU s/GB
    many = size("resnet50-h100", Demand(accelerators=16, hosts=4), build_run())
    assert many.measured.accelerators_fed == 2
    assert many.measured.accelerators_fed_local == 8
    margin = many.margin.factor
    assert many.measured.missing_bytes_per_s == pytest.approx(16 * each * margin - 400e6, rel=1e-3)


def test_latency_comes_from_the_best_evidence() -> None:
    demand = Demand(accelerators=1)
    doc = build_run(dataset={"shards": 60_000})
    derived = size("resnet50-h100", demand, doc)
    assert derived.latency_s == pytest.approx(
        2 * 2 * 4 / 4000
    )  # 2 ranks x 2 workers x 4 in flight over 4,000 reads/s
    assert "Little" in derived.latency_from
    raw = doc.job.ceilings["storage_raw"].model_copy(
        update={"details": CeilingDetails(latency_p50_s=0.003)}
    )
    fio = size(
        "resnet50-h100", demand, doc.with_job(ceilings=doc.job.ceilings | {"storage_raw": raw})
    )
    assert fio.latency_s == 0.003
    stated = size(
        "resnet50-h100", demand, doc.model_copy(update={"storage": StorageFacts(latency_s=0.02)})
    )
    assert stated.latency_s == 0.02
    assert size("resnet50-h100", Demand(accelerators=1, latency_s=0.5), doc).latency_s == 0.5


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


# Checkpoints, restores and the network


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


def test_reads_and_saves_at_the_same_time_and_a_restore() -> None:
    saves = Saves(
        checkpoint_bytes=105_000_000_000, budget_s=60, every_s=1800, restore_budget_s=0.25
    )
    need = size("unet3d-b200", Demand(accelerators=8, hosts=2, saves=saves))
    assert need.together_bytes_per_s == pytest.approx(need.buy_bytes_per_s + 1.75e9)
    assert need.restore_bytes_per_s == pytest.approx(420e9)
    assert need.peak_read_bytes_per_s == need.restore_bytes_per_s  # 8 of them take 51 GB/s
    assert need.network.needed == pytest.approx(210e9)
    assert need.saves.mean_write_bytes_per_s == pytest.approx(105e9 / 1800)
    every = Saves(checkpoint_bytes=10**9, restore_budget_s=10, restore_copies=8)
    need = size("unet3d-b200", Demand(accelerators=8, saves=every))
    assert need.restore_bytes_per_s == pytest.approx(8e8)
    assert need.write_bytes_per_s is None
    assert need.peak_read_bytes_per_s == pytest.approx(need.demanded_read_bytes_per_s, rel=1e-3)


def test_gradients_share_the_network() -> None:
    """ViT-B/16 in fp32 on 4 hosts: 346 MB of gradients, of which each host sends 519 MB in a step.
    At 5 Gb/s that alone takes 0.83 s.
    """
    parameters = 86_567_656
    assert ring_bytes(4 * parameters, 1) == 0
    demand = Demand(accelerators=32, hosts=4, gradient_bytes=4 * parameters)
    found = size("resnet50-h100", demand)
    assert found.network.gradients == pytest.approx(519.4e6 * 0.9 / 0.224, rel=1e-3)
    assert found.network.samples_in == pytest.approx(found.buy_bytes_per_s / 4)
    assert found.network.needed == found.network.samples_in + found.network.gradients
    assert size("resnet50-h100", Demand(accelerators=32, hosts=4)).network.gradients is None


def test_a_measured_storage_counts_by_its_low_end() -> None:
    """[3,000, 4,400] samples/s around 4,000: 300 MB/s are what the job can rely on."""
    doc = build_run()
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


def test_a_search_needs_no_margin() -> None:
    """It has counted what whole jobs received, with their waits for others and their filling."""
    search = FindMax(required_accelerator_utilization=0.9, accelerators=3, low=2, high=3, points=[])
    doc = build_run().with_job(find_max=search)
    doc = conclude(doc)
    found = size("resnet50-h100", Demand(accelerators=16), doc)
    assert not found.measured.with_margin
    assert found.measured.read_bytes_per_s == pytest.approx(3 * 0.9 * 1000 * 1e5)
    assert found.measured.counted_bytes_per_s == pytest.approx(2 * 0.9 * 1000 * 1e5)
    assert found.measured.needed_bytes_per_s == pytest.approx(found.read_bytes_per_s, rel=1e-3)


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


def test_what_no_storage_can_give() -> None:
    """100 % allows no wait at all; one worker with one read of a second in flight is too few."""
    for demand, overrides in (
        (Demand(accelerators=2, required=1.0), ()),
        (Demand(accelerators=2, latency_s=1.0), ("loader.workers=1", "reader.concurrency=1")),
    ):
        need = size("unet3d-b200", demand, None, overrides)
        assert need.buy_bytes_per_s is None
        assert need.not_measured["buy_bytes_per_s"]
        assert need.margin.highest < demand.required if demand.required else True


# Several workloads


JOBS = "unet3d-h100 resnet50-h100"


def test_what_two_workloads_need_is_added_up() -> None:
    """Each with its own number of accelerators and hosts, as if it was sized alone."""
    alone = [
        document("size unet3d-h100 --accelerators 16 --hosts 2"),
        document("size resnet50-h100 --accelerators 8"),
    ]
    both = document(f"size {JOBS} --accelerators 16,8 --hosts 2,1")
    for of_one, in_both in zip(alone, both["jobs"], strict=True):
        assert {**of_one, "instance": None} == {**in_both, "instance": None}
    assert both["together"]["accelerators"] == 24
    for key in (
        *("buy_bytes_per_s", "buy_reads_per_s", "read_bytes_per_s", "peak_read_bytes_per_s"),
        *("opens_per_s", "dataset_bytes"),
    ):
        assert both["together"][key] == pytest.approx(sum(each[key] for each in alone)), key


def test_a_dataset_that_both_read_counts_once() -> None:
    found = document("size unet3d-h100 unet3d-b200 --accelerators 8")
    first, second = found["jobs"]
    assert first["dataset"] == second["dataset"]
    assert found["together"]["dataset_bytes"] == first["dataset_bytes"]


def test_a_job_that_no_storage_can_feed_has_no_sum() -> None:
    found = document(f"size {JOBS} --accelerators 8 --required-au 1")
    assert found["together"]["buy_bytes_per_s"] is None
    assert found["together"]["not_measured"]["buy_bytes_per_s"]
