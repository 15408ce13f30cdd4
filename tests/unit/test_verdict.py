"""What binds, what it costs, what would help. The base run: demand 2,000, storage 4,000, prep
6,000, harness 8,000. It has no stages left out, so what binds is inferred from its ceilings; the
tested verdict is in test_causes.py. Texts are in tests/snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.verdict.bind import verdict
from iobench.schema.verdict import Advice, Verdict

Build = Callable[..., Any]


def judge(make_run: Build, **changes: Any) -> Verdict:
    found = make_run(**changes).job.verdict
    assert isinstance(found, Verdict)
    return found


def advised(found: Verdict) -> dict[str, Advice]:
    return {advice.id: advice for advice in found.advice}


def test_accelerator_binds(make_run: Build) -> None:
    found = judge(make_run)
    assert (found.binds, found.basis) == ("accelerator", "inferred")
    assert found.starved is False
    assert found.headroom == pytest.approx(2.0)
    assert found.accelerators_fed == 4  # 4,000 / (0.9 x 1,000) = 4.4
    assert found.predicted_samples_per_s == 2000
    (advice,) = found.advice
    assert (advice.id, advice.predicted_gain) == ("none", 1.0)
    assert "2.00 x" in advice.basis


def test_storage_binds(make_run: Build) -> None:
    found = judge(make_run, rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29)
    assert found.binds == "storage"
    assert found.starved is True
    assert found.headroom == pytest.approx(0.3)
    assert found.accelerators_fed == 0
    assert found.fetch_stall == pytest.approx(0.71)  # T2 = 1/580, T3 = T1 = 1/2000
    assert found.prep_stall == 0
    # fio had as many reads in flight as the reader: more were not measured.
    assert found.storage_bound == "unknown"
    assert found.advice[0].id == "faster-storage"
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 580)  # of what was measured
    assert "172 MiB/s" in found.advice[0].basis


def test_a_reader_with_too_few_reads_in_flight(make_run: Build) -> None:
    found = judge(make_run, rates={"storage_raw": 1500, "fetch": 600}, measured=590, au=0.3)
    assert (found.binds, found.storage_bound) == ("storage", "latency")
    (advice,) = found.advice
    assert advice.id == "concurrency"
    assert advice.settings == ["reader.concurrency=10"]  # 4 x 1500 / 600
    assert advice.predicted_gain == pytest.approx(2.5)


def test_prep_binds(make_run: Build) -> None:
    found = judge(make_run, rates={"prep": 1000}, measured=980, au=0.49)
    assert found.binds == "prep"
    assert found.prep_stall == pytest.approx(0.49)  # (1/1000 - 1/2000) x 980
    assert found.fetch_stall == pytest.approx(0.02)
    advice = found.advice[0]
    assert advice.id == "workers"
    assert advice.settings == ["loader.workers=4"]  # 8 cores, 2 accelerators
    assert advice.predicted_gain == pytest.approx(2.0, rel=0.03)


def test_prep_with_no_idle_core_asks_for_cores_or_cheaper_samples(make_run: Build) -> None:
    spec = {"name": "d", "content": "jpeg", "codec": "gzip", "compress_ratio": 4.0}
    prep: dict[str, Any] = {"rates": {"prep": 1000}, "measured": 980, "au": 0.49}
    found = judge(make_run, **prep, loader={"workers": 4}, dataset={"spec": spec})
    assert found.advice[0].id == "cores"
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 980)
    assert "codec" not in advised(found)  # uncompressed, storage would give 1,000 as well
    cheap = judge(make_run, **prep, dataset={"spec": spec | {"compress_ratio": 2.5}})
    assert advised(cheap)["codec"].predicted_gain == pytest.approx(1600 / 980)


def test_harness_binds(make_run: Build) -> None:
    found = judge(
        make_run, rates={"harness": 800}, measured=790, au=0.4, loader={"transport": "tensor"}
    )
    assert found.binds == "harness"
    assert found.advice[0].id == "transport"
    assert found.advice[0].predicted_gain == pytest.approx(2.6 / 1.4)


def test_a_saturated_client_is_not_blamed_on_storage(make_run: Build) -> None:
    doc = make_run(
        rates={"storage_raw": 1500, "fetch": 600},
        measured=590,
        au=0.3,
        host={"cores": 1, "affinity_cores": 1, "effective_cores": 1.0},
        concluded=False,
    )
    hungry = doc.job.ceilings["fetch"].model_copy(
        update={"cpu_s_per_gb": 16.0}
    )  # 0.06 GB/s x 16 = 0.96 of 1 core
    found = verdict(doc.with_job(ceilings=doc.job.ceilings | {"fetch": hungry}))
    assert (found.binds, found.storage_bound) == ("cpu", "client")
    assert advised(found)["direct"].settings == ["reader.direct=true"]
    assert advised(found)["cores"].predicted_gain == pytest.approx(2, rel=0.05)
    assert found.gains["cpu"].value == advised(found)["cores"].predicted_gain
    assert "faster-storage" not in advised(found)


def test_a_library_is_not_advised_what_only_iobenchs_reader_has(make_run: Build) -> None:
    """Direct IO and reads in flight are refused for libraries, or mean nothing to them."""
    library = {"kind": "webdataset", "direct": False, "workers": 2}
    waiting = judge(
        make_run,
        rates={"storage_raw": 1500, "fetch": 600, "harness": None},
        measured=590,
        au=0.3,
        loader=library,
    )
    assert waiting.advice[0].id == "workers"
    assert waiting.advice[0].settings == ["loader.workers=5"]
    host = {"cores": 1, "affinity_cores": 1, "effective_cores": 1.0}
    doc = make_run(
        rates={"storage_raw": 1500, "fetch": 600},
        measured=590,
        au=0.3,
        host=host,
        loader=library,
        concluded=False,
    )
    hungry = doc.job.ceilings["fetch"].model_copy(update={"cpu_s_per_gb": 16.0})
    found = verdict(doc.with_job(ceilings=doc.job.ceilings | {"fetch": hungry}))
    assert found.advice[0].id == "cores"
    assert "direct" not in advised(found)
    warm = make_run(residency=0.5, loader=library)
    (finding,) = [each for each in warm.findings if each.rule == "cache.cold-residency"]
    assert "direct" not in finding.remedy


def test_undecided_within_noise(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": 1000, "prep": 1030}, measured=900, au=0.45)
    assert found.binds == "undecided"


def test_undecided_when_nothing_explains_the_wait(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": 9000, "prep": 9500}, measured=1000, au=0.5)
    assert found.binds == "undecided"
    assert found.accelerators_fed == 1  # storage is not cleared: two are starved


@pytest.mark.parametrize(
    ("rates", "measured", "binds"),
    [
        # 1 / (1/2500 + 1/3000 + 1/8000) = 1165, below 0.9 x 2000.
        ({"storage_raw": 2600, "fetch": 2500, "prep": 3000}, 1350, "storage"),
        # 1 / (1/3000 + 1/2500 + 1/8000) is the same, and prep the lowest.
        ({"storage_raw": 3100, "fetch": 3000, "prep": 2500}, 1100, "prep"),
    ],
)
def test_turns_of_fetch_and_prep_explain_a_wait(
    make_run: Build, rates: dict[str, float], measured: float, binds: str
) -> None:
    found = judge(make_run, rates=rates, measured=measured, au=measured / 2000)
    assert found.binds == binds


def test_a_librarys_harness_is_not_missing(make_run: Build) -> None:
    found = judge(
        make_run,
        rates={"fetch": 900, "prep": 500, "harness": None},
        measured=300,
        au=0.15,
        loader={"kind": "litdata"},
    )
    assert (found.binds, found.starved) == ("prep", True)
    assert "litdata" in found.sentence


@pytest.mark.parametrize(
    ("missing", "measured", "binds"),
    [("prep", 300, "undecided"), ("prep", 590, "storage"), ("harness", 300, "undecided")],
)
def test_missing_evidence(make_run: Build, missing: str, measured: float, binds: str) -> None:
    found = judge(make_run, rates={"fetch": 600, missing: None}, measured=measured, au=0.3)
    assert found.binds == binds


def test_without_prep_there_are_no_stalls(make_run: Build) -> None:
    found = judge(make_run, rates={"prep": None})
    assert found.prep_stall is None
    assert found.not_measured["fetch_stall"] == "the prep ceiling was not measured"


def test_nothing_measured(make_run: Build) -> None:
    nothing = dict.fromkeys(("storage_raw", "fetch", "prep", "harness"))
    found = judge(make_run, rates=nothing, repetitions=0)
    assert found.binds == "undecided"
    assert found.headroom is None
    assert found.accelerators_fed is None
    assert set(found.not_measured) >= {
        "headroom",
        "accelerators_fed",
        "measured_samples_per_s",
        "starved",
    }


def test_raw_stands_in_for_fetch(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": None, "storage_raw": 600}, measured=590, au=0.3)
    assert found.binds == "storage"
    assert found.headroom == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("accelerators", "fetch", "fed"), [(1, 500, 0), (4, 800, 0), (4, 1000, 1), (4, 2000, 2)]
)
def test_zero_one_many(make_run: Build, accelerators: int, fetch: float, fed: int) -> None:
    found = judge(
        make_run, accelerators=accelerators, rates={"fetch": fetch}, measured=fetch, au=0.5
    )
    assert (found.accelerators_fed, found.starved) == (fed, True)


def test_one_satisfied_accelerator(make_run: Build) -> None:
    found = judge(make_run, accelerators=1, rates={"fetch": 1100}, measured=960, au=0.96)
    assert (found.binds, found.starved, found.accelerators_fed) == ("accelerator", False, 1)


def test_what_the_run_fed_can_be_fed(make_run: Build) -> None:
    """The ceiling says one accelerator, but the run kept two of them busy."""
    found = judge(make_run, rates={"fetch": 1500}, measured=1900, au=0.95)
    assert (found.starved, found.accelerators_fed) == (False, 2)


def test_a_met_requirement_is_not_the_end_of_waiting(make_run: Build) -> None:
    """Busy 75 % of the time where 70 % are required, and each ceiling alone is far above the
    demand: the accelerators do not starve, and they are not the limit either.
    """
    found = judge(
        make_run, au=0.75, measured=1500, workload={"required_accelerator_utilization": 0.7}
    )
    assert (found.starved, found.binds) == (False, "undecided")
    assert all(advice.id != "none" for advice in found.advice)


def test_null_accelerator(make_run: Build) -> None:
    null = {"accelerator": {"kind": "null", "name": "null", "step_time": None}}
    missing = {
        "not_measured": {"accelerator_utilization_sustained": "the accelerator is of kind null"}
    }
    found = judge(
        make_run,
        workload=null,
        rates={"accelerator": None},
        au=None,
        measured=3900,
        repetition=missing,
    )
    assert found.binds == "storage"
    assert found.starved is None
    assert found.headroom is None
    assert found.prep_stall is None
    assert "null" in found.not_measured["fetch_stall"]
    assert "null" in found.not_measured["starved"]


def test_compression_is_advised_only_where_cores_outrun_storage(make_run: Build) -> None:
    slow: dict[str, Any] = {
        "rates": {"storage_raw": 650, "fetch": 600},
        "measured": 580,
        "au": 0.29,
    }
    spec = {"name": "d", "content": "raw", "codec": "none", "compress_ratio": 2.0}
    found = judge(make_run, **slow, dataset={"spec": spec})
    assert advised(found)["compress"].predicted_gain == pytest.approx(2.0)
    assert "compress" not in advised(judge(make_run, **slow))


def test_advice_is_sorted_by_gain(make_run: Build) -> None:
    spec = {"name": "d", "content": "raw", "codec": "none", "compress_ratio": 1.5}
    gains = [
        a.predicted_gain
        for a in judge(
            make_run,
            rates={"storage_raw": 650, "fetch": 600},
            measured=580,
            au=0.29,
            dataset={"spec": spec},
        ).advice
    ]
    assert len(gains) >= 2
    assert gains == sorted(gains, reverse=True)


def test_what_slows_the_run_down_is_not_advice(make_run: Build) -> None:
    """One accelerator of two could be fed: 0.72 x the samples/s that the two get now, which helps
    nobody.
    """
    for rates in ({"fetch": 1300, "storage_raw": 1400}, {"prep": 1300}, {"harness": 1300}):
        found = judge(make_run, rates=rates, measured=1250, au=0.6)
        assert found.advice
        assert all(
            advice.predicted_gain is not None and advice.predicted_gain > 1.02
            for advice in found.advice
        )


@pytest.mark.parametrize(
    ("codec", "cheaper"),
    [
        ("gzip", "zstd:1 or lz4 or none"),
        ("gzip:9", "zstd:1 or lz4 or none"),
        ("zstd:1", "lz4 or none"),
        ("zstd:19", "lz4 or none"),
        ("lz4", "none"),
    ],
)
def test_the_codec_in_use_is_not_advised(make_run: Build, codec: str, cheaper: str) -> None:
    spec = {"name": "d", "content": "raw", "codec": codec, "compress_ratio": 1.5}
    found = judge(make_run, rates={"prep": 1000}, measured=980, au=0.49, dataset={"spec": spec})
    assert advised(found)["codec"].change.endswith(f" than {codec}: {cheaper}")


def test_a_ceiling_that_the_run_refutes_promises_no_more_than_the_demand(make_run: Build) -> None:
    """Measured on a busier host than the run: 300 samples/s alone, 900 in the run. Gains are over
    what was reached.
    """
    found = judge(make_run, rates={"prep": 300}, measured=900, au=0.45)
    assert found.binds == "prep"
    assert found.advice[0].id == "workers"
    assert found.advice[0].predicted_gain == pytest.approx(2.0)
    assert all((advice.predicted_gain or 0) <= 2000 / 900 + 1e-9 for advice in found.advice)
