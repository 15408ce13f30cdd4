"""The rules for checkpoints, each against a record that breaks it and one that keeps it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.judge.checkpoint import (
    MIN_BYTES,
    MIN_SAVES,
    back_pressure,
    cold_restore,
    contention,
    count,
    durable,
    model,
    proven,
    ranks,
    scaled,
    stopped_early,
    tiny,
    verified,
    written,
)
from iobench.judge.rebuild import conclude
from iobench.judge.rules_data import RuleOutcome
from iobench.judge.validity import evaluate
from iobench.record.run import CheckpointRecord, TrainingRecord, load_run
from iobench.record.verdict import Ablation, Estimate
from tests.processes import document, refused
from tests.unit.conftest import build_run

GB = 10**9
PASSES, FAILS, UNKNOWN = "passes", "fails", "unknown"


def save(**changes: Any) -> dict[str, Any]:
    times = {"blocked_s": 2.0, "accepted_s": 2.0, "durable_s": 2.0}
    return {"step": 1, "bytes": GB, "files": 1, "unwritten_bytes": 0, **times, **changes}


def restore(**changes: Any) -> dict[str, Any]:
    return {"step": 1, "wall_s": 1.0, "bytes": GB, "residency_before": 0.0, **changes}


def study(head: dict[str, Any] | None = None, **job: Any) -> CheckpointRecord:
    """Ten saves and restores of 1 GB, of a whole model, on a host with 64 GB; all is well."""
    whole: dict[str, Any] = {
        "kind": "checkpoint",
        "model": "llama3-8b",
        "writer": "stream",
        "ranks": 8,
        "bytes": GB,
        "full_bytes": GB,
        "files": 1,
        "tensors": 5,
        "spec": {"count": 10, "fsync": True},
        "saves": [save() for _ in range(10)],
        "restores": [restore() for _ in range(10)],
    }
    return CheckpointRecord.model_validate(
        {
            "iobench_version": "0",
            "run_id": "r",
            "created": "",
            "command": [],
            "status": "ok",
            "validity": "valid",
            "hosts": [{"memory_bytes": 64 * GB}],
            "storage": {"page_cache": True},
            "job": {**whole, **job},
            **(head or {}),
        }
    )


UNCACHED = {"storage": {"page_cache": False}}
SMALL = {"memory_bytes": GB // 4}
WARM = restore(residency_before=1.0)


def result(found: RuleOutcome | None) -> str:
    if found is None:
        return PASSES
    assert found.evidence
    assert "\n" not in found.evidence
    return FAILS if found.known else UNKNOWN


ALL = (
    *(durable, written, proven, cold_restore, verified, count),
    *(scaled, model, ranks, stopped_early, back_pressure),
)


@pytest.mark.parametrize("rule", ALL)
def test_a_study_in_which_all_is_well(rule: Callable[[Any], RuleOutcome | None]) -> None:
    assert rule(study()) is None


@pytest.mark.parametrize(
    ("rule", "doc", "expected"),
    [
        (durable, study(spec={"fsync": False}), FAILS),
        (durable, study(saves=[save(), save(durable_s=None)]), UNKNOWN),
        (written, study(saves=[save(), save(unwritten_bytes=4096)]), FAILS),
        (proven, study(saves=[save(), save(unwritten_bytes=None)]), FAILS),
        (proven, study(saves=[save(unwritten_bytes=None)], spec={"fsync": False}), PASSES),
        (proven, study(UNCACHED, saves=[save(unwritten_bytes=None)]), PASSES),
        (cold_restore, study(restores=[restore(residency_before=0.5)]), FAILS),
        (cold_restore, study(restores=[restore(residency_before=0.001)]), PASSES),
        (cold_restore, study(restores=[restore(residency_before=None)]), UNKNOWN),
        (cold_restore, study(restores=[]), PASSES),
        # A cache that does not exist holds nothing, and one that is too small not much.
        (cold_restore, study(UNCACHED, restores=[restore(residency_before=None)]), PASSES),
        (cold_restore, study({"hosts": [SMALL]}, restores=[WARM]), PASSES),
        # The memory of one host of two is not that of the job.
        (cold_restore, study({"hosts": [SMALL, {}]}, restores=[WARM]), FAILS),
        (verified, study(restores=[restore(verified=True), restore(verified=False)]), FAILS),
        (verified, study(restores=[restore(verified=None)]), PASSES),
        (count, study(saves=[save()] * (MIN_SAVES - 1)), FAILS),
        (count, study(restores=[restore()] * (MIN_SAVES - 1)), FAILS),
        (scaled, study(full_bytes=2 * GB), FAILS),
        (scaled, study(state_bytes=20 * GB), FAILS),
        (model, study(model="vit-b16"), FAILS),
        (ranks, study(ranks=7), FAILS),
        (ranks, study(model="llama3-70b"), FAILS),
        (stopped_early, study({"status": "interrupted"}), FAILS),
        (stopped_early, study({"status": "failed", "error": "no space left"}), FAILS),
        (stopped_early, study(spec={"count": 11}), FAILS),
        # Each of two ranks has too little to measure with, but the whole model is what it is.
        (tiny, study(bytes=MIN_BYTES, full_bytes=100 * GB, ranks=1), PASSES),
        (tiny, study(bytes=MIN_BYTES, full_bytes=100 * GB, ranks=2), FAILS),
        (back_pressure, study(saves=[save(waited_s=0.2)] * 10), FAILS),
        (back_pressure, study(saves=[save(waited_s=0.05)] * 10), PASSES),
        # The training also stands still until the save before is committed.
        (back_pressure, study(saves=[save(waited_s=0.0, held_s=0.2)] * 10), FAILS),
        (back_pressure, study(saves=[save(blocked_s=0.01, held_s=0.005)] * 10), PASSES),
    ],
)
def test_a_rule_and_a_record(
    rule: Callable[[Any], RuleOutcome | None], doc: CheckpointRecord, expected: str
) -> None:
    assert result(rule(doc)) == expected


# Beside one another


@pytest.mark.parametrize(
    ("quiet", "reading_s", "expected"),
    [
        ({"read_s": 1.0, "bytes_read": GB}, 1.05, PASSES),
        ({"read_s": 1.0, "bytes_read": GB}, 2.0, FAILS),
        ({"read_s": None, "bytes_read": GB}, 2.0, UNKNOWN),
        ({"read_s": 1.0, "bytes_read": GB}, None, UNKNOWN),
        # Where reads were not counted, the samples' bytes stand for them on both sides.
        ({"read_s": 1.0, "bytes_read": None, "sample_bytes": GB}, 2.0, FAILS),
        (None, 1.0, UNKNOWN),
    ],
)
def test_how_saves_slow_loads_down(
    quiet: dict[str, Any] | None, reading_s: float | None, expected: str
) -> None:
    doc = build_run(repetition={"read_s": reading_s, "bytes_read": GB})
    alone = None if quiet is None else doc.job.repetitions[0].model_copy(update=quiet)
    both = study(saves=[save()], alone=[save()]).checkpoints
    assert result(contention(doc.with_job(quiet=alone, saves=both))) == expected
    without = study(saves=[save()]).checkpoints
    assert result(contention(doc.with_job(quiet=alone, saves=without))) == UNKNOWN


@pytest.mark.parametrize(
    ("loaded_s", "alone_s", "expected"),
    [
        (2.0, 1.0, FAILS),
        (1.05, 1.0, PASSES),
        (1.0, 0.0, UNKNOWN),  # a clock that stood still
    ],
)
def test_how_loads_slow_saves_down(
    loaded_s: float | None, alone_s: float | None, expected: str
) -> None:
    loaded, alone = (
        save(blocked_s=0.5, accepted_s=end_s, durable_s=end_s) for end_s in (loaded_s, alone_s)
    )
    doc = build_run(repetition={"read_s": 1.0, "bytes_read": GB})
    both = study(saves=[loaded], alone=[alone]).checkpoints
    found = contention(doc.with_job(quiet=doc.job.repetitions[0], saves=both))
    assert result(found) == expected


def test_loads_are_compared_with_saves_that_wait_for_no_other_one() -> None:
    """Asynchronous saves one right after the other have waited, which is no time of the storage."""
    loaded = save(durable_s=2.1, waited_s=0.0, staged_s=0.1)
    alone = save(durable_s=2.1, waited_s=1.0, staged_s=0.1)
    doc = build_run(repetition={"read_s": 1.0, "bytes_read": GB})
    both = study(saves=[loaded], alone=[alone]).checkpoints
    found = contention(doc.with_job(quiet=doc.job.repetitions[0], saves=both))
    assert found is not None
    assert "2.00 x as long as alone" in found.evidence


# iobench plan MODEL


def test_room_for_two(tmp_path: Path) -> None:
    """The checkpoint before stays until the next one is complete."""
    small = document("plan llama3-8b --scale 1/4096 --to", tmp_path / "ckpt")
    assert small["needed_bytes"] == 2 * small["bytes"]
    space = os.statvfs(tmp_path)
    assert small["fits"] is (small["needed_bytes"] <= space.f_bavail * space.f_frsize)
    assert not (tmp_path / "ckpt").exists()
    assert document("plan llama3-1t")["fits"] is None
    large = document("plan llama3-1t --to", tmp_path)
    assert large["fits"] is (large["needed_bytes"] <= space.f_bavail * space.f_frsize)


def test_no_share_is_advised_where_nothing_fits() -> None:
    """``/proc`` has no room for a byte."""
    told = refused("checkpoint llama3-8b --scale 1/4096 --to /proc/checkpoints")
    assert "0 B that are free at /proc" in told
    assert told.endswith("Make some room there, or name another directory\n")


@pytest.mark.parametrize(
    ("made", "told"), [(1, "between saves"), (0, "No checkpoint was measured")]
)
def test_a_run_whose_time_ended_before_a_save_says_so(made: int, told: str) -> None:
    saved = study(saves=[save()] * made).checkpoints
    found = conclude(build_run().with_job(saves=saved)).job.verdict
    assert told in found.sentence
    missing = {each.rule for each in evaluate(build_run().with_job(saves=saved))}
    assert ("checkpoint.unmeasured" in missing) == (not made)


@pytest.mark.parametrize(
    ("waited_s", "durable_s", "told"), [(0.0, 90.0, True), (0.0, 1e-4, False), (50.0, 90.0, False)]
)
def test_saves_that_no_repetition_lets_wait_are_told(
    waited_s: float, durable_s: float, told: bool
) -> None:
    """One asynchronous save in each repetition waits for none, however long it takes."""
    doc = load_run(Path(__file__).parents[1] / "golden/0.1.0/runs/beside-saves/run.json")
    assert isinstance(doc, TrainingRecord)
    saves = [
        each.model_copy(update={"waited_s": waited_s, "durable_s": durable_s})
        for each in doc.job.saves.saves
    ]
    study = doc.job.saves.model_copy(update={"saves": saves, "every": 2})
    verdict = conclude(doc.with_job(saves=study)).job.verdict
    assert ("each waits for the one before" in verdict.sentence) == told


def test_the_first_asynchronous_save_waits_for_none() -> None:
    """Its 36 microseconds are no wait: 12 of 12 saves were said to have waited."""
    times = ((3.6e-5, 0.05), (0.8, 0.85), (0.8, 0.85))
    doc = study(saves=[save(waited_s=waited, blocked_s=blocked) for waited, blocked in times])
    found = back_pressure(doc)
    assert found.evidence.startswith("2 of 3 saves had to wait for the previous one, 1.60 s")


@pytest.mark.parametrize("waited_s", [None, 0.8])
def test_no_asynchronous_writer_is_advised_to_one(waited_s: float | None) -> None:
    gain = Estimate(value=1.8, low=1.7, high=1.9, n=5)
    kept = study(saves=[save(waited_s=waited_s)] * 3).checkpoints
    doc = build_run(measured=1100, au=0.95, ablations=[Ablation(stage="checkpoint", gain=gain)])
    verdict = conclude(doc.with_job(saves=kept)).job.verdict
    (advice,) = verdict.advice
    assert advice.id == "faster-saves"
    assert ("an asynchronous writer" in advice.change) == (waited_s is None)
