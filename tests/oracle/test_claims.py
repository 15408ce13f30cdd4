"""Claims about runs against a simulated truth: runs whose ratio, noise and drift are planted.

Everything is computed from seeded random numbers, so the shares are the same on each machine. A
share is tested against what is promised with the room that its number of trials leaves: a true rate
of 5 % would pass in 99.9 % of simulations.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from iobench.ask.compare.claims import Sides, claim, claims_at_once, combined, drift_of, excludes_1
from tests.simulated import World, at_most, medians, record, repetitions
from tools.claim_rates import (
    HISTORY_WORLDS,
    LENGTHS,
    MAX_WRONG,
    METRIC,
    SITUATIONS,
    TRIALS,
    TURN_WORLDS,
    WALKS,
    WORLDS,
    Situation,
    compared,
    drift,
    histories,
    in_turns,
)
from tools.cloud_noise import CLOUDS, Cloud, answers, generated, read, windows_of
from tools.cloud_noise import main as cloud_noise


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
@pytest.mark.parametrize("world", WORLDS, ids=str)
def test_runs_are_not_called_different_or_equal_by_chance(
    world: World, situation: Situation
) -> None:
    found = compared(world, situation)
    assert found.false_different <= at_most(MAX_WRONG, TRIALS), found
    assert found.wrong_equal <= at_most(MAX_WRONG, TRIALS), found


@pytest.mark.parametrize("world", WALKS, ids=str)
def test_runs_in_turns_bear_a_level_that_walks(world: World) -> None:
    """Runs of one side before those of the other do not: docs/statistics.md says so."""
    assert compared(world, Situation(6, in_turns=True)).held
    assert compared(WALKS[-1], Situation(6)).false_different > 2 * MAX_WRONG


LATER = [pytest.mark.alone, pytest.mark.nightly]
"""Run by ``make oracles`` alone: where repetitions differ by 10 %, many turns are simulated."""

TURNS = [
    pytest.param(world, id=str(world), marks=LATER if world.cv == 0.1 else [])
    for world in TURN_WORLDS
]


@pytest.mark.parametrize("world", TURNS)
def test_turns_tell_a_tenth_within_the_promised_number(world: World) -> None:
    found = in_turns(world)
    assert found.held, found


def test_histories_without_a_change_rarely_have_one() -> None:
    found = [histories(world, runs) for world in HISTORY_WORLDS for runs in LENGTHS]
    assert all(each.held for each in found), found
    shares, trials = [each.false for each in found], sum(each.trials for each in found)
    assert sum(shares) / len(shares) <= at_most(MAX_WRONG, trials), found


def test_drift_of_recorded_runs_makes_one_run_a_side_enough() -> None:
    """Ten earlier runs, then six pairs of runs that are compared one with one."""
    rng = np.random.default_rng(5)
    world, trials, earlier, pairs = World(cv=0.01, drift=0.03), 60, 10, 6
    truth = medians(rng, world, 4000, 1)
    wrong, variances = 0, []
    for _ in range(trials):
        rates = repetitions(rng, world, 1, earlier)[0].tolist()
        known = drift_of([record(run, hour) for hour, run in enumerate(rates)], METRIC)
        variances.append(known.sd**2)
        for after, before in medians(rng, world, pairs, 2).tolist():
            found = claim(METRIC, Sides(candidate=[after], baseline=[before], drift=known))
            wrong += found.answer == "different"
    assert math.sqrt(np.mean(variances)) == pytest.approx(np.log(truth).std(), rel=0.1)
    assert wrong / (trials * pairs) <= at_most(MAX_WRONG, trials)


@pytest.mark.parametrize("restless", [0.05, 0.08])
def test_a_calm_place_does_not_stand_for_a_restless_one(restless: float) -> None:
    """30 earlier runs at 1 % and 5 that differ by more: one run a side, of equal storages."""
    rng = np.random.default_rng(6)
    calm, trials = World(cv=0.01), 1000
    other, wrong = World(cv=0.0, drift=restless), 0
    earlier = (medians(rng, calm, trials, 30), medians(rng, other, trials, 5))
    pairs = zip(medians(rng, calm, trials, 1), medians(rng, other, trials, 1), strict=True)
    for one, two, (before, after) in zip(*earlier, pairs, strict=True):
        known = combined([drift(one), drift(two)])
        found = claim(
            METRIC, Sides(candidate=after.tolist(), baseline=before.tolist(), drift=known)
        )
        wrong += found.answer == "different"
    assert wrong / trials <= at_most(MAX_WRONG, trials)


def test_several_metrics_together_are_rarely_different_by_chance() -> None:
    """Five metrics of equal runs, independent of one another: the worst case for Holm."""
    rng = np.random.default_rng(3)
    world, trials, metrics, runs = World(cv=0.1, drift=0.03), 400, 5, 6
    values = medians(rng, world, trials * metrics, 2 * runs).reshape(trials, metrics, 2, runs)
    wrong = 0
    for trial in values.tolist():
        sides = {
            f"metric {number}": Sides(candidate=one, baseline=other, higher_is_better=True)
            for number, (one, other) in enumerate(trial)
        }
        wrong += any(map(excludes_1, claims_at_once(sides).values()))
    assert wrong / trials <= at_most(MAX_WRONG, trials)


GOES_WRONG = {
    "storage stacks": "compare, 4 after 4",
    "caches of VMs": "compare --over-time, 40 runs",
    "noisy neighbours": "compare --over-time, 40 runs",
    "burst credits": "compare --over-time, 40 runs",
}
"""What docs/statistics.md promises nothing of; if it were right, the page would warn of nothing."""


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.name)
def test_the_noise_of_clouds_breaks_no_promise(cloud: Cloud) -> None:
    """The noise is that which the page states, and a change of 10 % is found where it can be."""
    windows = generated(cloud)
    logs = np.log(windows)
    if not cloud.bursts and not cloud.steps:
        assert logs.std() == pytest.approx(cloud.cv, rel=0.1)
        neighbours = np.corrcoef(logs[:, 1:].ravel(), logs[:, :-1].ravel())[0, 1]
        assert neighbours == pytest.approx(cloud.correlation, abs=0.05)
    if cloud.bursts:
        assert (windows < 1 - cloud.burst / 2).mean() == pytest.approx(cloud.bursts, abs=0.015)
    found = {each.method: each for each in answers(windows)}
    assert [each.method for each in found.values() if not each.held] == []
    assert sum(each.promised for each in found.values()) == 2
    assert found["ab"].found >= (0.9 if cloud.cv < 0.1 else 0.4)
    if cloud.name in GOES_WRONG:
        assert found[GOES_WRONG[cloud.name]].false > MAX_WRONG


def test_the_files_of_a_cloud_are_read_by_machine_and_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns as in Azure's VM noise dataset; the rows of two machines, in no order."""
    rows = [
        f"{100 + machine + 0.001 * number},33.2,2023-06-{1 + number // 24:02} "
        f"{number % 24:02}:06:09.190,{machine}"
        for machine in range(2)
        for number in range(45)
    ]
    path = tmp_path / "MiBs.csv"
    path.write_text("\n".join(["value,runtime,starttime,VM_id", *reversed(rows)]))
    assert [machine[0] for machine in read(path)] == [100, 101]
    assert all(machine == sorted(machine) for machine in read(path))
    assert windows_of(read(path)).shape == (2, 40)
    assert cloud_noise([str(path)]) == 0
    assert "| MiBs | ab | yes | 2 | 0.0 | 100.0 |" in capsys.readouterr().out
    path.write_text("time,rate\n1,2\n")
    assert cloud_noise([str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
