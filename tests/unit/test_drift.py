"""How much equal runs differ: planted drift is found, and no change, place or setting is in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from iobench.ask.compare.claims import drift_of, like
from iobench.record.run import TrainingRecord
from tests.unit.test_compare import document


def runs(factors: list[float], *, sd: float = 0.0, seed: int = 0, **changes: Any) -> list[Any]:
    """A run a day whose three repetitions are around 100 samples/s times its factor."""
    chance = np.random.default_rng(seed)
    found = []
    for number, factor in enumerate(factors):
        rate = 100 * factor * math.exp(chance.normal(0, sd))
        found.append(
            TrainingRecord.model_validate(
                document(
                    [rate * 0.999, rate, rate * 1.002],
                    run_id=f"r{number}",
                    created=f"2026-01-{number // 2 + 1:02d}T{number % 2:02d}:00:00+00:00",
                    **changes,
                )
            )
        )
    return found


@pytest.mark.parametrize("sd", [0.01, 0.04])
def test_planted_drift_is_found_beside_another_level_of_other_settings(sd: float) -> None:
    slow = runs([0.5] * 30, sd=sd, seed=1, workload__loader={"workers": 1})
    found = drift_of([*runs([1.0] * 30, sd=sd), *slow], "samples_per_s")
    assert found.sd == pytest.approx(sd, rel=0.25)
    assert (found.runs, found.degrees) == (60, 58)
    assert (found.first[:10], found.last[:10]) == ("2026-01-01", "2026-01-15")


def test_a_step_that_nothing_explains_is_drift() -> None:
    """Two runs an hour apart may lie on its two sides, although nothing was changed."""
    found = drift_of(runs([1.0] * 10 + [0.5] * 10, sd=0.01), "samples_per_s")
    assert found.sd == pytest.approx(math.log(2) / 2, rel=0.1)


def test_two_runs_make_it_by_hand() -> None:
    pair = runs([1.0, math.exp(0.1)])
    other = runs([2.0, 2.0 * math.exp(-0.1)], workload__batch_size=99)
    found = drift_of([*pair, *other], "samples_per_s")
    # each pair: (0.05**2 + 0.05**2) / 1; two pairs have the same variance
    assert found.sd == pytest.approx(math.sqrt(0.005))
    assert found.degrees == 2


def test_too_few_equal_runs_tell_no_drift() -> None:
    assert drift_of(runs([1.0] * 3), "samples_per_s") is None
    assert drift_of(runs([1.0] * 5), "blocked_s") is None
    assert drift_of(runs([1.0] * 5, validity="invalid"), "samples_per_s") is None
    each_another = [
        one
        for workers in range(5)
        for one in runs([1.0], workload__loader={"workers": workers}, host__kernel=str(workers))
    ]
    assert drift_of(each_another, "samples_per_s") is None


def test_runs_like_a_run_are_of_its_place_and_ask_the_same() -> None:
    here = runs([1.0] * 2)
    more = runs([1.0], storage__url="/b") + runs([1.0], host__node="b")
    asked = runs([1.0], workload__batch_size=9)
    settings = runs([1.0], workload__loader={"workers": 9})
    assert like(here[0], [*here, *more, *asked, *settings]) == [*here, *settings]
