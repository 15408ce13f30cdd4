"""How long a run should take, and the run that fits into a time."""

from __future__ import annotations

import itertools
import re
import time
from pathlib import Path
from typing import Any

import pytest

from iobench.cli import live as living
from iobench.cli import telling
from iobench.cli.live import Live
from iobench.cli.terminal import whole_seconds
from iobench.errors import UsageError
from iobench.runner import estimate as estimating
from iobench.runner.estimate import (
    LONG_S,
    START_S,
    TimeLeft,
    calibrating_s,
    estimate,
    shorter,
    total,
)
from iobench.runner.experiment import Options
from iobench.runner.fit import (
    KNOCK_OUTS,
    MIN_REPETITIONS,
    REPETITIONS,
    Asked,
    Budget,
    Given,
    Pilot,
    check_budget,
    choose,
)
from iobench.runner.plan import Plan, make_plan
from iobench.schema.workload import Workload
from tests.conftest import MakeDataset

SAMPLES, BATCH, EPOCHS = 60, 4, 2
STEPS = EPOCHS * SAMPLES // BATCH


@pytest.fixture
def make(make_dataset: MakeDataset) -> Any:
    _, folder = make_dataset(samples=SAMPLES)

    def plan(*, repetitions: int = 6, step_time: float | None = 0.1, **changes: Any) -> Plan:
        kind = {"kind": "emulated", "step_time": step_time} if step_time else {"kind": "null"}
        given = {
            "name": "w",
            "dataset": "demo",
            "accelerator": kind,
            "batch_size": BATCH,
            "epochs": EPOCHS,
            **changes,
        }
        workload = Workload.model_validate(given)
        return make_plan(workload, str(folder), accelerators=1, repetitions=repetitions, seed=0)

    return plan


def options(**changes: Any) -> Options:
    given = {"calibration_s": 0.0, "knock_outs": False, **changes}
    return Options(results=Path("results"), **given)


def seconds(plan: Plan, *, part: str = "measure", of: Options | None = None, **known: Any) -> float:
    found = {each.part: each for each in estimate(plan, of or options(), **known)}[part].seconds
    assert found is not None
    return found


def test_repetitions_take_the_accelerators_steps_at_least(make: Any) -> None:
    (part,) = estimate(make(), options())
    assert part.part == "measure"
    assert part.at_least
    assert part.seconds == pytest.approx(6 * (STEPS * 0.1 + (1 + EPOCHS) * START_S))


def test_a_slower_stage_makes_them_longer(make: Any) -> None:
    """60 samples twice at 4 samples/s: 30 s instead of 3 s."""
    fed, starved = seconds(make(), samples_per_s=4000.0), seconds(make(), samples_per_s=4.0)
    assert starved - fed == pytest.approx(6 * (SAMPLES * EPOCHS / 4 - STEPS * 0.1))
    assert not estimate(make(), options(), samples_per_s=4.0)[0].at_least


def test_a_measured_repetition_says_it_best(make: Any) -> None:
    assert seconds(make(), samples_per_s=4.0, repetition_s=2.0) == 12.0


def test_the_number_of_steps_counts(make: Any) -> None:
    short = make(max_steps=5)
    assert seconds(short) == pytest.approx(6 * (0.5 + 2 * START_S))


def test_without_a_step_time_it_is_not_known_before_the_ceilings(make: Any) -> None:
    plan = make(step_time=None)
    (part,) = estimate(plan, options())
    assert (part.seconds, bool(part.not_known)) == (None, True)
    assert total([part]) == (0.0, True)
    assert seconds(plan, samples_per_s=120.0) > 6.0


def test_ceilings_and_the_search_are_parts_of_their_own(make: Any) -> None:
    parts = estimate(make(), options(calibration_s=3.0, find_max=True))
    assert [part.part for part in parts] == ["calibrate", "measure", "find_max"]
    assert seconds(make(), part="calibrate", of=options(calibration_s=3.0)) > 3 * seconds(
        make(), part="calibrate", of=options(calibration_s=0.1)
    )


def test_knock_outs_take_as_long_as_the_repetitions_or_their_budget(make: Any) -> None:
    again = seconds(make(), part="knock_outs", of=options(knock_outs=True))
    assert again == seconds(make())
    limited = options(knock_outs=True, knock_outs_s=7.0)
    assert seconds(make(), part="knock_outs", of=limited) == 7.0


def test_what_makes_a_long_run_shorter_does_so(make: Any) -> None:
    assert shorter(make(), estimate(make(), options())) == []
    long = make(step_time=10.0)
    flags = shorter(long, estimate(long, options()))
    assert [flag.split("=")[0].split()[0] for flag in flags] == ["--set", "--set", "--repeat"]
    steps = int(flags[0].rpartition("=")[2])
    assert 0 < total(estimate(make(step_time=10.0, max_steps=steps), options()))[0] <= LONG_S
    assert total(estimate(make(step_time=10.0, max_steps=steps + 2), options()))[0] > 0.95 * LONG_S


def test_the_time_left_gets_less(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(estimating.time, "monotonic", lambda: now[0])
    left = TimeLeft(make(step_time=1.0), options())
    first, more = left.seconds()
    assert more
    now[0] += 10.0
    assert left.seconds()[0] == pytest.approx(first - 10.0)
    left.samples_per_s = SAMPLES * EPOCHS / 50.0  # 50 s for a repetition
    assert left.seconds() == (pytest.approx(6 * (50.0 + (1 + EPOCHS) * START_S) - 10.0), False)
    now[0] += 20.0
    left.finished("measure", 30.0)
    assert left.seconds()[0] == pytest.approx(5 * 30.0)
    for _ in range(5):
        left.finished("measure", 30.0)
    assert left.seconds()[0] == 0.0


# A run that fits

ASKED = Asked(calibration_s=3.0)


@pytest.mark.parametrize("limit_s", [10.0, 60.0, 300.0])
@pytest.mark.parametrize("rate", [50.0, 1e4])
@pytest.mark.parametrize("start_s", [0.1, 2.0])
def test_a_chosen_run_fits(make: Any, limit_s: float, rate: float, start_s: float) -> None:
    plan = make(epochs=100_000, step_time=1e-4)
    fitted = choose(plan, Pilot(samples_per_s=rate, start_s=start_s), limit_s, ASKED)
    assert MIN_REPETITIONS <= fitted.plan.repetitions <= REPETITIONS
    steps = fitted.plan.workload.max_steps
    assert steps
    each = start_s + steps * BATCH / rate
    ceilings_s = calibrating_s(
        plan,
        fitted.calibration_s,
        repetitions=REPETITIONS,
        least_s=3 * max(1, plan.workload.loader.workers) * BATCH / rate,
        start_s=min(START_S, start_s),
    )
    spent = ceilings_s + fitted.plan.repetitions * each + fitted.knock_outs_s
    assert spent <= max(limit_s, fitted.least_s / 0.8 + fitted.knock_outs_s) + 1e-6
    if limit_s >= 60.0:
        assert spent > 0.8 * limit_s


def test_a_short_run_is_not_limited(make: Any) -> None:
    fitted = choose(make(), Pilot(samples_per_s=1e6, start_s=0.1), 60.0, ASKED)
    assert fitted.plan.workload.max_steps is None
    assert fitted.plan.repetitions == REPETITIONS


def test_a_pilot_that_saw_no_batch(make: Any) -> None:
    plan = make(step_time=None)
    fitted = choose(plan, Pilot(samples_per_s=None, start_s=5.0), 10.0, ASKED)
    assert fitted.plan.workload.max_steps == 1
    assert fitted.plan.repetitions == MIN_REPETITIONS


def test_what_is_given_stays(make: Any) -> None:
    plan = make(epochs=100_000, max_steps=7, repetitions=2)
    asked = Asked(calibration_s=0.4, knock_outs_s=5.0)
    given = frozenset[Given](("repetitions", "steps", "calibration", "knock_outs"))
    fitted = choose(plan, Pilot(samples_per_s=50.0, start_s=0.1), 60.0, asked, given)
    assert (fitted.plan, fitted.calibration_s, fitted.knock_outs_s) == (plan, 0.4, 5.0)
    more = choose(plan, Pilot(samples_per_s=50.0, start_s=0.1), 60.0, asked, given - {"steps"})
    assert more.plan.repetitions == 2
    assert fitted.least_s > 0.8 * (5.0 + 2 * 7 * BATCH / 50.0)


def test_advice_that_is_tried_takes_its_share(make: Any) -> None:
    plan, pilot = make(epochs=100_000), Pilot(samples_per_s=50.0, start_s=0.1)
    alone = choose(plan, pilot, 60.0, Asked(calibration_s=3.0, knock_outs=False))
    both = choose(plan, pilot, 60.0, Asked(calibration_s=3.0, confirms=True))
    assert alone.knock_outs_s == pytest.approx((1 + KNOCK_OUTS + 1) * both.knock_outs_s)


def test_a_budget_that_is_too_short_names_the_least(make: Any) -> None:
    plan = make(epochs=100_000, step_time=10.0)
    short = Budget(seconds=2.0, ends_s=time.monotonic() + 2.0)
    with pytest.raises(UsageError, match="at least") as refused:
        check_budget(plan, ASKED, short)
    least = int(re.findall(r"at least (\d+)s", str(refused.value))[0])
    assert least > 0.8 * MIN_REPETITIONS * 10
    enough = Budget(seconds=least, ends_s=time.monotonic() + least + 1.0)
    check_budget(plan, ASKED, enough)


# Lines where there is no terminal


class _Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(living.time, "monotonic", lambda: self.now)


def test_a_line_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = _Clock(monkeypatch)
    live = Live(quiet=False, lines=True)
    live.phase("repetition 1 of 2")
    when = []
    for clock.now in range(300):
        live.steps(int(clock.now))
        if capsys.readouterr().err:
            when.append(clock.now)
    assert when[:3] == [10, 15, 20]
    gaps = [later - sooner for sooner, later in itertools.pairwise(when)]
    assert set(gaps) <= {5, 30, 30 + 5}
    assert gaps[-1] == 30


@pytest.mark.parametrize("how", [{"quiet": True, "lines": True}, {"quiet": False}])
def test_no_line_if_not_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: dict[str, bool]
) -> None:
    clock = _Clock(monkeypatch)
    live = Live(**how)
    live.phase("repetition 1 of 2")
    clock.now = 100.0
    live.steps(7)
    live.close()
    assert capsys.readouterr().err == ""


def test_a_run_is_announced_unless_quiet(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    plan = make(step_time=1.0)
    telling.RunTold(plan, options(), quiet=True).announce()
    assert capsys.readouterr().err == ""
    telling.RunTold(plan, options(calibration_s=3.0), quiet=False).announce()
    told = capsys.readouterr().err
    assert told.count("\n") == 4
    assert "iobench: " not in told


def test_a_long_run_is_warned_of_once(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told = telling.RunTold(make(step_time=30.0), options(), quiet=False)
    told.announce()
    assert capsys.readouterr().err.count("iobench: ") == 1
    told.rate(0.01)
    assert capsys.readouterr().err.count("iobench: ") == 0


def test_a_run_that_turns_out_long_is_warned_of(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    told = telling.RunTold(make(), options(), quiet=False)
    told.announce()
    assert "iobench: " not in capsys.readouterr().err
    told.rate(0.01)
    assert capsys.readouterr().err.count("iobench: ") == 1


@pytest.mark.parametrize(
    ("given", "shown"), [(0.2, "1 s"), (6.4, "6 s"), (99.4, "99 s"), (125.0, "2 min 5 s")]
)
def test_whole_seconds(given: float, shown: str) -> None:
    assert whole_seconds(given) == shown
