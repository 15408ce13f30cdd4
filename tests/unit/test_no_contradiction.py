"""No verdict contradicts itself, whatever the record holds.

Generated records have any ceilings, utilization, gains of stages that were left out, curve, shares
of time, cache and search for the largest number of accelerators, also such as no run leaves.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iobench.ask.capacity.ceilings import Change
from iobench.ask.capacity.whatif import what_if
from iobench.ask.compare.claims import Sides, claim
from iobench.ask.compare.comparison import compare, outcome_of
from iobench.ask.compare.runs import Group
from iobench.ask.tuning.reasons import Bounds, fit
from iobench.base.errors import UsageError
from iobench.base.units import Quantity
from iobench.judge.checkpoint_meaning import waste
from iobench.judge.figures.ablations import interval, is_told
from iobench.judge.judged import judge
from iobench.judge.promise import shown
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord
from iobench.record.verdict import Estimate, Verdict
from iobench.report.answer import answer
from iobench.report.render_text import render_text
from iobench.report.run import sections
from iobench.report.sections import FirstScreen
from iobench.settings.workload import OWN_LOADER
from tests.unit.conftest import build_run
from tests.unit.test_causes import curve, run_curve, without

BY_STAGE = {
    "storage": {"concurrency", "mapping", "pack", "compress", "faster-storage"},
    "prep": {"decoding", "codec", "loader"},
    "sync": {"no-barrier"},
    "fill": {"longer-epochs", "longer-run", "first-batches"},
    "checkpoint": {"faster-saves"},
    "log": {"faster-log"},
}
"""Advice that is about one stage alone."""

SAME_STORAGE = {"concurrency", "workers", "pack", "order", "direct", "mapping", "compress"}
"""Advice that gets more from the same storage."""


@st.composite
def gains(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Ablations of some stages, of one, two or five rounds."""
    found = []
    for stage in ("storage", "prep", "accelerator", "sync", "checkpoint", "log", "fill"):
        value = draw(st.none() | st.floats(0.8, 6))
        if value is None:
            continue
        n = draw(st.sampled_from([1, 2, 5]))
        wide = draw(st.floats(1.001, 1.6))
        estimate = {"value": value, "n": n}
        if n > 1:
            estimate |= {"low": value / wide, "high": value * wide}
        found.append({"stage": stage, "gain": estimate})
    return found


@st.composite
def ranks(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The time of two ranks: 60 s in parts."""
    if draw(st.booleans()):
        return []
    found = []
    for rank in range(2):
        parts = draw(st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
        names = ("busy_s", "fill_s", "fetch_s", "prep_s", "sync_s", "saves_s")
        whole = sum(parts)
        times = {name: 60 * part / whole for name, part in zip(names, parts, strict=True)}
        found.append({"rank": rank, "wall_s": 60.0} | times)
    return found


@st.composite
def curves(draw: st.DrawFn) -> Any:
    """A curve that flattens or does not, with one of large requests or without."""
    if draw(st.booleans()):
        return None
    latency, most = draw(st.floats(0.0005, 0.05)), draw(st.floats(100, 20_000))
    mine = curve(*(min(2**power / latency, most) for power in range(8)))
    fast = draw(st.none() | st.floats(1.1, 20))
    rate = most * 100_000 / 4_000_000
    large = curve(*[rate * fast] * 3, size=4_000_000, order="sequential") if fast else None
    tail = draw(st.sampled_from([None, 2.0, 20.0, 100.0]))
    if tail is not None:
        times = {"latency_p50_s": latency, "latency_p99_s": tail * latency}
        points = [each.model_copy(update=times) for each in mine.points]
        mine = mine.model_copy(update={"points": points})
    return run_curve(mine, large)


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any] | None:
    """A search that found 0 to 9 accelerators."""
    found = draw(st.none() | st.integers(0, 9))
    if found is None:
        return None
    return {
        "required_accelerator_utilization": 0.9,
        "accelerators": found or None,
        "low": max(0, found - 1),
        "high": found + 1,
        "points": [],
    }


def series(after: float) -> dict[str, Any]:
    """The rate of each second of a repetition, which is another one after ten of them."""
    rates = [1000.0] * 10 + [after] * 14
    stored = [1e5 * each for each in rates]
    return {"bin_s": 1.0, "samples_per_s": rates, "stored_bytes_per_s": stored}


def more_ranks(utilization: float) -> list[dict[str, Any]]:
    """What the steps of the run say of 8 and 64 ranks."""
    estimate = {"value": utilization, "low": utilization - 0.02, "high": utilization + 0.02}
    each = {"accelerator_utilization": estimate, "fed": None, "how": "extrapolated"}
    return [{"ranks": 8, **each}, {"ranks": 64, **each}]


ACCELERATOR = {"kind": "emulated", "name": "h100", "step_time": 0.1}
UNKNOWN_DATA = {"stored_bytes": None, "samples": None}
UNKNOWN_HOST = dict.fromkeys(("cores", "affinity_cores", "effective_cores"))
SPEC = {"name": "d", "codec": "gzip", "compress_ratio": 2.5}
GZIP = {"spec": SPEC, "cheaper_codecs": ["zstd"]}
RATES = st.none() | st.floats(50, 50_000)
STAGES = ("storage_raw", "fetch", "prep", "loader")

RECORDS = st.fixed_dictionaries(
    {
        "rates": st.fixed_dictionaries(dict.fromkeys(STAGES, RATES)),
        "measured": st.floats(50, 2000),
        "au": st.none() | st.floats(0.02, 1),
        "repetitions": st.sampled_from([0, 1, 3]),
        "residency": st.sampled_from([0.0, 0.0, 0.5]),
        "workload": st.fixed_dictionaries(
            {
                "cache": st.sampled_from(["cold", "cold", "any", "warm"]),
                "required_accelerator_utilization": st.sampled_from([0.7, 0.9]),
                "batch_size": st.sampled_from([100, 100, 100, 70_000]),
                "accelerator": st.sampled_from([ACCELERATOR] * 4 + [{"kind": "null"}]),
            }
        ),
        "dataset": st.sampled_from(
            [{}, {"shards": 60_000}, {"shards": 60}, {"samples": 1}, UNKNOWN_DATA, GZIP]
        ),
        "loader": st.sampled_from([{}, {"workers": 8, "transport": "tensor"}, {"workers": 0}]),
        "host": st.sampled_from([{}, {"effective_cores": 0.5}, UNKNOWN_HOST]),
        "repetition": st.fixed_dictionaries(
            {
                "ranks": ranks(),
                "cpu_s": st.sampled_from([20.0, 500.0]),
                "rates": st.sampled_from([series(1000.0), series(1000.0), series(450.0)]),
                "at_more_ranks": st.sampled_from([[], more_ranks(0.97), more_ranks(0.5)]),
            }
        ),
        "ablations": gains(),
        "curve": curves(),
        "find_max": searches(),
    }
)


def few(examples: int) -> settings:
    """So many generated records."""
    return settings(
        max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )


def verdict_of(doc: TrainingRecord) -> Verdict:
    assert doc.job.verdict is not None
    return doc.job.verdict


@few(50)
@given(record=RECORDS)
def test_a_verdict_does_not_contradict_itself(record: dict[str, Any]) -> None:
    doc = build_run(**record)
    found = verdict_of(doc)
    it_rests_on_what_was_measured(doc, found)
    starved_or_fed(doc, found, cached=record["residency"] > 0.1)
    what_binds_has_the_largest_gain(found)
    no_advice_promises_more_than_leaving_its_stage_out_brought(found)
    no_advice_promises_more_than_the_accelerators_take(doc, found)
    a_headline_promises_only_what_excludes_no_gain(found)
    what_costs_nothing_and_matters_stands_before_another_storage(found)
    figures_are_in_their_bounds(found)
    what_the_storage_feeds_is_one_figure(doc, found)
    the_page_says_what_the_sentence_says(doc, found)
    it_can_be_told_and_concluded_again(doc, found)


def it_rests_on_what_was_measured(doc: TrainingRecord, found: Verdict) -> None:
    evidence = judge(doc).evidence
    stages = ("storage", "prep", "loader", "cpu", "accelerator")
    known = {stage: getattr(evidence, stage) for stage in stages}
    measured = [rate for rate in known.values() if rate is not None]
    assert found.predicted_samples_per_s == min(measured, default=None)
    if evidence.storage is None and found.fed is None:
        assert (found.headroom, found.accelerators_fed) == (None, None)


def starved_or_fed(doc: TrainingRecord, found: Verdict, *, cached: bool) -> None:
    blamed = "storage" in (found.bottleneck, *found.also)
    if found.starved and (blamed or found.bottleneck == "undecided") and found.accelerators_fed:
        searched = found.fed is not None and found.fed.basis == "find-max"
        assert searched or found.accelerators_fed < doc.job.accelerators
    if found.starved is False and found.accelerators_fed is not None and not doc.job.find_max:
        assert found.accelerators_fed >= doc.job.accelerators
    if cached:
        assert not (blamed and doc.job.repetitions)
        assert found.storage_bound is None or not doc.job.repetitions
    if found.bottleneck == "accelerator" and found.basis == "tested":
        others = {stage: gain for stage, gain in found.gains.items() if stage != "accelerator"}
        told = {stage for stage, gain in others.items() if is_told(gain)}
        assert told <= ({"storage"} if cached else set())
    if any(advice.id == "none" for advice in found.advice):
        assert found.bottleneck == "accelerator"
    if found.too_short:
        assert found.bottleneck == "undecided"
    if found.storage_bound == "stragglers":
        assert blamed
        assert "faster-storage" not in {each.id for each in found.advice}


def what_binds_has_the_largest_gain(found: Verdict) -> None:
    if found.basis != "tested" or found.bottleneck in ("undecided", "accelerator", "cpu", "sync"):
        return
    mine = found.gains[found.bottleneck]
    assert is_told(mine)
    for stage in found.also:
        assert is_told(found.gains[stage])
        assert found.gains[stage].value <= mine.value
        assert interval(found.gains[stage])[1] >= interval(mine)[0]


def no_advice_promises_more_than_leaving_its_stage_out_brought(found: Verdict) -> None:
    for advice in found.advice:
        ends = [advice.low, advice.predicted_gain, advice.high]
        known = [end for end in ends if end is not None]
        assert known == sorted(known)
        assert advice.predicted_gain is None or advice.predicted_gain >= 1
        for stage, ids in BY_STAGE.items():
            gain = found.gains.get(stage)
            if gain is None or advice.id not in ids or found.bottleneck == "cpu":
                continue
            assert max(known, default=0) <= (gain.value if gain.high is None else gain.high) + 1e-9


def no_advice_promises_more_than_the_accelerators_take(doc: TrainingRecord, found: Verdict) -> None:
    workload, summary = doc.job.workload, doc.metrics.get("samples_per_s")
    assert workload.batch_size
    if summary is None or workload.accelerator.step_time is None:
        return
    demand = doc.job.accelerators * workload.batch_size / workload.accelerator.step_time
    rate = found.measured_samples_per_s or summary.median  # predicted ones are no measured ones
    for advice in found.advice:
        if advice.id != "none" and advice.predicted_gain is not None:
            most = max(advice.predicted_gain, advice.high or 0.0)
            assert rate * most <= demand * (1 + 1e-9), advice


def a_headline_promises_only_what_excludes_no_gain(found: Verdict) -> None:
    for low, high in re.findall(r" x \[([^,\]]*), ([^\]]*)\]", found.sentence):
        assert not (float(low.strip("< ")) < 1 < float(high.strip("> "))), found.sentence


def what_costs_nothing_and_matters_stands_before_another_storage(found: Verdict) -> None:
    bought = [number for number, each in enumerate(found.advice) if each.id == "faster-storage"]
    gains = [
        each.predicted_gain or 1.0
        for each in found.advice
        if not each.settings and each.id != "pack"
    ]
    free = [
        number
        for number, each in enumerate(found.advice)
        if each.id in ("concurrency", "pack")
        and each.predicted_gain is not None
        and each.predicted_gain >= max(gains, default=1.0) ** (1 / 3)
    ]
    assert not bought or not free or max(free) < min(bought), found.advice


def figures_are_in_their_bounds(found: Verdict) -> None:
    if found.fetch_stall is not None and found.prep_stall is not None:
        assert found.fetch_stall >= 0
        assert found.prep_stall >= 0
        assert found.fetch_stall + found.prep_stall <= 1 + 1e-9
    fed = found.fed
    if fed is not None and fed.accelerators is not None:
        assert fed.low is None or fed.low <= fed.accelerators
        assert fed.high is None or fed.high >= fed.accelerators
        assert found.accelerators_fed == fed.accelerators


def what_the_storage_feeds_is_one_figure(doc: TrainingRecord, found: Verdict) -> None:
    """Multiples of the demand, accelerators and advice say the same of the storage."""
    fed, ranks = found.fed, doc.job.accelerators
    required = doc.job.workload.required_accelerator_utilization
    if fed is None or fed.accelerators is None or fed.basis == "find-max":
        return
    blamed = {"storage", "sync", "undecided"} & {found.bottleneck, *found.also}
    falls = any(each.rule == "rate.falls" for each in doc.findings)
    assert (fed.basis == "run") == bool(falls and blamed and found.starved is not False)
    if fed.basis == "run" and found.headroom is not None and found.starved:
        assert found.headroom * ranks / required < ranks, "it starves, so it gets less"
    if found.headroom is not None and not (found.starved is not False and blamed):
        alone = math.floor(found.headroom * ranks / required + 1e-9)
        assert fed.accelerators >= alone
        if doc.job.ceilings["fetch"].samples_per_s:
            assert fed.today == (max(alone, ranks) if found.starved is False else alone)
    assert fed.today is None or fed.today <= fed.accelerators
    assert fed.potential is None or fed.potential > fed.accelerators
    busy = doc.metrics.get("accelerator_utilization_sustained")
    if not found.starved or busy is None:
        assert fed.potential is None
        return
    own = busy.median
    if falls and found.measured_samples_per_s:
        own *= min(1.0, found.measured_samples_per_s / doc.metrics["samples_per_s"].median)
    for advice in found.advice:
        gain = advice.found.value if advice.found else advice.predicted_gain
        if advice.id in SAME_STORAGE and gain and gain * own >= required:
            assert max(fed.accelerators, fed.potential or 0) >= ranks


def the_page_says_what_the_sentence_says(doc: TrainingRecord, found: Verdict) -> None:
    """Starved or fed, in figures: utilization, accelerators fed now, and more of them."""
    required = 100 * doc.job.workload.required_accelerator_utilization
    busy = re.search(r"\((\d+(?:\.\d+)?) % busy", found.sentence)
    if busy is not None:
        assert (float(busy[1]) < required) == found.starved
    fed, ranks = found.fed, doc.job.accelerators
    if fed is None or fed.accelerators is None:
        return
    most = max(fed.accelerators, fed.high or 0, fed.potential or 0)
    for at in fed.at:
        assert not (at.how == "extrapolated" and at.fed and at.ranks > most)
    answers = [each for each in sections(doc) if isinstance(each, FirstScreen)]
    gauges = {each.label: each.text for answer in answers for each in answer.gauges}
    told = gauges["accelerators fed"]
    if fed.basis == "find-max" or found.starved is None:
        return
    now, alone = (re.findall(r"\d+", part) for part in told.replace(",", "").split(";"))
    assert int(alone[0]) <= fed.accelerators <= int(alone[-1])  # two ends where it is not certain
    fewer = int(now[0]) == (0 if ranks == 1 else ranks) if found.starved else True
    assert fewer
    assert ("fewer" in told or now[0] == "0") == found.starved


def it_can_be_told_and_concluded_again(doc: TrainingRecord, found: Verdict) -> None:
    said = [f"{each.change} {each.basis}" for each in found.advice]
    for text in (found.sentence, found.explanation, *said):
        assert text.endswith(".") or text in said
        assert not {"None", "nan"} & set(re.split(r"\W+", text))
        assert "\n" not in text
    assert not (found.starved and "are fed" in found.sentence)
    assert render_text(sections(doc))
    assert conclude(doc) == doc


@few(50)
@given(
    record=RECORDS,
    change=st.sampled_from(
        [
            Change(storage_bandwidth=Quantity(2, relative=True)),
            Change(concurrency=Quantity(4, relative=True)),
            Change(workers=Quantity(8)),
            Change(accelerators=Quantity(4)),
        ]
    ),
)
def test_a_what_if_does_not_contradict_itself(record: dict[str, Any], change: Change) -> None:
    doc = build_run(**record)
    try:
        found = what_if([(doc, {})], change)
    except UsageError:
        return
    answer = verdict_of(found.what_if)
    nothing_brings_more_than_without_the_storage(doc, found.what_if, change)
    no_advice_promises_more_than_the_accelerators_take(found.what_if, answer)
    assert answer.basis == "inferred"
    assert set(answer.gains) <= {"cpu"}
    if answer.starved and "storage" in (answer.bottleneck, *answer.also):
        assert (
            answer.accelerators_fed is None
            or answer.accelerators_fed < found.what_if.job.accelerators
        )


def nothing_brings_more_than_without_the_storage(
    doc: TrainingRecord, then: TrainingRecord, change: Change
) -> None:
    """A faster storage is as fast as none at best, and so is a still faster one after it."""
    gain, rate = verdict_of(doc).gains.get("storage"), verdict_of(doc).measured_samples_per_s
    if change.storage_bandwidth is None or gain is None or rate is None:
        return
    most = max(1.0, interval(gain)[1]) * rate * (1 + 1e-9)
    predicted = then.metrics.get("samples_per_s")
    if predicted is None:
        return
    assert predicted.median <= most
    for advice in verdict_of(then).advice:
        if advice.id in BY_STAGE["storage"] and advice.predicted_gain is not None:
            assert predicted.median * max(advice.predicted_gain, advice.high or 0.0) <= most, advice


# Records that are possible: the parts of the time make up the whole, and only rounds have errors


PARTS = ("busy_s", "fill_s", "fetch_s", "prep_s", "sync_s", "saves_s")


@st.composite
def possible_runs(draw: st.DrawFn) -> dict[str, Any]:
    """Of 2 accelerators that take 2,000 samples/s, emulated or a real model, slowed or not.

    ``gains`` are off by up to a factor of 2, and ``alone`` is what the steps of the model take
    where nothing else runs.
    """
    drawn = draw(st.lists(st.floats(0.01, 1), min_size=6, max_size=6))
    parts = dict(zip(PARTS, drawn, strict=True))
    parts["busy_s"] *= draw(st.sampled_from([1.0, 20.0]))
    whole = sum(parts.values())
    times = {name: 60 * part / whole for name, part in parts.items()}
    busy = times["busy_s"] / 60
    waits = times["fetch_s"] + times["prep_s"]
    trains, slowed = draw(st.booleans()), draw(st.sampled_from([1.0, 1.3, 3.0]))
    ablations = []
    for stage, part in (("storage", "fetch_s"), ("prep", "prep_s"), ("accelerator", "busy_s")):
        if draw(st.booleans()):
            gain = draw(st.floats(0.5, 2)) / max(0.05, 1 - times[part] / 60)
            few = {"value": gain, "n": 1}
            many = {"value": gain, "low": gain / 1.1, "high": gain * 1.1, "n": 5}
            ablations.append({"stage": stage, "gain": draw(st.sampled_from([few, many]))})
    rate = 2000 * busy
    rates = {name: draw(st.floats(0.9, 8)) * rate for name in STAGES}
    model: dict[str, Any] = {
        "trained": {"model": "resnet50"},
        "workload": {"accelerator": {"kind": "model", "model": "resnet50"}},
        "rates": rates | {"accelerator": 2000.0 * slowed},
    }
    return {
        "measured": rate,
        "au": min(1.0, times["busy_s"] / (times["busy_s"] + waits + times["sync_s"])),
        "rates": rates,
        "ablations": ablations,
        "repetition": {
            "ranks": [{"rank": rank, "wall_s": 60.0} | times for rank in range(2)],
            "samples": round(60 * rate),
            "busy_s": times["busy_s"],
        },
        **(model if trains else {}),
    }


@few(100)
@given(record=possible_runs())
def test_no_gain_is_larger_than_what_is_lost(record: dict[str, Any]) -> None:
    """Accelerators that never wait are 1 / busy as fast, and faster only if their steps are."""
    doc = build_run(**record)
    found, rate = verdict_of(doc), record["measured"]
    most = 2000 / rate
    steps = record["rates"].get("accelerator", 2000) / 2000
    for stage, gain in found.gains.items():
        allowed = max(1.0, most * max(1.0, steps))
        assert stage == "accelerator" or max(gain.value, gain.high or 0.0) <= allowed * (1 + 1e-3)
    for advice in found.advice:
        allowed = most * max(1.0, steps if found.bottleneck == "cpu" else 1.0)
        told = max(advice.predicted_gain or 0.0, advice.high or 0.0)
        assert told <= max(1.0, allowed) * (1 + 1e-3), advice
    if record["ablations"] or found.bottleneck not in ("storage", "prep"):
        return
    ceilings = {"storage": record["rates"]["fetch"], "prep": record["rates"]["prep"]}
    rest = [each for stage, each in ceilings.items() if stage != found.bottleneck]
    for advice in found.advice:  # the roofline: the next lowest ceiling is then the limit
        if advice.predicted_gain is not None and advice.id not in ("longer-epochs", "codec"):
            assert advice.predicted_gain * rate <= max(rate, *rest) * (1 + 1e-3), advice


@pytest.mark.parametrize(
    ("alone", "gain", "bottleneck"),
    # 87.6 % busy: all waiting takes 1.14. The steps are as long alone, or far shorter.
    [(1000, 1.6, "prep"), (1800, 1.6, "cpu"), (1800, 1.14, "undecided")],
)
def test_what_a_real_model_gains_beyond_its_waits_is_the_cores(
    alone: float, gain: float, bottleneck: str
) -> None:
    times = {"busy_s": 52.56, "prep_s": 7.44, "fill_s": 0.0}
    doc = build_run(
        accelerators=1,
        measured=876.0,
        au=0.876,
        rates={"accelerator": alone, "prep": 1500.0},
        trained={"model": "resnet50"},
        workload={"accelerator": {"kind": "model", "model": "resnet50"}},
        repetition={
            "ranks": [{"rank": 0, "wall_s": 60.0, **times}],
            "samples": 52_560,
            "busy_s": 52.56,
        },
        ablations=without(prep=gain, accelerator=2.0),
    )
    found = verdict_of(doc)
    assert found.bottleneck == bottleneck
    promises = [each.predicted_gain or 0.0 for each in found.advice if each.id != "cores"]
    assert max(promises, default=0.0) <= 1 / 0.876 + 1e-9


# Records in which parts were not measured: what is concluded rests on what is there


@pytest.mark.parametrize("own", [None, 1500.0])
def test_another_loader_is_advised_only_if_it_was_tried(own: float | None) -> None:
    doc = build_run(
        rates={"prep": 600.0, "loader": None},
        measured=580.0,
        au=0.29,
        loader={"delivery": {"not_measured": "no proof"}, "kind": "torch-map"},
    )
    details = doc.job.ceilings["prep"].details.model_copy(update={"own_samples_per_s": own})
    prep = doc.job.ceilings["prep"].model_copy(update={"details": details})
    found = conclude(doc.with_job(ceilings=doc.job.ceilings | {"prep": prep})).job.verdict
    assert found.bottleneck == "prep"
    advised = [one for one in found.advice if OWN_LOADER in one.change]
    assert len(advised) == (own is not None)
    assert all(one.predicted_gain == pytest.approx(2.5) for one in advised)


def test_a_waste_that_no_float_can_hold() -> None:
    assert waste(1e6, 1.0, 1.0) == 1.0  # e to the millionth interruptions
    assert waste(0.0, 0.0, 100.0, exposed_s=5.0) == 0.05  # saves are free, and go on for ever
    assert waste(0.0, 0.0, 1.0, exposed_s=5.0) == 1.0


def test_larger_shards_that_take_no_longer_fit_no_model() -> None:
    assert fit({1e6: 1e6, 1e7: 1e7}, streams=1) is None
    assert fit({1e6: 1e6}, streams=1) is None
    found = fit({1e6: 1e6, 1e7: 2e6}, streams=1)
    assert found is not None
    limits = Bounds(dataset_bytes=1e9, streams=1, first_batch_s=None).upper(found)
    assert len(limits) == 1
    limits = Bounds(dataset_bytes=1e9, streams=1, memory_bytes=1e9, shuffle_window_bytes=5e6).upper(
        found
    )
    assert len(limits) == 4
    assert min(limits.values()) == 5e6


def test_a_rate_that_fell_to_nothing_is_worse_at_every_threshold() -> None:
    """There is no ratio to compare with the threshold."""
    base = (99.0, 100.0, 101.0, 99.5, 100.5, 100.2)
    found = claim("samples_per_s", Sides(candidate=[0.0] * 6, baseline=base), threshold=1.0)
    assert (found.answer, found.better, found.ratio) == ("different", False, None)
    assert outcome_of(found, higher_is_better=True) == "failed"
    back = claim("samples_per_s", Sides(candidate=base, baseline=[0.0] * 6))
    assert outcome_of(back, higher_is_better=True) == "passed"
    one = claim("samples_per_s", Sides(candidate=[0.0], baseline=[100.0]))
    assert outcome_of(one, higher_is_better=True) == "inconclusive"
    nobody = Group("a")
    assert compare(nobody, nobody).difference is None


# Runs that a budget cut


Cut = Callable[..., TrainingRecord]


@pytest.fixture
def cut() -> Cut:
    """``fill``: share of each repetition, of ``steps`` steps, after which ``busy`` is the share of
    the rest in which the accelerator works.
    """

    def build(
        *, busy: float, fill: float = 0.55, steps: int = 16, prefetch: int = 1, **changes: Any
    ) -> TrainingRecord:
        whole = busy * (1 - fill)
        rank = {"rank": 0, "wall_s": 10.0, "fill_s": 10 * fill, "busy_s": 10 * whole}
        rates = {"fetch": 4000, "prep": 860, "accelerator": 1000} | changes.pop("rates", {})
        return build_run(
            accelerators=1,
            measured=1000 * whole,
            au=whole,
            rates=rates,
            workload={"loader": {"workers": 8, "prefetch_factor": prefetch}},
            repetition={"steps": steps, "samples": 100 * steps, "ranks": [rank], "cpu_s": 1},
            fitted={"asked_max_steps": None},
            **changes,
        )

    return build


@pytest.mark.parametrize(
    ("busy", "steps", "gain", "most"),
    [
        # All 8 batches after the fill may be from it: the ceiling of 860 is what lasts.
        (0.98, 16, None, 1 / 0.86),
        (0.98, 16, 2.21, 1 / 0.86),
        # 12 of 72 may be: after the fill it is 800 at least.
        (0.80, 80, None, 1 / 0.80),
        (0.80, 80, 2.50, 1 / 0.80),
    ],
)
def test_a_promise_rests_on_the_rate_after_the_fill(
    cut: Cut, busy: float, steps: int, gain: float | None, most: float
) -> None:
    """Over whole repetitions, the accelerator demands 2.3 and 2.8 times what it got."""
    found = cut(busy=busy, steps=steps, ablations=without(prep=gain) if gain else []).job.verdict
    assert found.bottleneck == "prep"
    promises = [each.predicted_gain for each in found.advice if each.predicted_gain]
    assert promises
    assert max(promises) == pytest.approx(most, rel=0.01)


@pytest.mark.parametrize(
    ("low", "high", "shows"),
    [(0.04, 285.35, False), (0.0, 6.9, False), (1.2, 100.0, False), (0.3, 60.0, True)],
)
def test_an_interval_that_excludes_nothing_is_not_shown(
    low: float, high: float, shows: bool
) -> None:
    assert ("[" in shown(Estimate(value=3.44, low=low, high=high))) == shows


def test_a_factor_without_an_interval_has_three_digits() -> None:
    assert shown(Estimate(value=14.99), bound=True) == "at most 15.0 x"


@pytest.mark.parametrize(("busy", "steps", "lasts"), [(0.40, 16, 180), (0.80, 80, 711)])
def test_a_cut_run_without_ceilings_does_not_count_the_batches_of_the_fill(
    cut: Cut, busy: float, steps: int, lasts: float
) -> None:
    """Up to 8 of the 8 and of the 72 batches after the first ones were made before.

    On a storage of 200 samples/s, 259 were said to last.
    """
    unknown = dict.fromkeys(("storage_raw", "fetch", "prep", "loader"))
    doc = cut(busy=busy, steps=steps, rates=unknown)
    assert judge(doc).evidence.measured == pytest.approx(lasts, rel=0.01)
    assert ("after the first batch" in doc.job.verdict.sentence) == (lasts > 450 * busy)


def test_a_utilization_that_is_not_known_after_the_first_batch_says_so(cut: Cut) -> None:
    """It is far below what is required, beside a sentence that says that no change is needed."""
    doc = cut(busy=0.98, steps=16, rates={"prep": 1200})
    screen = answer(doc)
    assert doc.job.verdict.bottleneck == "accelerator"
    told = "44.1 % [44.1 %, 44.1 %] with the first batch, not known after it; 90 % required"
    assert screen.gauges[0].text == told
    assert screen.gauges[-1].text == "441 [441, 441] with the first batch, not known after it"
    assert screen.picture is not None
    assert screen.picture.rows[-1].cells[-1].text == "44.1 MB/s"
