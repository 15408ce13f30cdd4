"""How often to save, and what that costs: closed forms against the exact waste, worked examples,
and a study carried over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.analyse.checkpoint.interval import (
    daly_s,
    longest_save_at_best_s,
    longest_save_s,
    overhead,
    published_mtbf_s,
    waste,
    young_s,
)
from iobench.analyse.checkpoint.meaning import Training, meaning
from iobench.analyse.checkpoint.rules import MIN_BYTES, contention, tiny
from iobench.analyse.checkpoint.study import (
    spread,
    with_figures,
)
from iobench.schema.checkpoint import CheckpointRun, Save, Study
from iobench.schema.record import CheckpointRecord, TrainingRecord


@given(interval=st.floats(1, 1e6), blocked=st.floats(0.01, 1e4))
def test_without_failures_waste_is_overhead(interval: float, blocked: float) -> None:
    assert waste(interval, blocked, 1e15) == pytest.approx(overhead(interval, blocked), abs=1e-4)


@given(budget=st.floats(0.001, 0.2), interval=st.floats(10, 1e6), mtbf=st.floats(100, 1e8))
def test_the_longest_save_spends_the_budget(budget: float, interval: float, mtbf: float) -> None:
    assert overhead(interval, longest_save_s(budget, interval)) == pytest.approx(budget, rel=1e-9)
    save = longest_save_at_best_s(budget, mtbf)
    assert save / young_s(save, mtbf) == pytest.approx(budget, rel=1e-9)


def test_published_interruptions() -> None:
    """Llama 3's pre-training: 419 unexpected interruptions in 54 days on 16,384 accelerators, one
    every 3.1 hours.
    """
    assert published_mtbf_s(16_384) / 3600 == pytest.approx(54 * 24 / 419)
    assert published_mtbf_s(1) / 3600 == pytest.approx(50_700, rel=0.001)


def test_a_worked_example() -> None:
    """405B (5.3 TiB) on 16 k accelerators at 100 GB/s: a save of 57 s, to be taken every 18.7
    minutes, loses 10 % of the time.
    """
    blocked, mtbf = 5.17 * 2**40 / 100e9, published_mtbf_s(16_384)
    assert blocked == pytest.approx(57, rel=0.01)
    assert young_s(blocked, mtbf) / 60 == pytest.approx(18.7, rel=0.02)
    assert waste(young_s(blocked, mtbf), blocked, mtbf) == pytest.approx(0.10, abs=0.005)


# A study's figures


def save(step: int, blocked: float, **more: float | None) -> Save:
    return Save(
        step=step,
        blocked_s=blocked,
        accepted_s=more.pop("accepted_s", blocked),
        durable_s=more.pop("durable_s", blocked),
        bytes=10**9,
        files=1,
        **more,
    )  # type: ignore[arg-type]


def study(*saves: Save, **more: object) -> Study:
    settings: dict[str, object] = {
        "model": "llama3-8b",
        "writer": "stream",
        "ranks": 1,
        "bytes": 10**9,
        "full_bytes": 10**11,
        "tensors": 5,
    }
    return with_figures(Study(**{**settings, "files": 1, "saves": list(saves), **more}))  # type: ignore[arg-type]


def test_the_95th_percentile_of_few_is_not_known() -> None:
    """The largest value stands for it then."""
    few = spread([3.0, 1.0, 2.0])
    assert (few.p95, few.upper, few.mean) == (None, 3.0, 2.0)
    assert spread([float(n) for n in range(1, 20)]).p95 is None
    assert spread([float(n) for n in range(1, 21)]).p95 == 19.0
    assert spread([float(n) for n in range(1, 101)]).upper == 95.0


def test_a_save_too_small_to_measure_bandwidth_with_is_named() -> None:
    def doc(size: int, ranks: int) -> CheckpointRecord:
        checkpoint = study(save(1, 1.0), bytes=size, ranks=ranks)
        told: dict[str, Any] = {
            "command": [],
            "hosts": [],
            "storage": {},
            "job": CheckpointRun.model_validate(checkpoint.model_dump()),
        }
        return CheckpointRecord(
            run_id="r", created="", iobench_version="0", status="ok", validity="valid", **told
        )

    assert tiny(doc(MIN_BYTES, 1)) is None
    assert tiny(doc(10**11, 10**6)) is None  # the whole model is what it is
    assert "2 ranks are too few" in getattr(tiny(doc(MIN_BYTES, 2)), "evidence", "")


def test_a_scaled_study_is_carried_over_by_its_bytes() -> None:
    found = meaning(
        study(save(1, 1.0), save(2, 1.0)),
        Training(mtbf_s=10**6, accelerators=8, usd_per_accelerator_hour=2.0, samples_per_s=10.0),
    )
    assert found.blocked_s == pytest.approx(100.0)  # 1 s for a hundredth of the bytes
    assert found.interval_s == pytest.approx(daly_s(100.0, 10**6))
    assert found.lost_s_per_day == pytest.approx(found.waste * 86_400)
    assert found.lost_usd_per_day == pytest.approx(found.waste * 24 * 8 * 2.0)
    assert found.lost_samples_per_day == pytest.approx(found.waste * 86_400 * 10)
    assert min(share for _, share in found.curve) == pytest.approx(found.waste, rel=1e-3)
    assert found.fits_notice
    assert "save every" in found.sentence


def beside(doc: TrainingRecord, *, loaded: list[Save], alone: list[Save]) -> TrainingRecord:
    """A mixed run in which reads take as long as without saves."""
    return doc.with_job(quiet=doc.job.repetitions[0], saves=study(*loaded, alone=alone))


@pytest.mark.parametrize(
    ("loaded_s", "alone_s", "told"),
    [
        (2.0, 1.0, "2.00 x"),  # a save takes twice as long
        (1.05, 1.0, None),
        (1.0, 0.0, "unknown"),  # a clock that stood still
        (1.0, None, "unknown"),
        (None, 1.0, "unknown"),
    ],
)
def test_how_loads_slow_saves_down(
    make_run: Callable[..., TrainingRecord],
    loaded_s: float | None,
    alone_s: float | None,
    told: str | None,
) -> None:
    def saved(end_s: float | None) -> list[Save]:
        return [save(1, 0.5, accepted_s=end_s, durable_s=end_s)]

    doc = beside(
        make_run(repetition={"read_s": 1.0, "bytes_read": 10**9}),
        loaded=saved(loaded_s),
        alone=saved(alone_s),
    )
    found = contention(doc)
    if told is None:
        assert found is None
    else:
        assert found.known is (told != "unknown")
        assert not found.known or told in found.evidence
