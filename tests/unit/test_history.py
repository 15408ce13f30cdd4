"""A workload over time: planted changes are found where they are, noise is none, and what changed
beside them is named.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from iobench.ask.compare.changes import change_points
from iobench.ask.compare.claims import drift_of, like
from iobench.ask.compare.history import history
from iobench.record.run import TrainingRecord
from iobench.report.history import sections
from iobench.report.render_text import render_text
from tests.processes import completed, printed
from tests.unit.test_compare import document, keep

START = datetime(2026, 1, 1, tzinfo=UTC)


def runs(
    factors: list[float], *, seed: int = 0, kernels: dict[int, str] | None = None
) -> list[dict[str, Any]]:
    """A run a day, 5 repetitions each, of 100 samples/s times its factor, with 2 % of noise."""
    chance = np.random.default_rng(seed)
    made = []
    kernel = "6.1"
    for number, factor in enumerate(factors):
        kernel = (kernels or {}).get(number, kernel)
        rates = (100 * factor * chance.lognormal(0, 0.02, 5)).tolist()
        made.append(
            document(
                rates,
                run_id=f"r{number}",
                created=(START + timedelta(days=number)).isoformat(),
                host__kernel=kernel,
            )
        )
    return made


def found(documents: list[dict[str, Any]]) -> Any:
    return history(
        "w", [TrainingRecord.model_validate(each) for each in documents], "samples_per_s"
    )


def test_planted_changes_are_found_where_they_are() -> None:
    one = found(runs([1.0] * 8 + [0.8] * 6 + [0.95] * 8, kernels={8: "6.5"}))
    assert [(point.at, point.better) for point in one.points] == [(8, False), (14, True)]
    ratio = one.points[0].ratio
    assert ratio.value == pytest.approx(0.8, abs=0.06)
    assert ratio.low < 0.8 < (ratio.high or 0)
    assert one.points[0].changed == ("host.kernel: 6.1 -> 6.5",)
    assert one.points[1].changed == ()
    assert (one.answer, one.possible) == ("changed", None)


def test_the_spread_of_equal_runs_is_told_without_a_planted_change() -> None:
    one = found(runs([1.0] * 8 + [0.5] * 8))
    assert one.within < 0.05 < one.drift.sd
    told = sections([one], [])[0].sentences
    assert "between the changes" in told[0]
    assert "with them it is" in told[1]


def test_repetitions_of_a_run_are_one_value() -> None:
    """A run that is far off, with a hundred repetitions, is one odd run and no change."""
    documents = runs([1.0] * 10 + [0.5] + [1.0] * 9)
    rates = documents[10]["job"]["repetitions"]
    documents[10]["job"]["repetitions"] = rates * 20
    one = found(documents)
    assert (one.points, one.answer) == ((), "no change")


@pytest.mark.parametrize(
    ("before", "after", "answer", "told"),
    [
        (4, 4, "changed", True),
        (18, 2, "changed", True),
        (6, 2, "inconclusive", False),  # p of 8 runs is 2 / 28 at best
        (1, 1, "inconclusive", False),
        (12, 1, "inconclusive", False),  # until the next run confirms it
    ],
)
def test_a_large_step_is_told_or_possible(before: int, after: int, answer: str, told: bool) -> None:
    one = found(runs([1.0] * before + [2.7] * after, kernels={before: "6.5"}))
    assert one.answer == answer
    assert bool(one.points) == told
    point = one.points[0] if told else one.possible
    assert (point.at, point.better, point.changed) == (before, True, ("host.kernel: 6.1 -> 6.5",))
    assert point.ratio.value == pytest.approx(2.7, rel=0.05)
    assert (point.more is None, point.why == "") == (told or before == 1, told)
    assert (one.why == "") == told


def test_an_invalid_run_is_shown_and_does_not_count() -> None:
    """Five warm runs among cold ones are no change; what changed during them is told at the next
    run that counts, if that is one.
    """
    documents = runs([1.0] * 6 + [9.0] * 5 + [0.7] * 6, kernels={8: "6.5"})
    for each in documents[6:11]:
        each["validity"] = "invalid"
    documents[0]["validity"] = "unknown"
    one = found(documents)
    assert [(point.at, point.better, point.changed) for point in one.points] == [
        (11, False, ("host.kernel: 6.1 -> 6.5",))
    ]
    assert one.trend == pytest.approx(0.7, abs=0.05)
    assert sum(day.runs for day in one.days) == 12
    shown = render_text(sections([one], ()))
    assert (shown.count("INVALID"), len(one.entries)) == (5, 17)
    assert not found([{**each, "validity": "invalid"} for each in documents]).points


def test_history_as_a_user_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number, each in enumerate([*runs([1.0] * 5 + [0.8] * 5), *runs([1.0] * 2)]):
        if number >= 10:
            each["job"]["workload"]["batch_size"] = 99
        keep(f"results/{number:02d}", each)
    over_time = "compare results --over-time w"
    shown = printed(f"{over_time} --details")
    assert "WORSE: 0.8" in shown
    documents = json.loads(printed(f"{over_time} --json"))["histories"]
    # another batch size asks something else
    assert sorted((len(each["entries"]), each["answer"]) for each in documents) == [
        (2, "inconclusive"),
        (10, "changed"),
    ]
    assert documents[0]["points"][0]["ratio"]["value"] == pytest.approx(0.8, abs=0.03)
    assert documents[0]["drift"]["degrees"] == 9
    table = printed(f"{over_time} --format csv")
    assert (table.count("\n"), table.count("WORSE")) == (13, 1)
    (tmp_path / "results" / "half").mkdir()
    (tmp_path / "results" / "half" / "run.json").write_text("{")
    ended = completed(*f"{over_time} --details".split())
    assert "results/half" in ended.stdout.split("Left out")[1]
    assert "results/half" in ended.stderr


def test_runs_with_other_settings_are_another_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zigzag of settings is no change over time; steps that fitted into a budget are none."""
    monkeypatch.chdir(tmp_path)
    documents = runs([1.0, 2.0] * 5)
    for number, each in enumerate(documents):
        each["job"]["workload"]["loader"] = {"workers": 2 + number % 2}
        each["job"]["workload"]["max_steps"] = 10 + number
        each["job"]["fitted"] = {"asked_max_steps": 178}
        keep(f"results/{number}", each)
    histories = json.loads(printed("compare results --over-time w --json"))["histories"]
    assert [len(each["entries"]) for each in histories] == [5, 5]
    assert not any(each["points"] or each["possible"] for each in histories)
    assert sorted(each["workload"] for each in histories) == [
        "w on ? with loader.workers=2",
        "w on ? with loader.workers=3",
    ]


# Changes in a series


def planted(levels: list[float], *, spread: float = 0.02, seed: int = 0) -> list[float]:
    chance = np.random.default_rng(seed)
    return (100 * np.asarray(levels) * chance.lognormal(0, spread, len(levels))).tolist()


@pytest.mark.parametrize(
    ("levels", "at"),
    [
        ([1.0] * 10 + [0.8] * 5 + [1.0] * 10, [10, 15]),  # a dip that no single split tells
        ([1.0] * 18 + [0.8] * 2, [18]),
        ([1.0] * 2 + [0.8] * 18, [2]),
        ([1.0] * 5 + [0.3] + [1.0] * 4 + [0.85] * 10, [10]),  # one odd run hides nothing
        ([1.0] * 5 + [0.3] + [1.0] * 14, []),  # and is no change
        ([1.0] * 19 + [0.3], []),
        ([], []),
    ],
)
def test_planted_changes(levels: list[float], at: list[int]) -> None:
    assert [change.at for change in change_points(planted(levels))] == at


def test_runs_that_are_all_the_same_have_no_change() -> None:
    assert change_points([7.0] * 30) == []
    assert [change.at for change in change_points([7.0] * 5 + [8.0] * 5)] == [5]


def test_a_change_below_the_noise_threshold_does_not_count() -> None:
    steady = planted([1.0] * 10 + [0.97] * 10, spread=0.002)
    assert change_points(steady) == []
    assert [change.at for change in change_points(steady, noise=0.0)] == [10]


# Drift of equal runs


def equal_runs(
    factors: list[float], *, sd: float = 0.0, seed: int = 0, **changes: Any
) -> list[Any]:
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
    slow = equal_runs([0.5] * 30, sd=sd, seed=1, workload__loader={"workers": 1})
    found = drift_of([*equal_runs([1.0] * 30, sd=sd), *slow], "samples_per_s")
    assert found.sd == pytest.approx(sd, rel=0.25)
    assert (found.runs, found.degrees) == (60, 58)
    assert (found.first[:10], found.last[:10]) == ("2026-01-01", "2026-01-15")


def test_a_step_that_nothing_explains_is_drift() -> None:
    """Two runs an hour apart may lie on its two sides, although nothing was changed."""
    found = drift_of(equal_runs([1.0] * 10 + [0.5] * 10, sd=0.01), "samples_per_s")
    assert found.sd == pytest.approx(math.log(2) / 2, rel=0.1)


def test_two_runs_make_it_by_hand() -> None:
    pair = equal_runs([1.0, math.exp(0.1)])
    other = equal_runs([2.0, 2.0 * math.exp(-0.1)], workload__batch_size=99)
    found = drift_of([*pair, *other], "samples_per_s")
    # each pair: (0.05**2 + 0.05**2) / 1; two pairs have the same variance
    assert found.sd == pytest.approx(math.sqrt(0.005))
    assert found.degrees == 2


def test_too_few_equal_runs_tell_no_drift() -> None:
    assert drift_of(equal_runs([1.0] * 3), "samples_per_s") is None
    assert drift_of(equal_runs([1.0] * 5), "blocked_s") is None
    assert drift_of(equal_runs([1.0] * 5, validity="invalid"), "samples_per_s") is None
    each_another = [
        one
        for workers in range(5)
        for one in equal_runs(
            [1.0], workload__loader={"workers": workers}, host__kernel=str(workers)
        )
    ]
    assert drift_of(each_another, "samples_per_s") is None


def test_runs_like_a_run_are_of_its_place_and_ask_the_same() -> None:
    here = equal_runs([1.0] * 2)
    more = equal_runs([1.0], storage__url="/b") + equal_runs([1.0], host__node="b")
    asked = equal_runs([1.0], workload__batch_size=9)
    settings = equal_runs([1.0], workload__loader={"workers": 9})
    assert like(here[0], [*here, *more, *asked, *settings]) == [*here, *settings]
