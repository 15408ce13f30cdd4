"""How long a run should take, and the run that fits into a time."""

from __future__ import annotations

import re
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from iobench.accelerate import recording
from iobench.base.errors import UsageError
from iobench.record.plan import PartTime
from iobench.runner import estimate as estimating
from iobench.runner.budget import Budget, Given
from iobench.runner.calibration import findmax
from iobench.runner.calibration.curve import budget_s
from iobench.runner.estimate import START_S, TimeLeft, Work, estimate, shorter
from iobench.runner.experiment import Options
from iobench.runner.fit import Pilot, check_budget, choose, too_short
from iobench.runner.plan import Plan, make_plan
from iobench.settings.workload import Workload
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
    given = {"calibration_s": 0.0, "ablations": False, **changes}
    return Options(results=Path("results"), **given)


def seconds(plan: Plan, *, part: str = "measure", of: Options | None = None, **known: Any) -> float:
    return {each.part: each for each in estimate(plan, of or options(), **known)}[part].seconds


def test_repetitions_take_the_accelerators_steps_at_least(make: Any) -> None:
    (part,) = estimate(make(), options())
    assert part.part == "measure"
    assert part.at_least
    assert part.seconds == pytest.approx(6 * (STEPS * 0.1 + (1 + EPOCHS) * START_S))


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


def test_a_search_in_a_small_dataset_has_few_and_short_tries(make: Any) -> None:
    """60 samples in batches of 4; a try of one rank alone may take 15 steps."""
    plan = make(loader={"workers": 1, "prefetch_factor": 1}, reader={"direct": False})
    assert plan.passes == 1
    found = seconds(plan, part="find_max", of=options(find_max=True))
    assert found == pytest.approx(3 * (15 * 0.1 + START_S))


def test_a_search_over_two_hosts_tries_more_accelerators(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60 samples are as many steps of one rank, and half as many of two, which is tried as well."""
    monkeypatch.setattr(findmax, "MAX_ACCELERATORS", 1)
    loader = {"workers": 1, "prefetch_factor": 1}
    plan = make(batch_size=1, loader=loader, reader={"direct": False})
    of = options(find_max=True)
    one, two = (seconds(plan, part="find_max", of=of, hosts=hosts) for hosts in (1, 2))
    assert one == pytest.approx(3 * (60 * 0.1 + START_S))
    assert two == pytest.approx(6 * (30 * 0.1 + START_S))


def test_a_warm_run_has_no_curve_of_the_storage(make: Any) -> None:
    of, reader = options(calibration_s=2.0), {"direct": False}
    cold, warm = (
        seconds(make(cache=cache, reader=reader), part="calibrate", of=of)
        for cache in ("cold", "warm")
    )
    assert cold - warm == pytest.approx(budget_s(2.0) + START_S)


# A run that fits

ASKED = Options(results=Path("results"))


def test_a_run_is_not_made_so_short_that_it_tells_nothing(make: Any) -> None:
    long = [PartTime(part="find_max", what="", seconds=1000.0)]
    plan = make(step_time=1.0)
    assert shorter(plan, [*estimate(plan, options()), *long]) == ["--budget 5min"]
    longer = make(step_time=2.5, loader={"workers": 1})
    [steps, *_] = shorter(longer, estimate(longer, options()))
    assert int(steps.removeprefix("--set max_steps=")) > 1


def test_what_is_given_stays(make: Any) -> None:
    plan = make(epochs=100_000, max_steps=7, repetitions=2)
    asked = options(calibration_s=0.4, ablations=True, ablations_s=5.0)
    given = frozenset[Given](("repetitions", "steps", "calibration", "ablations"))
    fitted = choose(plan, Pilot(samples_per_s=50.0, start_s=0.1), 60.0, asked, given)
    assert (fitted.plan, fitted.calibration_s, fitted.ablations_s) == (plan, 0.4, 5.0)
    more = choose(plan, Pilot(samples_per_s=50.0, start_s=0.1), 60.0, asked, given - {"steps"})
    assert more.plan.repetitions == 2
    assert fitted.least_s > 0.8 * (5.0 + 2 * 7 * BATCH / 50.0)


def test_a_budget_that_is_too_short_names_the_flags_that_were_given() -> None:
    for given, told in ((["repetitions"], "leave --repeat to it"), ([], "at least")):
        error = too_short(Budget(seconds=5.0, given=frozenset(given)), 60.0)
        assert told in error.remedy
        assert "--ablations" not in error.remedy


def test_a_budget_that_is_over_at_the_start_names_what_the_start_took(make: Any) -> None:
    late = Budget(seconds=5.0, began_s=time.monotonic() - 100.0)
    with pytest.raises(UsageError, match=r"at least 1\d\ds"):
        check_budget(make(), options(), late)


@pytest.mark.parametrize(("tail", "steps"), [("keep", 9), ("drop", 8)])
def test_an_epoch_has_a_short_batch_at_its_end_only_where_it_is_kept(
    make: Any, tail: str, steps: int
) -> None:
    plan = make(batch_size=7, reader={"tail": tail})
    assert Work.of(plan, Pilot()).whole == EPOCHS * steps


def test_a_batch_of_the_next_epoch_takes_as_long_as_all_that_is_read_with_it() -> None:
    """Epochs of 4 batches, which 8 workers read at once on a link that takes 4 s for each."""
    work = Work(
        whole=100, needed=5, together=8, epoch_steps=4, step_s=4.0, load_s=32.0, start_s=1.0
    )
    assert work.repetition_s(4) == pytest.approx(1 + 16)
    assert work.repetition_s(5) == pytest.approx(1 + 32 + START_S)
    assert work.steps_in(22.0) == 4
    assert work.steps_in(40.0) == 8


@pytest.mark.parametrize("seconds_left", [30.0, 41.0, 60.0, 77.0])
def test_a_repetition_has_a_save_for_each_interval(make: Any, seconds_left: float) -> None:
    """One save in 26 steps would look cheaper than one in 20, and the first of an asynchronous
    writer, which waits for none before it, free.
    """
    plan = make(epochs=100_000)
    pilot = Pilot(samples_per_s=50.0, start_s=0.1, every=20, save_s=0.5, blocked_s=0.5)
    steps = choose(plan, pilot, seconds_left, ASKED).plan.workload.max_steps
    assert steps
    assert steps % 20 == 0
    several = choose(plan, replace(pilot, saves=3), seconds_left, ASKED).plan.workload.max_steps
    assert several
    assert several >= 60
    assert several % 20 == 0


@pytest.mark.parametrize(
    ("save_s", "blocked_s", "seconds"),
    [
        (0.5, 0.5, 60 * 0.08 + 3 * 0.5),  # the ranks stand still
        (0.5, 0.1, 20 * 0.08 + 2 * (20 * 0.08 + 0.1) + 0.5),  # the last one goes on alone
        (3.0, 0.1, 20 * 0.08 + 2 * 3.0 + 3.0),  # each one waits for the one before it
    ],
)
def test_a_save_beside_the_steps_takes_no_time_of_theirs(
    make: Any, save_s: float, blocked_s: float, seconds: float
) -> None:
    pilot = Pilot(samples_per_s=50.0, start_s=0.0, every=20, save_s=save_s, blocked_s=blocked_s)
    work = Work.of(make(epochs=100_000), pilot)
    assert replace(work, epoch_steps=10**6).repetition_s(60) == pytest.approx(seconds)


def test_a_budget_that_is_too_short_names_the_least(make: Any) -> None:
    plan = make(epochs=100_000, step_time=10.0)
    short = Budget(seconds=2.0)
    with pytest.raises(UsageError, match="at least") as refused:
        check_budget(plan, ASKED, short)
    least = int(re.findall(r"at least (\d+)s", str(refused.value))[0])
    assert least > 0.8 * 5 * 10  # one repetition of the fewest steps that tell anything
    enough = Budget(seconds=least + 1.0)
    check_budget(plan, ASKED, enough)


@pytest.mark.parametrize(
    ("step_s", "budget_s", "refused"),
    # Twice three steps to warm up, one of a pilot, and the fewest of a repetition; no step at all.
    [(10.0, 60.0, "at least"), (None, 60.0, "longer than"), (1.0, 120.0, ""), (None, None, "")],
)
def test_a_model_whose_steps_do_not_fit_is_refused_before_its_pilot(
    make: Any,
    step_s: float | None,
    budget_s: float | None,
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recording, "quick_step", lambda *args, **named: step_s)
    plan = make(accelerator={"kind": "model", "model": "resnet18", "name": "r"}, epochs=1000)
    budget = Budget(seconds=budget_s or 300.0, strict=budget_s is not None)
    with pytest.raises(UsageError, match=refused) if refused else nullcontext():
        check_budget(plan, ASKED, budget)
