"""After how many epochs a conversion has paid, of sweeps whose figures are planted."""

from __future__ import annotations

from typing import Any

import pytest

from iobench.ask.tuning.points import payback
from iobench.record.sweep import Sweep, SweepPoint
from iobench.report.render_text import render_text
from iobench.report.sections import first_screen
from iobench.report.sweep import sections
from tests.unit.conftest import build_sweep

TODAY = {"dataset.format": "files", "loader.workers": 4}


def point(rates: list[float], generated_s: float | None = None, **settings: Any) -> SweepPoint:
    changed = {f"{key.replace('__', '.')}": value for key, value in settings.items()}
    return SweepPoint(
        settings={**TODAY, **changed},
        figures=rates,
        seconds=[1.0] * len(rates),
        runs=[f"run-{number}" for number, _ in enumerate(rates)],
        samples=1000,
        generated_s=generated_s,
    )


def sweep(*points: SweepPoint, default: dict[str, Any] | None = TODAY) -> Sweep:
    return build_sweep(
        axes={"dataset.format": ["files", "tar"], "loader.workers": [4, 8]},
        points=[*points],
        default=default,
    )


TAR = {"dataset__format": "tar"}


def test_what_is_read_once_and_written_is_won_back_by_each_epoch() -> None:
    """Epochs of 10 s become epochs of 2 s, and to write the data took 6 s."""
    tar = point([480, 500, 510], 6.0, **TAR)
    found = payback(sweep(point([99, 100, 101], 3.0), tar), tar)
    assert found is not None
    assert (found.what, found.convert_s, found.saved_s) == ("format=tar", 16.0, 8.0)
    assert found.epochs == 2.0
    assert "2 epochs" in found.told


def test_the_data_is_compared_with_the_points_own_other_settings() -> None:
    """With 8 workers, tar is no faster; that workers are is no merit of the data."""
    files, more = point([100], 3.0), point([500], loader__workers=8)
    tar, both = point([200], 6.0, **TAR), point([490], 6.0, **TAR, loader__workers=8)
    all_of_them = sweep(files, more, tar, both)
    assert payback(all_of_them, both) is None
    alone = payback(all_of_them, tar)
    assert alone is not None
    assert alone.saved_s == 5.0


@pytest.mark.parametrize(
    ("rates", "generated_s", "default"),
    [
        ([101, 500], 6.0, TODAY),  # the slowest trial is as slow as today's fastest
        ([500, 510], None, TODAY),  # the data was there already
        ([500, 510], 6.0, None),  # today's settings are not known
        ([], 6.0, TODAY),
    ],
)
def test_what_is_not_known_is_not_said(
    rates: list[float], generated_s: float | None, default: dict[str, Any] | None
) -> None:
    tar = point(rates, generated_s, **TAR)
    made = sweep(point([90, 101]), tar, default=default)
    assert payback(made, tar) is None
    assert "pays back" not in render_text(first_screen(sections(made)))


def test_the_first_screen_says_it() -> None:
    made = sweep(point([100]), point([500], 6.0, **TAR))
    assert "format=tar pays back after at most 2 epochs" in " ".join(
        render_text(first_screen(sections(made))).split()
    )
