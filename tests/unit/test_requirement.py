"""``iobench size`` against hand arithmetic: MLPerf's workloads have published appetites, the rest
is division.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.capacity.requirement import Demand, requirement
from iobench.errors import UsageError
from iobench.report.render_text import render_text
from iobench.report.size import headline, sections
from iobench.schema.dataset import load_dataset_spec
from iobench.schema.host import StorageFacts
from iobench.schema.training import CeilingDetails
from iobench.schema.workload import load_workload

Build = Callable[..., Any]


def size(name: str, demand: Demand, run: Any = None, overrides: tuple[str, ...] = ()) -> Any:
    workload = load_workload(name, overrides)
    return requirement(workload, load_dataset_spec(workload.dataset), demand, run)


def test_unet3d_on_64_b200() -> None:
    """7 samples of 146.6 MB in 0.162 s are 6.33 GB/s (MLPerf Storage v3.0); 64 of them at 90 % are
    365 GB/s.
    """
    need = size("unet3d-b200", Demand(accelerators=64, hosts=8, latency_s=0.005))
    assert need.demanded_read_bytes_per_s == pytest.approx(64 * 6.33e9, rel=0.01)
    assert need.read_bytes_per_s == pytest.approx(0.9 * need.demanded_read_bytes_per_s)
    assert need.reads_per_s == pytest.approx(need.samples_per_s * 35)  # 146.6 MB in blocks of 4 MiB
    assert need.opens_per_s == pytest.approx(need.samples_per_s)  # a file each
    assert need.reads_in_flight == pytest.approx(need.reads_per_s * 0.005, abs=1)
    assert need.network_bits_per_s_per_host == pytest.approx(
        need.read_bytes_per_s
    )  # x 8 bits / 8 hosts
    assert headline(need).startswith(
        "365 GB/s (340 GiB/s) of sustained, uncached reads with 436 in flight"
    )


def test_resnet50_reads_shards_in_large_blocks() -> None:
    """400 samples of 114,660 bytes are 11 blocks of 4 MiB; 1,251 samples share a shard."""
    need = size("resnet50-h100", Demand(accelerators=8, required=0.8))
    assert need.access == "sequential"
    assert need.read_bytes_per_s == pytest.approx(0.8 * 8 * 400 / 0.224 * 114_660, rel=1e-3)
    assert need.reads_per_s == pytest.approx(need.samples_per_s * (11 / 400 + 1 / 1251))
    assert need.opens_per_s == pytest.approx(need.samples_per_s / 1251)
    random = size(
        "resnet50-h100", Demand(accelerators=8, required=0.8), overrides=("reader.access=random",)
    )
    assert random.reads_per_s == pytest.approx(need.samples_per_s)


def test_the_workloads_own_utilization_is_the_default() -> None:
    assert size("cosmoflow-h100", Demand(accelerators=1)).required_accelerator_utilization == 0.7


def test_checkpoints() -> None:
    need = size(
        "unet3d-b200",
        Demand(accelerators=8, checkpoint_bytes=105_000_000_000, checkpoint_budget_s=60),
    )
    assert need.write_bytes_per_s == pytest.approx(1.75e9)
    assert "1.75 GB/s" in headline(need)
    assert "durable" in headline(need)
    without = size("unet3d-b200", Demand(accelerators=8))
    assert without.write_bytes_per_s is None
    assert "--checkpoint-bytes" in without.not_measured["write_bytes_per_s"]


def test_the_cache_is_worth_less_than_its_size_when_reshuffled() -> None:
    """Half of the data: 15.3 % of the reads from a page cache, 50 % from a pinned one."""
    whole = size("resnet50-h100", Demand(accelerators=1)).dataset_bytes
    need = size("resnet50-h100", Demand(accelerators=1, cache_bytes=round(whole / 2)))
    assert need.cache.page_cache_hit_rate == pytest.approx(0.153, abs=0.001)
    assert need.cache.page_cache_read_bytes_per_s == pytest.approx(
        need.read_bytes_per_s * (1 - 0.1534), rel=1e-3
    )
    assert need.cache.pinned_read_bytes_per_s == pytest.approx(need.read_bytes_per_s / 2, rel=1e-6)
    assert need.read_bytes_per_s == pytest.approx(
        0.9 * need.demanded_read_bytes_per_s
    )  # the first epoch finds nothing cached
    half = need.cache_to_halve_bytes_per_host / whole
    assert half + (1 - half) * math.log(1 - half) == pytest.approx(0.5, abs=1e-4)


def test_what_a_measured_storage_would_do(make_run: Build) -> None:
    """The run's reader gets 4,000 samples/s of 100 kB: 400 MB/s. One H100 at 90 % draws 184 MB/s in
    resnet50.
    """
    each = 0.9 * 400 / 0.224 * 114_660
    one = size("resnet50-h100", Demand(accelerators=2), make_run())
    assert one.measured.read_bytes_per_s == pytest.approx(400e6)
    assert one.measured.accelerators_fed == int(400e6 / each) == 2
    assert one.measured.missing_bytes_per_s == 0
    assert one.cores == pytest.approx(
        1.5 * 2 * each / 1e9, rel=1e-3
    )  # three stages of 0.5 CPU s/GB
    many = size("resnet50-h100", Demand(accelerators=16, hosts=4), make_run())
    assert many.measured.accelerators_fed == 2
    assert many.measured.accelerators_fed_local == 8
    assert many.measured.missing_bytes_per_s == pytest.approx(16 * each - 400e6, rel=1e-3)
    text = render_text(sections(many))
    assert "2 of 16 accelerators" in text
    assert "If each host has such a storage of its own: 8" in " ".join(text.split())


def test_latency_comes_from_the_best_evidence(make_run: Build) -> None:
    demand = Demand(accelerators=1)
    doc = make_run(dataset={"shards": 60_000})
    derived = size("resnet50-h100", demand, doc)
    assert derived.latency_s == pytest.approx(
        2 * 2 * 4 / 4000
    )  # 2 ranks x 2 workers x 4 in flight over 4,000 reads/s
    assert "Little" in derived.latency_from
    raw = doc.job.ceilings["storage_raw"].model_copy(
        update={"details": CeilingDetails(latency_p50_s=0.003)}
    )
    fio = size(
        "resnet50-h100",
        demand,
        doc.with_job(ceilings=doc.job.ceilings | {"storage_raw": raw}),
    )
    assert fio.latency_s == 0.003
    stated = size(
        "resnet50-h100", demand, doc.model_copy(update={"storage": StorageFacts(latency_s=0.02)})
    )
    assert stated.latency_s == 0.02
    assert size("resnet50-h100", Demand(accelerators=1, latency_s=0.5), doc).latency_s == 0.5


def test_figures_that_may_not_carry_over_say_so(make_run: Build) -> None:
    need = size("unet3d-b200", Demand(accelerators=1), make_run(residency=0.5))
    told = " ".join(need.measured.notes)
    assert "another size" in told
    assert "content" in told
    assert "INVALID (cache.cold-residency)" in told
    warm = size("unet3d-b200", Demand(accelerators=1), make_run(workload={"cache": "warm"}))
    assert any("'warm'" in note for note in warm.measured.notes)
    assert not any("INVALID" in note for note in warm.measured.notes)


@pytest.mark.parametrize(
    ("demand", "says"),
    [
        (Demand(accelerators=0), "accelerators"),
        (Demand(accelerators=4, hosts=0), "hosts"),
        (Demand(accelerators=4, hosts=5), "hosts"),
        (Demand(accelerators=4, required=0), "0.9"),
        (Demand(accelerators=4, required=1.5), "0.9"),
        (Demand(accelerators=4, required=float("nan")), "0.9"),
        (Demand(accelerators=4, checkpoint_bytes=5), "--checkpoint-budget"),
        (Demand(accelerators=4, checkpoint_budget_s=5), "--checkpoint-budget"),
        (Demand(accelerators=4, checkpoint_bytes=5, checkpoint_budget_s=0), "--checkpoint-budget"),
        (Demand(accelerators=4, latency_s=0), "--latency"),
    ],
)
def test_what_makes_no_sense_is_refused(demand: Demand, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        size("unet3d-b200", demand)


def test_a_null_accelerator_demands_nothing() -> None:
    with pytest.raises(UsageError, match=r"accelerator\.step_time"):
        size(
            "demo",
            Demand(accelerators=1),
            overrides=("accelerator.kind=null", "accelerator.step_time=null"),
        )


def test_a_run_without_ceilings_is_refused(make_run: Build) -> None:
    nothing = dict.fromkeys(("storage_raw", "fetch", "prep", "harness"))
    with pytest.raises(UsageError, match="--calibration"):
        size("demo", Demand(accelerators=1), make_run(rates=nothing))


def test_only_the_columns_that_are_read_are_demanded() -> None:
    """MLPerf Storage's DLRM on a B200 reads 40 of 200 columns, 160 of 761 bytes: 5.24 GB/s, not the
    24.9 GB/s of whole rows.
    """
    from iobench.runner.plan import describe_plan

    workload = load_workload("dlrm-b200")
    found = requirement(workload, load_dataset_spec("dlrm"), Demand(accelerators=1))
    assert found.demanded_read_bytes_per_s == pytest.approx(5.24e9, rel=0.001)
    plan = describe_plan(workload, None, accelerators=1, repetitions=1)
    assert plan.demanded_bytes_per_s == pytest.approx(5.24e9, rel=0.001)
    assert plan.demanded_samples_per_s == pytest.approx(found.demanded_samples_per_s)
    whole = load_workload("dlrm-b200", ["reader.columns=null"])
    plan = describe_plan(whole, None, accelerators=1, repetitions=1)
    assert plan.demanded_bytes_per_s == pytest.approx(24.9e9, rel=0.002)


def test_a_cache_holds_the_columns_that_are_read() -> None:
    """Of 160 of 761 bytes, half of the epoch's reads are pinned by a tenth of the dataset."""
    spec = load_dataset_spec("dlrm")
    found = requirement(
        load_workload("dlrm-b200"),
        spec,
        Demand(accelerators=1, cache_bytes=round(0.5 * 160 * spec.samples)),
    )
    assert found.cache is not None
    assert found.cache.pinned_hit_rate == pytest.approx(0.5, rel=0.001)
    assert found.pinned_to_halve_bytes_per_host == pytest.approx(80 * spec.samples, rel=0.001)
    assert found.dataset_bytes == pytest.approx(761 * spec.samples, rel=0.01)
