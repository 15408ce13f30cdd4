"""Constructed runs on which earlier rules of the verdict named a wrong cause or a wrong figure.

Each test is one of them, with the answer that arithmetic gives. In the base run 2 accelerators ask
for 2,000 samples/s of 100 kB, storage delivers 4,000, preparation 6,000, the harness 8,000.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from iobench.analyse.capacity.change import Change, Quantity
from iobench.analyse.capacity.whatif import what_if
from iobench.analyse.verdict.barrier import barrier_walls
from iobench.analyse.verdict.curve import conclude_curve, rate_of
from iobench.analyse.verdict.in_flight import run_reads_in_flight
from iobench.analyse.verdict.rebuild import conclude
from iobench.schema.curve import CurvePoint, StorageCurve
from iobench.schema.record import TrainingRecord
from iobench.schema.training import Ceiling, CeilingDetails
from iobench.schema.verdict import (
    Estimate,
    KnockedOut,
    KnockOut,
    KnockOutRound,
    RankTime,
    RunCurve,
    Verdict,
)

Build = Callable[..., TrainingRecord]

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def verdict_of(doc: TrainingRecord) -> Verdict:
    assert doc.job.verdict is not None
    return doc.job.verdict


def curve(
    latency_s: float, *, reads_per_s: float = math.inf, request_bytes: int = 100_000
) -> StorageCurve:
    """A storage of this latency, which serves at most ``reads_per_s``; 3 windows a point, 1 %."""
    points = []
    for depth in DEPTHS:
        rate = min(depth / latency_s, reads_per_s)
        windows = [0.99 * rate, rate, 1.01 * rate]
        points.append(
            CurvePoint(
                in_flight=depth,
                reads_per_s=rate_of(rate, windows),
                bytes_per_s=rate_of(
                    rate * request_bytes, [request_bytes * each for each in windows]
                ),
                latency_mean_s=depth / rate,
                latency_p50_s=depth / rate,
                reads=1000,
                seconds=1.0,
                disjoint=True,
            )
        )
    return StorageCurve(
        request_bytes=request_bytes,
        request_bytes_min=request_bytes,
        request_bytes_max=request_bytes,
        order="random",
        by="fio",
        how="planted",
        direct=True,
        points=points,
    )


def run_curve(
    own: StorageCurve, *, in_flight: float, large: StorageCurve | None = None
) -> RunCurve:
    large = conclude_curve(large) if large else None
    return RunCurve(curve=conclude_curve(own, large), large=large, in_flight=in_flight)


def left_out(base: float, without: Mapping[KnockedOut, float]) -> list[KnockOut]:
    """Three rounds for each stage: the rate of the run, and the rate without the stage."""
    return [
        KnockOut(
            stage=stage,
            how="planted",
            rounds=[
                KnockOutRound(
                    repetition=number,
                    samples_per_s=rate * wobble,
                    base_samples_per_s=base,
                    seconds=5.0,
                )
                for number, wobble in enumerate((0.99, 1.0, 1.01))
            ],
            gain=Estimate(value=rate / base, low=0.98 * rate / base, high=1.02 * rate / base, n=3),
        )
        for stage, rate in without.items()
    ]


def ids(doc: TrainingRecord) -> list[str]:
    return [advice.id for advice in verdict_of(doc).advice]


# What binds


def test_latency_bound_reads_do_not_spend_a_storage(make_run: Build) -> None:
    """16 reads of 26.7 ms in flight are 600/s. 64 in flight are 2,400/s on the same storage."""
    doc = make_run(
        rates={"storage_raw": 4800, "fetch": 600},
        measured=600,
        au=0.3,
        curve=run_curve(curve(0.0267, reads_per_s=4800), in_flight=16),
        knock_outs=left_out(600, {"storage": 2000, "prep": 600, "accelerator": 600}),
    )
    found = verdict_of(doc)
    assert (found.binds, found.storage_bound) == ("storage", "latency")
    assert ids(doc)[0] == "concurrency"
    assert found.advice[0].settings
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 600, rel=0.05)
    assert "faster-storage" not in ids(doc)


def test_accelerators_fed_are_a_property_of_the_storage(make_run: Build) -> None:
    """100,000 reads/s in all, 8 in flight for each rank, which takes 0.9 x 500 samples/s: how many
    it could feed does not depend on how many ranks asked. With so few reads in flight it feeds
    fewer than these.
    """
    could = set()
    for ranks in (1, 2, 4, 8):
        doc = make_run(
            accelerators=ranks,
            rates={"fetch": 400 * ranks, "prep": 1e5, "harness": 1e5},
            measured=400 * ranks,
            au=0.8,
            workload={"accelerator": {"kind": "emulated", "name": "h", "step_time": 0.2}},
            curve=run_curve(curve(0.001, reads_per_s=100_000), in_flight=8 * ranks),
        )
        raw = Ceiling(
            samples_per_s=1e5, by="fio", details=CeilingDetails(read_bytes_per_sample=100_000.0)
        )
        doc = conclude(doc.with_job(ceilings=doc.job.ceilings | {"storage_raw": raw}))
        found = verdict_of(doc).fed
        assert found is not None
        assert found.accelerators is not None
        assert found.accelerators < ranks
        could.add(found.potential)
    assert could == {math.floor(100_000 / (0.9 * 500))}


def test_a_required_utilization_that_is_reached_is_no_cause(make_run: Build) -> None:
    """72 % busy where 70 % are required, because storage delivers 1,460 of 2,000 samples/s."""
    doc = make_run(
        rates={"storage_raw": 1500, "fetch": 1460},
        measured=1440,
        au=0.72,
        workload={"required_accelerator_utilization": 0.7},
    )
    found = verdict_of(doc)
    assert found.starved is False
    assert found.binds == "storage"
    assert "none" not in ids(doc)
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 1460, rel=0.05)


def test_saves_are_no_fetch_stall(make_run: Build) -> None:
    """100 steps of 0.1 s that never wait, and two saves of 5 s: faster saves bring up to 2 x."""
    ranks = [
        RankTime(
            rank=rank,
            wall_s=20.0,
            busy_s=10.0,
            fill_s=0.0,
            fetch_s=0.0,
            prep_s=0.0,
            saves_s=10.0,
            accelerator_utilization=1.0,
        )
        for rank in range(2)
    ]
    doc = make_run(
        measured=1000,
        au=0.995,
        repetition={
            "wall_s": 20.0,
            "busy_s": 10.0,
            "wait_s": 0.0,
            "checkpoint_s": 10.0,
            "ranks": ranks,
        },
        knock_outs=left_out(1000, {"saves": 2000, "storage": 1000, "accelerator": 1000}),
    )
    found = verdict_of(doc)
    assert found.binds == "saves"
    assert found.fetch_stall == pytest.approx(0, abs=0.02)
    assert ids(doc)[0] == "faster-saves"
    assert found.advice[0].predicted_gain == pytest.approx(2, rel=0.05)


def test_ceilings_that_cannot_be_told_apart_name_no_single_stage(make_run: Build) -> None:
    """A tenth between prep and fetch, and windows that scatter by as much."""
    doc = make_run(
        rates={"storage_raw": 3000, "fetch": 1100, "prep": 1000},
        measured=950,
        au=0.48,
        concluded=False,
    )
    for name, value in (("fetch", 1100.0), ("prep", 1000.0)):
        doc.job.ceilings[name].windows = Estimate(
            value=value, low=0.85 * value, high=1.15 * value, n=4
        )
    found = verdict_of(conclude(doc))
    assert found.binds == "undecided" or {found.binds, *found.also} >= {"storage", "prep"}


def test_a_batch_of_one_request_has_one_read_in_flight(make_run: Build) -> None:
    """Without reading ahead, 4 workers with a batch of one request keep 4 reads in flight, with
    concurrency 4 and with 16; a reader that reads ahead keeps 16 and 64.
    """
    one: dict[str, Any] = {
        "workload": {"batch_size": 1, "loader": {"workers": 4}},
        "accelerators": 1,
    }

    def in_flight(concurrency: int, *, ahead: bool) -> int:
        facts = {"direct": True, "workers": 4, "requests_per_batch": 1.0, "reads_ahead": ahead}
        return run_reads_in_flight(make_run(**one, loader=facts), concurrency=concurrency)

    assert [in_flight(many, ahead=False) for many in (4, 16)] == [4, 4]
    assert [in_flight(many, ahead=True) for many in (4, 16)] == [16, 64]


def test_operations_that_are_spent_are_no_lack_of_concurrency(make_run: Build) -> None:
    """Samples of 8 KiB out of shards, on a volume with 3,000 reads/s and 250 MB/s: 24.6 MB/s are
    all that reads of this size can get, while large ones get ten times that.
    """
    own = curve(0.001, reads_per_s=3000, request_bytes=8192)
    large = curve(0.001, reads_per_s=60, request_bytes=4 << 20)
    doc = make_run(
        rates={"storage_raw": 3000, "fetch": 3000, "prep": 60_000, "harness": 80_000},
        measured=2950,
        au=0.3,
        workload={"batch_size": 500, "reader": {"access": "random", "concurrency": 4}},
        loader={"access": "random"},
        dataset={"shards": 60, "stored_bytes": 60_000 * 8192},
        curve=run_curve(own, in_flight=16, large=large),
        knock_outs=left_out(2950, {"storage": 9800, "prep": 2950, "accelerator": 2950}),
    )
    found = verdict_of(doc)
    assert (found.binds, found.storage_bound) == ("storage", "operations")
    assert not {"concurrency", "workers"} & set(ids(doc))
    assert ids(doc)[0] == "pack"


def test_a_starved_run_is_not_fed_by_its_burst(make_run: Build) -> None:
    """The ceiling was measured with burst credits, and the run without them."""
    doc = make_run(
        rates={"storage_raw": 2600, "fetch": 2500, "prep": 6000}, measured=1250, au=0.625
    )
    found = verdict_of(doc)
    assert found.starved is True
    assert found.accelerators_fed is None or found.accelerators_fed < 2


def test_a_slow_rank_is_named(make_run: Build) -> None:
    """7 ranks could do 1,000 samples/s each, one 300: with a barrier at each step all do 300."""
    slow = 5
    ranks = [
        RankTime(
            rank=rank,
            wall_s=65.0,
            busy_s=19.5,
            fill_s=0.0,
            fetch_s=45.5 if rank == slow else 0.0,
            prep_s=0.0,
            sync_s=0.0 if rank == slow else 45.5,
            accelerator_utilization=0.3,
        )
        for rank in range(8)
    ]
    doc = make_run(
        accelerators=8,
        rates={"storage_raw": 9000, "fetch": 7300, "prep": 60_000, "harness": 80_000},
        measured=2400,
        au=0.3,
        repetition={"ranks": ranks, "sync_s": 40.0},
        knock_outs=left_out(
            2400, {"sync": 7300, "storage": 7900, "prep": 2400, "accelerator": 2400}
        ),
    )
    found = verdict_of(doc)
    assert found.starved is True
    assert found.slowest_rank == slow
    assert "sync" in {found.binds, *found.also}
    assert found.accelerators_fed is None or found.accelerators_fed < 8


def test_stages_that_share_the_cores_are_not_one_stages_fault(make_run: Build) -> None:
    """Fetch alone takes 2 cores for 2,600 samples/s, prep alone 2 cores for 2,000: together they
    reach 1,130, and twice the cores bring twice that.
    """
    together = 1 / (1 / 2600 + 1 / 2000)
    doc = make_run(
        rates={"storage_raw": 20_000, "fetch": 2600, "prep": 2000, "accelerator": 4000},
        measured=1130,
        au=0.28,
        host={"cores": 2, "affinity_cores": 2, "effective_cores": 2.0},
        workload={"accelerator": {"kind": "emulated", "name": "h", "step_time": 0.05}},
        repetition={"wall_s": 106.2, "cpu_s": 208.0, "busy_s": 30.0, "wait_s": 76.2},
        concluded=False,
    )
    for name, rate in (("fetch", 2600), ("prep", 2000)):
        doc.job.ceilings[name].cpu_s_per_gb = 2 / rate * 1e4  # 1 GB has 10,000 samples
    doc.job.ceilings["harness"].cpu_s_per_gb = 0.01
    doc.job.ceilings["cpu"] = Ceiling(samples_per_s=together, bytes_per_s=together * 1e5)
    doc.job.knock_outs = left_out(1130, {"storage": 1980, "prep": 2560, "accelerator": 1130})
    doc = conclude(doc)
    found = verdict_of(doc)
    assert found.binds == "cpu"
    assert ids(doc)[0] == "cores"
    assert found.advice[0].predicted_gain == pytest.approx(2, rel=0.15)


# What if


def test_a_model_is_not_corrected_by_another_stages_error(make_run: Build) -> None:
    """The CPU was overestimated; with steps of 5 times the length the accelerators are fed at 600
    samples/s, whatever the CPU does.
    """
    doc = make_run(
        accelerators=3,
        rates={"storage_raw": 9000, "fetch": 2600, "prep": 2000},
        measured=1130,
        au=0.38,
    )
    found = what_if(doc, Change(step_time=Quantity(5, relative=True)))
    rate = found.document.metrics["samples_per_s"].median
    assert rate == pytest.approx(600)
    assert found.corrected_samples_per_s in (None, pytest.approx(600))


def test_workers_that_take_turns_are_modelled_as_that(make_run: Build) -> None:
    """Fetch 1,000 and prep 1,200 in turns are 545. Reads of half the latency: 750."""
    doc = make_run(
        rates={"storage_raw": 9000, "fetch": 1000, "prep": 1200, "harness": None},
        measured=545,
        au=0.27,
        dataset={"shards": 60_000},
        workload={"reader": {"concurrency": 1}},
    )
    found = what_if(doc, Change(latency=Quantity(0.5, relative=True)))
    rate = found.document.metrics["samples_per_s"].median
    assert rate == pytest.approx(1 / (1 / 2000 + 1 / 1200), rel=0.05)


# Utilization


def test_a_barrier_costs_what_independent_ranks_do_not_show() -> None:
    """Eight ranks, each late in a step of its own: alone each loses one step of 100, together they
    lose eight.
    """
    steps = np.full((8, 100), 0.1)
    for rank in range(8):
        steps[rank, 10 * rank] = 0.2
    walls = barrier_walls(steps)
    assert walls.free == pytest.approx(10.1)
    assert walls.synced == pytest.approx(10.8)


# Rules


def rules(doc: TrainingRecord, *, level: str = "") -> set[str]:
    return {each.rule for each in doc.findings if not level or each.level == level}


def test_mlperf_wants_a_dataset_of_five_times_the_memory(make_run: Build) -> None:
    """2 GB on a host of 1 TB, proven cold: good science, and not MLPerf's."""
    small = {
        "host": {"memory_bytes": 10**12},
        "dataset": {"stored_bytes": 2 * 10**9, "samples": 20_000},
    }
    assert "dataset.size" in rules(make_run(rules="mlperf", **small), level="invalid")


def test_mlperf_wants_replicable_runs(make_run: Build) -> None:
    spread = [1990.0, 1999.0, 1998.0, 1900.0, 1300.0, 1000.0]  # after a warm-up, five that count
    doc = make_run(rules="mlperf", measured=spread, repetitions=6)
    assert "run.replicability" in rules(doc, level="invalid")


def test_a_cold_first_run_and_warm_later_ones_are_seen(make_run: Build) -> None:
    """A cache on the server answers the second time."""
    seen = rules(make_run(measured=[900.0, 1950.0, 1951.0, 1949.0, 1950.0]))
    assert "cache.first-touch" in seen


def test_fast_storage_that_feeds_is_not_refused_for_its_cpu(make_run: Build) -> None:
    """Fetch at 20 times the demand takes all cores, as it must; the accelerators are 99 % busy."""
    doc = make_run(
        rates={"storage_raw": 90_000, "fetch": 40_000, "prep": 45_000, "harness": 60_000},
        measured=1980,
        au=0.99,
        rules="mlperf",
        concluded=False,
    )
    doc.job.ceilings["fetch"].cpu_s_per_gb = 8 / (40_000 * 1e5) * 1e9
    assert "client.bound" not in rules(conclude(doc), level="invalid")


def test_a_harness_just_above_the_demand_of_fed_accelerators_is_fine(make_run: Build) -> None:
    doc = make_run(
        rates={"harness": 2150.0, "prep": 6000.0}, measured=1990, au=0.995, rules="mlperf"
    )
    assert "harness.bound" not in rules(doc, level="invalid")
