"""Records in which parts were not measured: what is concluded rests on what is there.

Every combination of missing parts can come from a run that was cut short, from a storage that fio
cannot read, or from another version of iobench.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.ask.compare.claims import Sides, claim
from iobench.ask.compare.comparison import compare, outcome_of
from iobench.ask.compare.runs import Group
from iobench.ask.tuning.reasons import Bounds, fit
from iobench.base.errors import UsageError
from iobench.judge.checkpoint_meaning import waste
from iobench.judge.promise import shown
from iobench.judge.rebuild import conclude
from iobench.record.run import TrainingRecord, load_training
from iobench.record.verdict import Estimate
from iobench.report.answer import answer
from iobench.settings.workload import OWN_LOADER
from tests.unit.conftest import build_run
from tests.unit.test_causes import without

from .test_checkpoint_rules import study


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


def test_a_study_is_no_training(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(study().model_dump_json())
    with pytest.raises(UsageError):
        load_training(tmp_path)
    loaded = build_run()
    (tmp_path / "run.json").write_text(loaded.model_dump_json())
    assert load_training(tmp_path).job.workload == loaded.job.workload
    assert json.loads((tmp_path / "run.json").read_text())["job"]["kind"] == "training"


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


def test_a_utilization_that_is_not_known_after_the_first_batch_says_so(cut: Cut) -> None:
    """It is far below what is required, beside a sentence that says that no change is needed."""
    doc = cut(busy=0.98, steps=16, rates={"prep": 1200})
    screen = answer(doc)
    assert doc.job.verdict.bottleneck == "accelerator"
    told = "44.1 % [44.1 %, 44.1 %] with the first batch, not known after it; 90 % required"
    assert screen.gauges[0].text == told
