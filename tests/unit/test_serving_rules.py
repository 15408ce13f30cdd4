"""Rules and verdicts of runs that serve requests: each rule with a run that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.judge.validity import REQUEST_RULES, SERVING_RULES
from iobench.record.host import StorageFacts
from iobench.record.job import DatasetFacts
from iobench.record.run import CHANGED, ServingRecord
from iobench.record.serving import FoundRate, TrialKind
from iobench.report.record import sections
from iobench.report.render_text import render_text
from iobench.settings.scenario import LogSpec
from tests.requests import SCENARIO, build_serving, build_trial


def broken(doc: ServingRecord) -> dict[str, str]:
    return {finding.rule: finding.level for finding in doc.findings}


def test_a_good_run_breaks_no_rule() -> None:
    doc = build_serving()
    assert (broken(doc), doc.validity) == ({}, "valid")
    assert {rule.id for rule in (*REQUEST_RULES, *SERVING_RULES)} == {*BREAKS, CHANGED}


AT_ONCE = SCENARIO.model_copy(update={"log": LogSpec(wait=False)})


def logged(sync_s: float = 0.001, **window: Any) -> ServingRecord:
    """A run with a log, whose answers wait for its commits where the scenario says nothing else."""
    return build_serving(sync_s=sync_s, job={"log": StorageFacts(url="/mnt/log")}, **window)


def test_a_log_that_answers_wait_for_is_a_part_of_the_latency() -> None:
    doc = logged(sync_s=0.001)
    (first,) = doc.job.repetitions[:1]
    assert broken(doc) == {}
    assert (first.log_records, first.log_left, first.log_keeps_up) == (first.requests, 0, True)
    # Poisson arrivals at 0.4 of what the log can do: it works 1 ms for each, and they wait for it.
    assert first.parts.log_wait_s == pytest.approx(0.001 * (1 + 0.4 / 1.2), rel=0.2)
    assert first.latency_mean_s == pytest.approx(first.parts.total_s)
    verdict = doc.job.verdict
    assert verdict is not None
    assert verdict.log_adds_s is not None
    assert verdict.log_adds_s.value > 0.001


def test_a_log_that_nobody_waits_for_adds_nothing() -> None:
    doc = logged(sync_s=0.001, scenario=AT_ONCE)
    (first,) = doc.job.repetitions[:1]
    assert first.parts.log_wait_s == 0
    assert (first.log_commit_p50_s or 0) >= 0.001
    assert doc.job.verdict is not None
    assert doc.job.verdict.log_adds_s is not None
    assert doc.job.verdict.log_adds_s.value == 0


def test_a_slow_log_is_the_bottleneck() -> None:
    doc = logged(sync_s=0.0023, read_s=0.0005, rate=250.0)
    assert doc.job.verdict is not None
    assert doc.job.verdict.bottleneck == "log"


@pytest.mark.parametrize(
    ("spec", "objects", "expected"),
    [
        ({"rotate_bytes": 1 << 40, "rotate_delay": 60}, 1, 60),  # by time
        ({"rotate_bytes": 400_000, "rotate_delay": 86_400}, 1, 3600),  # 400 x 1,000 bytes a second
        ({"rotate_bytes": 400_000, "rotate_delay": 86_400, "writers": 4}, 4, 3600),
    ],
)
def test_objects_of_an_hour_are_those_of_a_log_without_end(
    spec: dict[str, Any], objects: int, expected: float
) -> None:
    scenario = SCENARIO.model_copy(update={"log": LogSpec(**spec)})
    trial = build_trial(sync_s=0.0005, scenario=scenario, log_objects=objects)
    assert trial.log_objects_per_hour == pytest.approx(expected, rel=0.1)


BREAKS: dict[str, tuple[str, Callable[[], ServingRecord]]] = {
    "serve.client-bound": ("invalid", lambda: build_serving(late_s=0.002)),
    "serve.unsteady": ("invalid", lambda: build_serving(read_s=0.022)),
    "serve.cold-residency": ("invalid", lambda: build_serving(residency_before=0.2)),
    "data.changed": (
        "invalid",
        lambda: build_serving(job={"dataset": DatasetFacts(changed=["data/3.tar"])}),
    ),
    "serve.failures": ("warning", lambda: build_serving(failed=3)),
    "storage.throttled": ("warning", lambda: build_serving(retries=2, throttled=2)),
    "storage.retries": ("warning", lambda: build_serving(retries=2)),
    "serve.incomplete": ("warning", lambda: build_serving(head={"status": "interrupted"})),
    "serve.requests": ("warning", lambda: build_serving(seconds=2.0)),
    "serve.log-behind": ("invalid", lambda: logged(sync_s=0.003, scenario=AT_ONCE)),
    "serve.log-volatile": ("invalid", lambda: logged(log_volatile=3)),
    "serve.log-unproven": ("info", lambda: logged(log_at_risk=None)),
    "serve.repetitions": ("info", lambda: build_serving(repetitions=2)),
    "serve.trace-binned": ("warning", lambda: build_serving(job={"arrivals_together": 0.4})),
}


@pytest.mark.parametrize("rule", BREAKS)
def test_a_run_that_breaks_it(rule: str) -> None:
    level, build = BREAKS[rule]
    assert broken(build()) == {rule: level}


def test_too_few_requests_tell_nothing() -> None:
    doc = build_serving(seconds=0.1)
    assert broken(doc) == {"serve.unsteady": "unknown", "serve.requests": "warning"}
    assert doc.validity == "unknown"


@pytest.mark.parametrize(("seconds", "few"), [(0.1, True), (10.0, False)])
def test_too_few_requests_are_why_no_stage_is_significant(seconds: float, few: bool) -> None:
    window: dict[str, Any] = {"read_s": 0.05, "readers": 64, "seconds": seconds}
    kinds: tuple[TrialKind, ...] = ("repetition", "without-storage")
    trials = [build_trial(kind, seed=seed, **window) for seed in range(3) for kind in kinds]
    verdict = build_serving(trials).job.verdict
    assert verdict.bottleneck == "inconclusive"
    assert ("in a repetition are too few for p99" in verdict.why) == few


@pytest.mark.parametrize(("failed", "breaks"), [(3, False), (80, True)])
def test_failed_requests_are_told_on_the_first_screen(failed: int, breaks: bool) -> None:
    """Of about 4,000 in a repetition, 1 % of which may be slower than the limit or fail."""
    doc = build_serving(failed=failed, error="cannot read m: planted")
    assert ": cannot read m: planted." in " ".join(render_text(sections(doc)).split())
    assert doc.job.verdict.holds is not breaks


SLOW = {"read_s": 0.2, "readers": 200, "late_s": 0.002}


def test_a_storage_that_is_far_too_slow_is_the_bottleneck_though_the_client_is_a_little_late() -> (
    None
):
    doc = build_serving(**SLOW)
    assert (broken(doc), doc.job.verdict.holds) == ({}, False)
    assert doc.job.verdict.bottleneck == "storage"


def test_a_client_that_is_a_little_late_is_not_blamed_where_no_stage_was_left_out() -> None:
    doc = build_serving([build_trial("repetition", **SLOW)])
    assert "serve.client-bound" not in broken(doc)
    assert (doc.job.verdict.holds, doc.job.verdict.bottleneck) == (False, "inconclusive")


def test_a_client_that_is_as_slow_without_the_storage_is_bound() -> None:
    kinds = ("repetition", "without-storage")
    doc = build_serving([build_trial(kind, seed=n, **SLOW) for n in range(3) for kind in kinds])
    assert broken(doc) == {"serve.client-bound": "invalid"}
    assert doc.job.verdict.bottleneck == "client"


def test_a_client_that_takes_a_core_is_bound() -> None:
    assert broken(build_serving(cpu_share=0.9)) == {"serve.client-bound": "invalid"}


def test_readers_that_are_busy_are_no_fault_of_the_client() -> None:
    """Requests wait for long, but no reader was free."""
    doc = build_serving(readers=1, rate=300.0, read_s=0.0025)
    (first,) = doc.job.repetitions[:1]
    assert first.parts.reader_wait_s > 0.0005
    assert broken(doc) == {}


@pytest.mark.parametrize(
    ("cache", "residency", "direct", "expected"),
    [
        ("cold", 0.5, False, {"serve.cold-residency": "invalid"}),
        ("cold", None, False, {"serve.cold-residency": "unknown"}),
        ("cold", None, True, {}),
        ("warm", 1.0, False, {}),
        ("any", None, False, {}),
    ],
)
def test_cold_is_measured(
    cache: str, residency: float | None, direct: bool, expected: dict[str, str]
) -> None:
    scenario = SCENARIO.model_copy(update={"cache": cache})
    doc = build_serving(scenario=scenario, residency_before=residency, job={"direct": direct})
    assert broken(doc) == expected


VERDICTS: dict[str, tuple[Callable[[], ServingRecord], bool | None, str]] = {
    "storage, and it holds": (lambda: build_serving(), True, "storage"),
    "storage, too slow": (lambda: build_serving(read_s=0.018), False, "storage"),
    "the accelerator": (
        lambda: build_serving(
            read_s=6e-5, scenario=SCENARIO.model_copy(update={"step_time": 0.00235})
        ),
        None,
        "accelerator",
    ),
    "the client": (lambda: build_serving(late_s=0.002), True, "client"),
    "one repetition": (lambda: build_serving(repetitions=1), True, "inconclusive"),
    "both alike": (
        lambda: build_serving(
            rate=100.0, scenario=SCENARIO.model_copy(update={"step_time": 0.001})
        ),
        True,
        "inconclusive",
    ),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_bottleneck_is_what_brings_most_if_it_is_left_out(name: str) -> None:
    build, holds, bottleneck = VERDICTS[name]
    verdict = build().job.verdict
    assert verdict.bottleneck == bottleneck
    if holds is not None:
        assert verdict.holds is holds


@pytest.mark.parametrize(
    ("slow", "says"),
    [
        ({2}, "held the limit in the search, and in 2 of 3 repetitions"),
        ({2, 3}, "below 400 requests/s (400 held the limit in the search, and in 1 of 3"),
    ],
)
def test_a_rate_is_what_most_repetitions_hold(slow: set[int], says: str) -> None:
    trials = [build_trial(seed=n, **({"read_s": 0.018} if n in slow else {})) for n in (1, 2, 3)]
    doc = build_serving(trials, found=FoundRate(low=400.0, high=430.0))
    shown = " ".join(render_text(sections(doc)).split())
    assert doc.job.verdict.holds is None
    assert says in shown
    assert ("below 400" in shown) == (len(slow) == 2)


def test_a_run_that_found_no_rate_has_no_verdict() -> None:
    trial = build_trial("find-max", read_s=0.018)
    doc = build_serving([trial], found=FoundRate(high=400.0, bound="even 400 do not"))
    assert (doc.job.verdict, broken(doc)) == (None, {"serve.incomplete": "warning"})


def test_a_search_that_a_late_client_ended_is_invalid() -> None:
    late = [build_trial("find-max", seed=seed, late_s=0.02) for seed in range(3)]
    doc = build_serving(late, found=FoundRate(bound="the client could not tell"))
    assert broken(doc)["serve.client-bound"] == "invalid"
