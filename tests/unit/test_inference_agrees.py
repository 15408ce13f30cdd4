"""No answer about weights, requests or a KV cache contradicts its figures, whatever was recorded.

Generated records have any times, also such as no run leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from iobench.judge.model_load import storage_share
from iobench.record.run import KvCacheRecord, ModelLoadRecord, RunRecord, ServingRecord
from iobench.record.serving import (
    FoundRate,
    KvTraffic,
    KvTrial,
    KvTrialKind,
    ServedTrial,
    TrialKind,
)
from iobench.record.verdict import Estimate
from iobench.report.record import sections
from iobench.report.render_text import render_text
from tests.kv import ENOUGH, KV, build_kv
from tests.requests import SCENARIO, build_serving
from tests.unit.test_model_load import GB, record, trial

SECONDS = st.floats(1e-5, 1e3)
RATES = st.floats(1e3, 1e12)
SHARES = st.floats(0, 1)
GIVEN = settings(suppress_health_check=list(HealthCheck))

NO_FIGURE = re.compile(r"\b(nan|inf|None)\b|[ \[]-[0-9]")
"""What no report says: these figures can't be below 0."""


def estimates(of: BaseModel) -> Iterator[tuple[str, Estimate]]:
    """Every estimate of a record, with its place."""
    for name, value in of:
        items = value.items() if isinstance(value, dict) else [("", value)]
        for key, each in items:
            if isinstance(each, Estimate):
                yield f"{name}.{key}", each


def holds_together(doc: RunRecord, *parts: BaseModel) -> str:
    """The text of the report, in which no figure is impossible or outside of its interval."""
    for part in parts:
        for name, found in estimates(part):
            if found.low is not None and found.high is not None:
                assert 0 <= found.low <= found.value <= found.high, name
    text = render_text(sections(doc))
    assert not NO_FIGURE.search(text), text
    return text


def drawn(draw: st.DrawFn, names: tuple[str, ...], of: st.SearchStrategy[float]) -> dict[str, Any]:
    """For each name a figure, or None."""
    return {name: draw(st.none() | of) for name in names}


@st.composite
def kv_records(draw: st.DrawFn) -> KvCacheRecord:
    kinds: tuple[KvTrialKind, ...] = ("repetition", "without-reads", "without-writes")
    usual, spread = draw(SECONDS), draw(st.floats(1, 3))
    near = st.floats(usual / spread, usual * spread)
    loads = draw(st.booleans())
    trials = []
    for seed in range(draw(st.integers(1, 4))):
        for kind in kinds if draw(st.booleans()) else kinds[:1]:
            figures: dict[str, Any] = {
                name: draw(near)
                for name in ("quantile_s", "recomputed_quantile_s", "without_accelerator_s")
            }
            if loads and kind != "without-reads":
                figures |= {"loading_s": draw(near), "recomputing_s": draw(near)}
                names = ("load_bytes_per_s", "break_even_bytes_per_s")
                figures |= {name: draw(RATES) for name in names}
                figures |= drawn(draw, ("fetch_bytes_per_s", "plain_bytes_per_s"), RATES)
                figures |= {"loads": 100, "chunks_loaded": 200, "loaded_tokens": 51_200}
                busy = sorted(draw(st.floats(0, 9)) for _ in range(3))
                figures["traffic"] = KvTraffic(
                    requests=100,
                    prompt_tokens=10**6,
                    memory_tokens=0,
                    loaded_tokens=51_200,
                    accelerators=busy[0],
                    accelerators_without_storage=busy[1],
                    accelerators_uncached=busy[2],
                    loaded_bytes_per_s=draw(RATES),
                    break_even_bytes_per_s=draw(RATES),
                )
            trials.append(
                KvTrial(
                    kind=kind,
                    seed=seed,
                    rate=5.0,
                    seconds=10.0,
                    requests=draw(st.sampled_from([50, 1200])),
                    bytes=10**9,
                    prompt_tokens=10**6,
                    holds=draw(st.booleans()),
                    cpu_share=draw(SHARES),
                    latency_p50_s=usual,
                    latency_p99_s=usual,
                    busy=draw(SHARES),
                    recomputed_busy=draw(st.floats(0, 3)),
                    **figures,
                )
            )
    return build_kv(trials, scenario=draw(st.sampled_from([KV, ENOUGH])))


@GIVEN
@given(kv_records())
def test_a_kv_cache_is_worth_it_by_its_figures(doc: KvCacheRecord) -> None:
    verdict = doc.job.verdict
    text = " ".join(holds_together(doc, verdict).split())
    if verdict.factor is None:
        assert verdict.worth is None
        assert "is not known: nothing was loaded" in text
    else:
        answer = {True: "yes", False: "no", None: "inconclusive"}[verdict.worth]
        assert f"Worth it: {answer}:" in text
    if verdict.bottleneck not in ("client", "inconclusive"):
        assert (verdict.gains[verdict.bottleneck].low or 0) > 1


@st.composite
def serving_records(draw: st.DrawFn) -> ServingRecord:
    kinds: tuple[TrialKind, ...] = ("repetition", "without-storage")
    usual, spread = draw(SECONDS), draw(st.floats(1, 3))
    near = st.floats(usual / spread, usual * spread)
    trials = [
        ServedTrial(
            kind=kind,
            seed=seed,
            rate=400.0,
            seconds=10.0,
            requests=draw(st.sampled_from([50, 4000])),
            bytes=10**9,
            holds=draw(st.booleans()),
            over=draw(SHARES),
            failed=draw(st.sampled_from([0, 0, 3])),
            cpu_share=draw(SHARES),
            late_p99_s=draw(st.sampled_from([0.0, 0.0, 1.0])),
            **{
                name: draw(near)
                for name in (
                    "quantile_s",
                    "without_accelerator_s",
                    "latency_p50_s",
                    "latency_max_s",
                )
            },
        )
        for seed in range(draw(st.integers(1, 5)))
        for kind in (kinds if draw(st.booleans()) else kinds[:1])
    ]
    low = draw(st.none() | st.floats(1, 500))
    high = draw(st.none() | st.floats(low or 1, 1000))
    found = draw(st.none() | st.just(FoundRate(low=low, high=high)))
    return build_serving(trials, scenario=SCENARIO, found=found)


@GIVEN
@given(serving_records())
def test_a_limit_is_held_by_what_the_repetitions_say(doc: ServingRecord) -> None:
    verdict = doc.job.verdict
    text = " ".join(holds_together(doc, verdict).split())
    held = {each.holds for each in doc.job.repetitions}
    assert verdict.holds is (held.pop() if len(held) == 1 else None)
    said = {True: " is held at ", False: " is not held at ", None: "it is inconclusive whether "}
    assert said[verdict.holds] in text
    if verdict.bottleneck not in ("client", "inconclusive"):
        assert (verdict.gains[verdict.bottleneck].low or 0) > 1


@st.composite
def load_records(draw: st.DrawFn) -> ModelLoadRecord:
    usual, spread = draw(st.floats(0.01, 1000)), draw(st.floats(1, 2))
    near = st.floats(usual / spread, usual * spread)
    any_s = st.floats(usual / 50, usual * 2)
    rounds = draw(st.integers(1, 5))
    loaders = draw(st.sampled_from([["direct"], ["direct", "eager"]]))
    replicas = draw(st.sampled_from([[1], [1, 2]]))
    trials: list[dict[str, Any]] = []
    for number in range(rounds):
        cpu_s = {"cpu_s": draw(st.floats(0, usual))}
        for loader in loaders:
            for count in replicas:
                ready_s = draw(near) * (draw(st.floats(0.5, 3)) if count > 1 else 1)
                changes = {"loader": loader, "replicas": count} | cpu_s
                trials.append(trial(number, ready_s, **changes))
        for stage in draw(st.sets(st.sampled_from(["storage", "assembly"]))):
            reads = "" if stage == "assembly" else "direct"
            trials.append(trial(number, draw(any_s), left_out=stage, loader=reads))
        if draw(st.booleans()):
            trials.append(trial(number, draw(any_s), copy_s=draw(near)))
    plain = [
        {"round": at, "replicas": count, "in_flight": 8, "bytes_per_s": GB / draw(near)}
        for at in range(draw(st.integers(0, 3)))
        for count in replicas
    ]
    asked = {"loaders": loaders, "replicas": replicas, "repetitions": rounds}
    return record(trials, spec=asked, plain=plain, copied={"to": "/tmp/near"})


@GIVEN
@given(load_records())
def test_the_bottleneck_of_a_load_is_what_its_time_says(doc: ModelLoadRecord) -> None:
    job = doc.job
    holds_together(doc, job, job.copied, *job.figures)
    for each in job.figures:
        assert each.low_s <= each.ready_s <= each.high_s
        share = storage_share(each)
        assert share is None or 0 <= share.value <= 1
        for stage in each.bottleneck if each.plain_s is None else []:
            assert each.gains[stage].value > 1


@pytest.mark.parametrize("text", ["took nan s", "[-1.00 ms, 2.00 ms]", "brings inf x"])
def test_what_no_report_says_is_found(text: str) -> None:
    assert NO_FIGURE.search(text)
