"""What counts as a confirmation of advice: trials that are valid and enough, and the difference
that was promised.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from iobench.ask.compare.comparison import Comparison, compare
from iobench.ask.compare.runs import Group
from iobench.ask.tuning.recommend import Recommendation, sweep_confirmation
from iobench.base.errors import UsageError
from iobench.record.run import TrainingRecord
from iobench.record.sweep import SweepPoint
from iobench.runner.sweeping.confirm import _trials
from tests.unit.test_compare import BASE, FAST, document


def point(folder: Path, validities: list[str]) -> SweepPoint:
    for number, validity in enumerate(validities):
        (folder / f"r{number}").mkdir(parents=True)
        (folder / f"r{number}" / "run.json").write_text(
            json.dumps(document([100.0 + number], validity=validity))
        )
    return SweepPoint(
        settings={"loader.workers": 4}, runs=[f"r{number}" for number in range(len(validities))]
    )


def test_trials_that_are_invalid_or_too_few_tell_nothing(tmp_path: Path) -> None:
    found = _trials(
        point(tmp_path / "some", ["valid", "invalid", "unknown", "valid", "valid"]),
        tmp_path / "some",
    )
    assert [run.median for run in found.values("samples_per_s")] == [100.0, 102.0, 103.0, 104.0]
    with pytest.raises(UsageError, match=r"\b3 of the 4\b.*\br1\b"):
        _trials(
            point(tmp_path / "broken", ["valid", "invalid", "valid", "valid"]), tmp_path / "broken"
        )
    with pytest.raises(UsageError, match=r"\b1 of the 4\b"):
        _trials(point(tmp_path / "late", ["valid"]), tmp_path / "late")


class Advised:
    def __init__(self, gain: float) -> None:
        self.gain = gain
        self.gain_low, self.gain_high = gain * 0.98, gain * 1.02


def compared(candidate: list[float]) -> Comparison:
    before, after = (
        Group("", [TrainingRecord.model_validate(document([rate])) for rate in rates])
        for rates in (BASE, candidate)
    )
    return compare(before, after, metrics=("samples_per_s",))


@pytest.mark.parametrize(
    ("gain", "fresh", "confirmed"),
    [
        (1.2, FAST, True),
        (1.2, BASE, False),
        (2.0, [rate * 1.1 for rate in BASE], False),  # better, but far from twice as fast
        (2.0, [rate * 1.6 for rate in BASE], False),
        (2.0, [rate * 1.9 for rate in BASE], True),  # within 5 % of the promise
        (2.0, [rate * 2.5 for rate in BASE], True),  # more than was promised
        (1.01, BASE, True),
        (1.01, FAST, True),
        (1.01, [80.0, 81, 82, 79, 78], False),
    ],
)
def test_a_promised_gain_is_confirmed_by_a_gain_alone(
    gain: float, fresh: list[float], confirmed: bool
) -> None:
    """Smaller settings that promised none are confirmed by no difference."""
    advice = cast(Recommendation, Advised(gain))
    assert sweep_confirmation(advice, compared(fresh), "").confirmed is confirmed
