"""Runs of a KV cache on storages whose speed is known: which side of the break-even they are on."""

from __future__ import annotations

from pathlib import Path

import pytest

from iobench.record.run import KvCacheRecord
from iobench.record.serving import KvTrial, KvVerdict
from iobench.runner.kv_cache import make_kv_plan, run_kv
from iobench.runner.options import VerbOptions
from iobench.settings.kv_cache import KvScenario, PromptSpec
from iobench.settings.scenario import ArrivalSpec

BREAK_EVEN = 40e6
"""In bytes/s: what computing takes, by the rate of the prefill below."""

SPEC = KvScenario.model_validate(
    {
        "name": "known",
        "model": {
            "layers": 1, "heads": 8, "kv_heads": 8, "head_dim": 64, "parameters": 1e6,
        },
        "prefill": {"tokens_per_s": BREAK_EVEN / (2 * 8 * 64 * 2)},
        "duration": 8,
        "arrivals": {
            "kind": "sessions", "rate": 3, "turns": 4, "tool_share": 1, "tool_pause": "2s",
        },
        "prompts": {"new_tokens": 1200, "new_tokens_p90": 2400, "max_tokens": 10_000},
        "capacity": "100MB",
        "limit": 20,
        "reader": {"concurrency": 8, "depth": 2},
    }
)  # fmt: skip


ALONE = SPEC.model_copy(
    update={
        "arrivals": ArrivalSpec(kind="constant", rate=1.5),
        "prompts": PromptSpec(
            shared_tokens=4096, new_tokens=300, new_tokens_p90=400, max_tokens=10_000
        ),
    }
)
"""Each request loads the 16 chunks of one prefix, and no two loads overlap."""


def run(place: str, results: Path, spec: KvScenario = SPEC, repetitions: int = 3) -> KvCacheRecord:
    plan = make_kv_plan(spec, place, repetitions=repetitions)
    return run_kv(plan, VerbOptions(results=results))[0]


def verdict_of(doc: KvCacheRecord) -> KvVerdict:
    assert doc.job.verdict is not None
    return doc.job.verdict


def first(doc: KvCacheRecord) -> KvTrial:
    return doc.job.repetitions[0]


@pytest.mark.nightly
@pytest.mark.parametrize("times", [1 / 1.3, 1.3])
def test_throttled_storage_is_named_on_its_side_of_the_break_even(
    tmp_path: Path, times: float
) -> None:
    bandwidth = int(times * BREAK_EVEN)
    doc = run(f"throttled+{tmp_path / 'kv'}?bandwidth={bandwidth}", tmp_path, ALONE)
    verdict = verdict_of(doc)
    assert verdict.worth is (times > 1)
    assert verdict.break_even_bytes_per_s is not None
    assert verdict.load_bytes_per_s is not None
    assert verdict.break_even_bytes_per_s.value == pytest.approx(BREAK_EVEN, rel=1e-6)
    # The disk behind the throttle takes a time of its own where it is slow to answer.
    assert 0.85 * bandwidth < verdict.load_bytes_per_s.value < 1.03 * bandwidth


def test_a_load_takes_what_its_bytes_take(tmp_path: Path) -> None:
    """With a delay for each read, too: 2 reads of a request are under way at the same time."""
    spec = ALONE.model_copy(update={"duration": 2.0})
    doc = run(f"throttled+{tmp_path / 'kv'}?latency=60ms", tmp_path, spec, 1)
    trial = first(doc)
    assert trial.loading_s is not None
    alone = 16 / 2 * 0.060
    assert 0.98 * alone < trial.loading_s / trial.loads < 1.25 * alone


@pytest.mark.nightly
def test_slow_writes_are_the_bottleneck_or_fall_behind(tmp_path: Path) -> None:
    """Chunks are computed twice as fast as they are written, so the last ones begin 8 s late."""
    place = tmp_path / "kv"
    spec = SPEC.model_copy(update={"limit": 3.0})
    free = first(run(str(place), tmp_path / "free", spec, repetitions=1))
    assert free.write_bytes_per_s is not None
    slow = int(free.written_bytes / free.seconds / 2)
    doc = run(f"throttled+{place}?write_bandwidth={slow}", tmp_path / "slow", spec, repetitions=1)
    trial = first(doc)
    assert trial.write_bytes_per_s == pytest.approx(slow, rel=0.15)
    assert (trial.behind_p99_s or 0.0) > 1
    assert "kv.writes-behind" in {finding.rule for finding in doc.findings}
    assert trial.parts.write_wait_s > free.parts.write_wait_s


@pytest.mark.nightly
def test_a_second_use_of_a_chunk_is_needed_before_it_is_written(tmp_path: Path) -> None:
    """The advice of kv.writes-behind: fewer writes, and fewer hits."""
    always = first(run(str(tmp_path / "kv"), tmp_path / "a", repetitions=1))
    spec = SPEC.model_copy(update={"admission": "seen-twice"})
    twice = first(run(str(tmp_path / "kv"), tmp_path / "b", spec, 1))
    assert 0 < twice.chunks_written < 0.8 * always.chunks_written
    assert twice.loaded_tokens < always.loaded_tokens
    assert twice.prompt_tokens == always.prompt_tokens
