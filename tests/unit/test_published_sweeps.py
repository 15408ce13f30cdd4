"""sweeps/published: each file loads, its settings are valid, and what it claims can be refuted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from iobench.base.errors import SpecError
from iobench.cli.main import parse
from iobench.record.sweep import Sweep, SweepPoint
from iobench.runner.sweeping.plan import plan_sweep
from iobench.settings.base import build
from tests.unit.conftest import build_sweep
from tools.published import PAGE, Published, Ratio, files, row

MAX_BYTES = 10**9

pytestmark = pytest.mark.nightly


def planned(spec: Published) -> Sweep:
    asked = build_sweep(
        workload=spec.workload,
        data_root="data",
        samples=spec.samples,
        overrides=spec.overrides,
        repetitions=spec.repeat,
        axes=spec.sweep,
    )
    return plan_sweep(asked, one_at_a_time=False)


def test_each_file_is_a_sweep_whose_points_have_the_ratios() -> None:
    found = files()
    assert len({spec.source for spec in found}) >= 6
    page = PAGE.read_text(encoding="utf-8")
    for spec in found:
        assert f"[{spec.name}]({spec.source})" in page, "run: make published"
        parse(spec.words("data"))
        sweep = planned(spec)
        sizes = {point.data: point.dataset_bytes for point in sweep.points}
        assert sum(sizes.values()) < MAX_BYTES
        settings = [each for point in sweep.points for each in (point.settings, *point.also)]
        for ratio in spec.ratios:
            assert ratio.candidate in settings, spec.name
            assert ratio.baseline in settings, spec.name
            # Far slower points than the best one are dropped, but for today's settings.
            slower = ratio.baseline if ratio.published > 1 else ratio.candidate
            assert slower == sweep.default or max(ratio.published, 1 / ratio.published) < 1.8


def measured(candidate: Sequence[float], baseline: Sequence[float], **ratio: Any) -> str:
    """The verdict of a file with one ratio, after a sweep with these figures."""
    sides = {"candidate": {"batch_size": 2}, "baseline": {"batch_size": 1}}
    asked = build(Ratio, {"compared": "two with one", **sides, **ratio}, where="here")
    spec = files()[0].model_copy(update={"ratios": [asked]})
    points = [
        SweepPoint(settings=sides[name], figures=list(values))
        for name, values in (("candidate", candidate), ("baseline", baseline))
    ]
    return row(spec, asked, build_sweep(axes={"batch_size": [1, 2]}, points=points))[-1]


ONE = [100, 101, 99, 100.5, 99.5]


def times(factor: float) -> list[float]:
    return [factor * value for value in ONE]


@pytest.mark.parametrize(
    ("factor", "asked", "verdict"),
    [
        (2.0, {"published": 2.05, "tolerance": 0.1}, "reproduced"),
        (3.0, {"published": 2.05, "tolerance": 0.1}, "not reproduced"),
        (1.86, {"published": 2.05, "tolerance": 0.1}, "inconclusive"),
        (1.2, {"published": 4.0}, "direction reproduced"),
        (0.5, {"published": 4.0}, "not reproduced"),
        (1.0, {"published": 4.0}, "not reproduced"),
        (0.8, {"published": 0.2}, "direction reproduced"),
        (1.2, {"published": 0.2}, "not reproduced"),
        (9.0, {"published": 2.0, "fitted": True}, "given"),
    ],
)
def test_the_comparison_can_fail(factor: float, asked: dict[str, Any], verdict: str) -> None:
    assert measured(times(factor), ONE, **asked) == verdict


def test_noise_and_missing_trials_are_inconclusive() -> None:
    assert measured([50, 100, 150, 200, 90], ONE, published=2.0) == "inconclusive"
    assert measured([200], [100], published=2.0, tolerance=0.1) == "inconclusive"
    assert measured([], ONE, published=2.0) == "inconclusive"


def test_a_ratio_of_one_is_refused_without_a_tolerance() -> None:
    with pytest.raises(SpecError, match="has no direction"):
        measured(ONE, ONE, published=1.03)
