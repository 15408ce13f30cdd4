"""Repetitions that a budget cut: a good part of each is its fill, and of the batches after that,
some were made during it. Demand 1,000 samples/s of one accelerator, whose rank has 8 workers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from iobench.judge.promise import shown
from iobench.record.run import TrainingRecord
from iobench.record.verdict import Estimate
from iobench.report.answer import answer
from tests.unit.conftest import build_run
from tests.unit.test_causes import without

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


def test_the_first_screen_has_the_figures_of_the_verdict(cut: Cut) -> None:
    doc = cut(busy=0.80, steps=80, rates={"prep": 1200})
    screen = answer(doc)
    utilization, samples = screen.gauges[0], screen.gauges[-1]
    assert "80.0 % busy" in doc.job.verdict.explanation + doc.job.verdict.sentence
    assert "80.0 % busy after the first batch" in " ".join(screen.sentences)
    assert utilization.text.startswith("80.0 % after the first batch, 36.0 %")
    assert (utilization.share, samples.value) == (pytest.approx(0.8), "800")
    assert screen.picture.rows[-1].cells[1].value == pytest.approx(800)


def test_a_utilization_that_is_not_known_after_the_first_batch_says_so(cut: Cut) -> None:
    """It is far below what is required, beside a sentence that says that no change is needed."""
    doc = cut(busy=0.98, steps=16, rates={"prep": 1200})
    screen = answer(doc)
    assert doc.job.verdict.bottleneck == "accelerator"
    told = "44.1 % [44.1 %, 44.1 %] with the first batch, not known after it; 90 % required"
    assert screen.gauges[0].text == told
