"""Whether a KV cache is worth it, by requests whose answer is known, and the rules of such runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from iobench.judge.kv import crossover, factor_text, prefill_begins, with_kv_figures
from iobench.judge.validity import KV_RULES
from iobench.record.run import KvCacheRecord
from iobench.record.serving import KvTrial, KvTrialKind
from iobench.record.verdict import Estimate
from tests.kv import BREAK_EVEN, ENOUGH, KINDS, KV, build_kv, build_kv_trial


def broken(doc: KvCacheRecord) -> dict[str, str]:
    return {finding.rule: finding.level for finding in doc.findings}


@pytest.mark.parametrize("factor", [0.5, 1 / 1.3, 1.3, 4.0])
def test_the_verdict_names_the_side_of_the_break_even(factor: float) -> None:
    doc = build_kv(factor=factor, scenario=ENOUGH)
    verdict = doc.job.verdict
    assert verdict.worth is (factor > 1)
    assert verdict.factor.value == pytest.approx(factor, rel=0.01)
    even, load = verdict.break_even_bytes_per_s, verdict.load_bytes_per_s
    assert even.value == pytest.approx(BREAK_EVEN, rel=1e-6)
    assert load.value == pytest.approx(factor * BREAK_EVEN, rel=0.01)


def test_slow_loads_are_worth_it_where_the_accelerators_can_not_compute_it_all() -> None:
    """1.6 engines are needed without the storage. With fewer layers no queue grows, so none is
    judged.
    """
    verdict = build_kv(factor=0.5).job.verdict
    assert verdict.worth is True
    assert verdict.factor.value == pytest.approx(0.5, rel=0.01)
    scaled = build_kv(factor=0.5, scenario=KV.model_copy(update={"layers": 4})).job.verdict
    assert scaled.worth is False


def test_what_varies_from_one_side_to_the_other_is_inconclusive() -> None:
    trials = [
        build_kv_trial(kind, seed=seed, factor=factor, scenario=ENOUGH)
        for seed, factor in enumerate((0.8, 1.25, 1.0))
        for kind in KINDS
    ]
    verdict = build_kv(trials, scenario=ENOUGH).job.verdict
    assert verdict.worth is None


def test_a_load_has_no_more_than_the_storage_delivers_and_some() -> None:
    """40, 80 and 99 % of what plain reads get."""
    trials = [
        build_kv_trial(seed=seed).model_copy(
            update={
                "load_bytes_per_s": share * 1e8,
                "fetch_bytes_per_s": share * 1e8,
                "read_bytes_per_s": 2e7,
                "plain_bytes_per_s": 1e8,
            }
        )
        for seed, share in enumerate((0.4, 0.8, 0.99))
    ]
    verdict = build_kv(trials).job.verdict
    assert 1e7 < verdict.load_bytes_per_s.low < 4e7
    assert verdict.load_bytes_per_s.high == 1e8


def test_a_first_screen_does_not_say_from_where_loads_win_if_it_is_inconclusive_whether() -> None:
    said = {}
    for name, factors in (("inconclusive", (0.8, 1.25, 1.0)), ("yes", (1.3, 1.25, 1.2))):
        trials = [
            build_kv_trial(seed=seed, factor=factor, own_s=0.0, scenario=ENOUGH)
            for seed, factor in enumerate(factors)
        ]
        verdict = build_kv(trials, scenario=ENOUGH).job.verdict
        said[name] = verdict.sentence
    assert said["inconclusive"].endswith("as computing again.")
    assert said["yes"].endswith("of context on.")


def test_nothing_loaded_tells_nothing() -> None:
    doc = build_kv(chunks=0)
    assert (doc.job.verdict.worth, doc.job.verdict.factor) == (None, None)
    assert broken(doc)["kv.nothing-loaded"] == "warning"


def test_nothing_loaded_is_not_worth_it_where_the_first_token_comes_sooner() -> None:
    trials = [
        one.model_copy(update={"recomputed_quantile_s": 2 * (one.quantile_s or 0.0)})
        for one in (build_kv_trial(chunks=0, seed=seed) for seed in range(3))
    ]
    verdict = build_kv(trials).job.verdict
    assert (verdict.worth, verdict.ttft and verdict.ttft.value) == (None, pytest.approx(2))


@pytest.mark.parametrize(
    ("own_s", "chunk_s", "tokens"),
    [
        (0.0, 0.0128, 256),
        # 25.6 ms a chunk to compute: 12.8 ms are won by each, so 5 of them win back 60 ms.
        (0.060, 0.0128, 5 * 256),
        (0.0, 0.030, 0),
        (0.5, 0.0255, 0),
    ],
)
def test_loads_win_from_the_length_that_follows_from_their_times(
    own_s: float, chunk_s: float, tokens: int
) -> None:
    chunks = np.array([2.0, 5.0, 9.0, 30.0])
    assert crossover(KV, chunks, own_s + chunk_s * chunks) == tokens
    # One size alone tells no time of its own.
    assert crossover(KV, np.array([4.0, 4.0]), np.array([0.04, 0.04])) == 256


def test_no_fewer_than_no_accelerators_are_freed() -> None:
    """A record of somebody else may say that more compute with the storage than without."""
    trial = build_kv_trial(chunks=10, requests=1200)
    assert trial.traffic is not None
    more = trial.traffic.model_copy(update={"accelerators": 100.0})
    assert trial.model_copy(update={"traffic": more}).accelerators_freed == 0


def test_prefills_wait_for_engines_in_the_order_of_their_loads() -> None:
    ready, seconds = np.array([0.0, 0.3, 0.1]), np.array([1.0, 1.0, 2.0])
    assert prefill_begins(ready, seconds, 1).tolist() == [0.0, 3.0, 1.0]
    assert prefill_begins(ready, seconds, 2).tolist() == [0.0, 1.0, 0.1]


def test_the_first_token_comes_after_load_queue_and_prefill() -> None:
    """12 chunks and 100 tokens, of which 10 chunks take half their prefill to load."""
    trial = build_kv_trial(chunks=10, requests=1200)
    load_s, prefill_s = 10 * 0.0256 / 2, (2 * 256 + 100) / 10_000
    assert trial.latency_p50_s == pytest.approx(load_s + prefill_s, rel=0.01)
    assert trial.parts.load_s == pytest.approx(load_s, rel=0.01)
    assert trial.parts.prefill_s == pytest.approx(prefill_s)
    # Without the storage a prompt takes 0.317 s, and one comes every 0.2 s.
    assert trial.recomputed_busy == pytest.approx((12 * 256 + 100) / 10_000 / 0.2)
    assert (trial.recomputed_quantile_s or 0) > 100
    assert trial.accelerators_freed == pytest.approx(10 * 0.0256 / 0.2)
    assert trial.hit_rate == pytest.approx(2560 / 3172)
    assert (trial.steady, trial.holds) == (True, True)


def test_accelerators_are_needed_for_what_is_not_found() -> None:
    """A request a second of 3,000 tokens at 10,000 tokens/s: 0.3 of an accelerator. Of 40, all but
    10 arrive before the window.
    """
    intended = np.arange(-30, 10) * 10**9
    times = ("intended", "taken", "issued", "waited", "looked", "copied", "ready")
    rows: dict[str, Any] = {f"{name}_ns": np.maximum(intended, -1) for name in times}
    counts = {"tokens": 3000, "memory_tokens": 1000, "loaded_tokens": 500, "chunks": 2}
    for name, count in {**counts, "lookups": 3, "failed": 0}.items():
        rows[name] = np.full(len(intended), count)
    trial = KvTrial(
        kind="repetition", seed=1, rate=1.0, seconds=10.0, requests=10, bytes=0, earlier_s=30.0
    )
    window = with_kv_figures(trial, rows | {"intended_ns": intended}, KV)
    found = window.traffic
    assert (window.requests, window.loads, found.requests) == (10, 10, 40)
    needed = (found.accelerators, found.accelerators_without_storage, found.accelerators_uncached)
    assert needed == pytest.approx((0.15, 0.2, 0.3))
    assert found.loaded_bytes_per_s == pytest.approx(500 * 131_072)
    assert found.break_even_bytes_per_s == pytest.approx(BREAK_EVEN)


def test_a_failed_load_is_a_failed_request_and_no_hit() -> None:
    whole, part = build_kv_trial(), build_kv_trial(failed=300)
    assert (part.failed, part.loads) == (300, 300)
    assert part.over == pytest.approx(0.5)
    assert part.holds is False
    assert part.loaded_tokens < 0.6 * whole.loaded_tokens


def test_fewer_layers_free_the_accelerators_of_the_whole_model() -> None:
    part = KV.model_copy(update={"layers": 4})
    whole, scaled = build_kv_trial(chunks=10), build_kv_trial(chunks=10, scenario=part)
    assert scaled.accelerators_freed == pytest.approx(whole.accelerators_freed)
    assert scaled.break_even_bytes_per_s == pytest.approx(whole.break_even_bytes_per_s)
    assert scaled.latency_p50_s == pytest.approx((whole.latency_p50_s or 0) / 8, rel=0.01)


@pytest.mark.parametrize(("plain", "worth"), [(3e9, True), (1e9, None)])
def test_fewer_layers_do_not_tell_that_the_loads_of_all_have_room(
    plain: float, worth: bool | None
) -> None:
    """The loads of all layers need 2.01 GB/s together, and one load has 1.57 GB/s."""
    window: dict[str, Any] = {"factor": 1.2, "chunks": 12, "plain_bytes_per_s": plain}
    doc = build_kv(scenario=ENOUGH.model_copy(update={"layers": 4}), **window)
    verdict, whole = doc.job.verdict, build_kv(scenario=ENOUGH, **window).job.verdict
    assert verdict.worth is worth
    assert ("need 2.01 GB/s together" in verdict.sentence) is (worth is None)
    assert {one.holds for one in doc.job.repetitions} == {True}
    assert (verdict.holds, whole.worth, whole.holds) == (None, True, True)


BREAKS: dict[str, tuple[str, Callable[[], KvCacheRecord]]] = {
    "kv.nothing-offloaded": ("invalid", lambda: build_kv(chunks_written=0, written_bytes=0)),
    "kv.nothing-loaded": ("warning", lambda: build_kv(chunks=0)),
    "kv.working-set": (
        "warning",
        lambda: build_kv(job={"direct": False}, before_bytes=1 << 30, written_bytes=1 << 30),
    ),
    "kv.write-failures": ("warning", lambda: build_kv(writes_failed=3, write_error="no space")),
    "kv.writes-behind": ("warning", lambda: build_kv(behind_p99_s=3.0)),
    "kv.scaled": ("info", lambda: build_kv(scenario=KV.model_copy(update={"layers": 4}))),
}
"""The rules for all requests are in test_serving_rules.py."""


def test_loads_that_are_far_too_slow_are_no_fault_of_a_client_that_is_a_little_late() -> None:
    """The limit is 62.5 ms with one layer of 32, and a load takes more than a second."""
    doc = build_kv(late_s=0.01, factor=0.005, scenario=KV.model_copy(update={"layers": 1}))
    assert ("serve.client-bound" in broken(doc), doc.job.verdict.bottleneck) == (False, "reads")


def test_every_rule_is_broken_here() -> None:
    assert {rule.id for rule in KV_RULES} <= BREAKS.keys()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_run_that_breaks_a_rule(rule: str) -> None:
    level, build = BREAKS[rule]
    assert broken(build())[rule] == level


def test_a_run_that_keeps_all_rules() -> None:
    kept = build_kv()
    assert (broken(kept).keys() & BREAKS.keys(), kept.validity) == (set(), "valid")


@pytest.mark.parametrize(
    ("storage", "job", "before", "expected"),
    [
        ({"page_cache": False}, {"direct": False}, 1 << 30, None),
        ({}, {"direct": False}, 1 << 38, None),
        ({}, {"direct": True}, 1 << 30, None),
        ({}, {"direct": False}, 1 << 30, "warning"),
    ],
)
def test_a_page_cache_can_serve_loads_of_little_data(
    storage: dict[str, Any], job: dict[str, Any], before: int, expected: str | None
) -> None:
    doc = build_kv(storage=storage, job=job, before_bytes=before, written_bytes=1)
    assert broken(doc).get("kv.working-set") == expected


def test_writes_that_were_not_written_in_time_are_behind() -> None:
    assert broken(build_kv(writes_left=5))["kv.writes-behind"] == "warning"


def of_stage(stage: str) -> KvCacheRecord:
    """A run in which leaving out this stage makes the first token come much sooner."""
    slow: dict[str, Any] = {"own_s": 0.5, "chunks": 12}
    fast = slow | {"own_s": 0.0, "factor": 1000.0}
    trials = []
    for seed in range(3):
        for kind in KINDS:
            made = build_kv_trial(seed=seed, **(fast if kind == f"without-{stage}" else slow))
            trials.append(made.model_copy(update={"kind": kind}))
    return build_kv(trials)


@pytest.mark.parametrize("stage", ["reads", "writes", "lookups"])
def test_the_bottleneck_is_what_brings_most_if_it_is_left_out(stage: str) -> None:
    verdict = of_stage(stage).job.verdict
    assert verdict.bottleneck == stage


def test_the_bottleneck_is_the_prefill_or_the_client() -> None:
    few = build_kv(chunks=1, factor=100.0).job.verdict
    late = build_kv(late_s=0.3).job.verdict
    assert few.bottleneck == "prefill"
    assert late.bottleneck == "client"


def test_a_stage_that_was_not_left_out_may_be_the_bottleneck() -> None:
    def found(kinds: list[KvTrialKind], **window: Any) -> tuple[str, str]:
        trials = [build_kv_trial(kind, seed=seed, **window) for seed in range(3) for kind in kinds]
        verdict = build_kv(trials).job.verdict
        return verdict.bottleneck, verdict.why

    why = "there was no time to leave out"
    all_three = ("inconclusive", f"{why} reads, writes, lookups")
    assert found(["repetition"], chunks=6, factor=0.5) == all_three
    assert found(["repetition"], chunks=1, factor=100.0) == ("prefill", "")  # most of the time
    some: list[KvTrialKind] = ["repetition", "without-reads"]
    assert found(some, chunks=6, factor=2.0) == ("prefill", "")
    assert found(some, factor=2.0) == ("inconclusive", f"{why} writes, lookups")
    assert found(some, factor=0.1) == ("reads", "")


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0.9, 1.1, "0.99 x [0.90, 1.10]"),
        (0.0001, 0.31, "at most 0.31 x"),
        (1.2, 900, "at least 1.20 x"),
        (0.001, 900, "0.95 x (inconclusive)"),
    ],
)
def test_an_answer_is_not_called_inconclusive_where_it_is_known(
    low: float, high: float, said: str
) -> None:
    value = (low * high) ** 0.5
    assert factor_text(Estimate(value=value, low=low, high=high, n=2)) == said
