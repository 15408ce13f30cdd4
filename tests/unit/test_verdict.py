"""What binds, what it costs, what would help, how it is said. The base run: demand 2,000, storage
4,000, prep 6,000, harness 8,000.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.analyse.verdict.bind import verdict
from iobench.schema.verdict import Verdict

Build = Callable[..., Any]


def judge(make_run: Build, **changes: Any) -> Verdict:
    found = make_run(**changes).job.verdict
    assert isinstance(found, Verdict)
    return found


def test_accelerator_binds(make_run: Build) -> None:
    found = judge(make_run)
    assert found.binds == "accelerator"
    assert found.starved is False
    assert found.headroom == pytest.approx(2.0)
    assert found.accelerators_fed == 4  # 4,000 / (0.9 x 1,000) = 4.4
    assert found.predicted_samples_per_s == 2000
    (advice,) = found.advice
    assert advice.predicted_gain == 1.0
    assert "2.00 x" in advice.basis


def test_storage_binds(make_run: Build) -> None:
    found = judge(make_run, rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29)
    assert found.binds == "storage"
    assert found.starved is True
    assert found.headroom == pytest.approx(0.3)
    assert found.accelerators_fed == 0
    assert found.fetch_stall == pytest.approx(0.71)  # T2 = 1/580, T3 = T1 = 1/2000
    assert found.prep_stall == 0
    assert found.sentence.startswith("Storage starves 2 accelerators (29.0 % busy, 90 % required)")
    figures = (
        "demand 191 MiB/s (2,000 samples/s)",
        "storage delivers 57.2 MiB/s (600 samples/s) cold",
        "0.30 x",
        "fio reads 62.0 MiB/s (650 samples/s)",
    )
    places = [found.sentence.find(figure) for figure in figures]
    assert -1 not in places
    assert places == sorted(places)
    assert "faster storage" in found.advice[0].change
    assert found.advice[0].predicted_gain == pytest.approx(2000 / 600)
    assert "172 MiB/s" in found.advice[0].basis
    assert "2 accelerators at 90 %" in found.advice[0].basis


def test_a_reader_with_too_few_reads_in_flight(make_run: Build) -> None:
    found = judge(make_run, rates={"storage_raw": 1500, "fetch": 600}, measured=590, au=0.3)
    assert found.binds == "storage"
    assert "The reader gets 40% of the 143 MiB/s" in found.sentence
    assert "from 4 to about 10" in found.advice[0].change  # 4 x 1500 / 600
    assert found.advice[0].predicted_gain == pytest.approx(2.5)
    assert not any("faster storage" in advice.change for advice in found.advice)


def test_prep_binds(make_run: Build) -> None:
    found = judge(make_run, rates={"prep": 1000}, measured=980, au=0.49)
    assert found.binds == "prep"
    assert found.prep_stall == pytest.approx(0.49)  # (1/1000 - 1/2000) x 980
    assert found.fetch_stall == pytest.approx(0.02)
    assert "although storage delivers" in found.sentence
    assert "8 in total instead of 4" in found.advice[0].change
    assert found.advice[0].predicted_gain == pytest.approx(2.0)
    assert not any(
        "instead of 2" in advice.change for advice in found.advice
    )  # half the job at the same speed is no help


def test_prep_with_no_idle_core_asks_for_cores_or_cheaper_samples(make_run: Build) -> None:
    spec = {"name": "d", "content": "jpeg", "codec": "gzip", "compress_ratio": 4.0}
    found = judge(
        make_run,
        rates={"prep": 1000},
        measured=980,
        au=0.49,
        loader={"workers": 4},
        dataset={"spec": spec},
    )
    assert found.advice[0].change.endswith("more cores for data preparation: 16 instead of 8")
    assert not any(
        "gzip" in advice.change for advice in found.advice
    )  # uncompressed, storage would give 1,000 as well
    cheap = judge(
        make_run,
        rates={"prep": 1000},
        measured=980,
        au=0.49,
        dataset={"spec": spec | {"compress_ratio": 2.5}},
    )
    assert any("gzip" in a.change and a.predicted_gain == pytest.approx(1.6) for a in cheap.advice)


def test_harness_binds(make_run: Build) -> None:
    found = judge(
        make_run, rates={"harness": 800}, measured=790, au=0.4, loader={"transport": "tensor"}
    )
    assert found.binds == "harness"
    assert found.sentence.startswith("The loader itself")
    assert "transport=ring" in found.advice[0].change
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
    assert found.binds == "harness"
    assert found.sentence.startswith("This host's CPU starves")
    assert "1.0 of 1 cores" in found.sentence
    assert "direct=true" in found.advice[0].change


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
    assert "add workers" in waiting.advice[0].change
    assert "concurrency" not in waiting.advice[0].change
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
    assert "more cores" in found.advice[0].change
    warm = make_run(residency=0.5, loader=library)
    (finding,) = [each for each in warm.findings if each.rule == "cache.cold-residency"]
    assert "direct" not in finding.remedy


def test_undecided_within_noise(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": 1000, "prep": 1030}, measured=900, au=0.45)
    assert found.binds == "undecided"
    assert "storage and prep are within 5%" in found.sentence


def test_undecided_when_nothing_explains_the_wait(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": 9000, "prep": 9500}, measured=1000, au=0.5)
    assert found.binds == "undecided"
    assert "although every ceiling alone" in found.sentence


def test_turns_of_fetch_and_prep_explain_a_wait(make_run: Build) -> None:
    # 1 / (1/2500 + 1/3000 + 1/8000) = 1165, below 0.9 x 2000.
    found = judge(
        make_run, rates={"storage_raw": 2600, "fetch": 2500, "prep": 3000}, measured=1350, au=0.67
    )
    assert found.binds == "storage"
    assert "one after the other" in found.sentence
    # 1 / (1/3000 + 1/2500 + 1/8000) is the same, and prep the lowest.
    found = judge(
        make_run, rates={"storage_raw": 3100, "fetch": 3000, "prep": 2500}, measured=1100, au=0.55
    )
    assert found.binds == "prep"
    assert "one after the other, which yields 111 MiB/s (1,165 samples/s)." in found.sentence


def test_a_librarys_harness_is_not_missing(make_run: Build) -> None:
    found = judge(
        make_run,
        rates={"fetch": 900, "prep": 500, "harness": None},
        measured=300,
        au=0.15,
        loader={"kind": "litdata"},
    )
    assert found.binds == "prep"
    assert found.sentence.startswith("The loader 'litdata' ")
    assert "starves 2 accelerators" in found.sentence


@pytest.mark.parametrize(
    ("missing", "measured", "binds"),
    [("prep", 300, "undecided"), ("prep", 590, "storage"), ("harness", 300, "undecided")],
)
def test_missing_evidence(make_run: Build, missing: str, measured: float, binds: str) -> None:
    found = judge(make_run, rates={"fetch": 600, missing: None}, measured=measured, au=0.3)
    assert found.binds == binds
    assert (f"{missing} was not measured" in found.sentence) == (binds == "undecided")


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


def test_raw_stands_in_for_fetch_and_is_named(make_run: Build) -> None:
    found = judge(make_run, rates={"fetch": None, "storage_raw": 600}, measured=590, au=0.3)
    assert found.binds == "storage"
    assert "raw storage delivers 57.2 MiB/s (600 samples/s), 0.30 x" in found.sentence


@pytest.mark.parametrize(
    ("accelerators", "fetch", "phrase"),
    [
        (1, 500, "1 accelerator (50.0 % busy, 90 % required): it demands"),
        (1, 500, "it cannot feed even one at 90 % utilization"),
        (4, 800, "it cannot feed any of them"),
        (4, 1000, "it can feed 1 of them"),
        (4, 2000, "it can feed 2 of them"),
    ],
)
def test_grammar_of_zero_one_many(
    make_run: Build, accelerators: int, fetch: float, phrase: str
) -> None:
    assert (
        phrase
        in judge(
            make_run, accelerators=accelerators, rates={"fetch": fetch}, measured=fetch, au=0.5
        ).sentence
    )


def test_one_satisfied_accelerator(make_run: Build) -> None:
    sentence = judge(
        make_run, accelerators=1, rates={"fetch": 1100}, measured=960, au=0.96
    ).sentence
    assert sentence.startswith(
        "The data pipeline keeps 1 accelerator 96.0 % busy (90 % required): it demands"
    )
    assert sentence.endswith("it can feed 1 accelerator at 90 % utilization.")


def test_waiting_is_told_even_where_the_requirement_is_met(make_run: Build) -> None:
    found = judge(make_run, au=0.75, workload={"required_accelerator_utilization": 0.7})
    assert found.binds == "accelerator"
    assert "waiting 25.0 % of the time" in found.sentence


@pytest.mark.parametrize(("au", "verb"), [(0.85, "mildly starves"), (0.79, "Storage starves")])
def test_degrees(make_run: Build, au: float, verb: str) -> None:
    assert verb in judge(make_run, rates={"fetch": 1700}, measured=1650, au=au).sentence


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
    assert "372 MiB/s (3,900 samples/s) cold; the limit is storage." in found.sentence
    assert "starve" not in found.sentence
    assert found.starved is None
    assert found.headroom is None
    assert found.prep_stall is None
    assert "null" in found.not_measured["fetch_stall"]
    assert "null" in found.not_measured["starved"]


def test_compression_is_advised_only_where_cores_outrun_storage(make_run: Build) -> None:
    spec = {"name": "d", "content": "raw", "codec": "none", "compress_ratio": 2.0}
    slow = judge(
        make_run,
        rates={"storage_raw": 650, "fetch": 600},
        measured=580,
        au=0.29,
        dataset={"spec": spec},
    )
    assert any(
        "compressed" in a.change and a.predicted_gain == pytest.approx(2.0) for a in slow.advice
    )
    plain = judge(make_run, rates={"storage_raw": 650, "fetch": 600}, measured=580, au=0.29)
    assert not any("compressed" in advice.change for advice in plain.advice)


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
    assert any(advice.change.endswith(f" than {codec}: {cheaper}") for advice in found.advice)


def test_a_ceiling_that_the_run_refutes_is_not_called_a_limit(make_run: Build) -> None:
    """Measured on a busier host than the run: 300 samples/s alone, 900 in the run. Gains are over
    what was reached.
    """
    found = judge(make_run, rates={"prep": 300}, measured=900, au=0.45)
    assert found.binds == "prep"
    assert "at most" not in found.sentence
    assert (
        "preparation alone yielded 28.6 MiB/s (300 samples/s), less than the 85.8 MiB/s (900 "
        "samples/s)" in found.sentence
    )
    assert "8 in total instead of 4" in found.advice[0].change
    assert found.advice[0].predicted_gain == pytest.approx(2.0)
    assert all((advice.predicted_gain or 0) <= 2000 / 900 + 1e-9 for advice in found.advice)
