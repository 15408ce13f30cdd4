"""Runs that are fitted to a budget, over planted machines and storages, by a virtual clock.

The phases of a run are replaced by the times that they would take. All that is decided is real: how
the time is divided, what is left out, and what the record and its verdict say in the end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from iobench.ask.compare.identity import settings_of
from iobench.base.errors import UsageError
from iobench.data.dataset import load_dataset_spec
from iobench.host.timeline import Recorder
from iobench.judge.evidence import needed_steps
from iobench.judge.figures.curve import conclude_curve
from iobench.judge.judged import judge
from iobench.judge.verdict import verdict
from iobench.record.curve import Rate
from iobench.record.job import LoaderFacts
from iobench.record.run import TrainingRecord
from iobench.record.training import Epoch
from iobench.record.verdict import Advice, RunCurve
from iobench.runner import experiment
from iobench.runner.budget import MIN_WINDOW_S, Budget, Given
from iobench.runner.calibration import bench as benching
from iobench.runner.calibration import curve as curving
from iobench.runner.experiment import Options
from iobench.runner.fit import MAX_REPETITIONS, MIN_REPETITIONS
from iobench.runner.options import Confirm, Observer
from iobench.runner.phase import Outcome, Phase
from iobench.runner.plan import Plan, make_plan
from iobench.runner.requests import PART, RateSearch, RequestsPlan, RequestsRun
from iobench.serve.arrivals import Arrivals
from iobench.settings.base import known_specs
from iobench.settings.dataset import share_of_columns
from iobench.settings.scenario import load_scenario
from iobench.settings.workload import load_workload
from tests import curves
from tests.conftest import MakeDataset
from tests.curves import point

SAMPLES, ROWS = 20_000, 5_000
WORKLOADS = sorted(set(known_specs("workload")) - {"cpu-training"})  # which trains a real model
GB = 1e9


@dataclass
class Machine:
    """What is planted: bytes/s of the storage and of preparation, and the start of a phase.

    ``slow_after``: from this repetition on, all takes ``slower`` times as long.
    """

    storage: float
    prep: float = 0.6 * GB
    start_s: float = 1.0
    begin_s: float = 2.5  # from the start of the process until the run begins
    slow_after: int = 1_000
    slower: float = 1.0


DISK, NFS, S3 = Machine(storage=1.0 * GB), Machine(storage=0.3 * GB), Machine(storage=0.1 * GB)
CPU = Machine(storage=2.0 * GB, prep=0.11 * GB, start_s=3.0)
PLACES = {"disk": DISK, "nfs": NFS, "s3": S3, "cpu": CPU}


@dataclass
class Clock:
    """Time goes on by what the phases take, and by a moment whenever somebody looks at it."""

    passed_s: float = 1000.0

    def __call__(self) -> float:
        self.passed_s += 1e-6
        return self.passed_s


class Simulated:
    """The phases of one run, as the planted machine would carry them out."""

    def __init__(self, clock: Clock, machine: Machine, plan: Plan, sample_bytes: float) -> None:
        self.clock, self.machine, self.plan = clock, machine, plan
        self.storage = machine.storage / sample_bytes
        self.prep = machine.prep / sample_bytes
        each = plan.workload.samples_per_s_per_accelerator
        self.demand = math.inf if each is None else each * plan.accelerators

    @property
    def together(self) -> float:
        return min(self.storage, self.prep, self.demand)

    def rates(self, phase: Phase) -> tuple[float, float]:
        """Samples/s of the batches that the workers make, and of the accelerators."""
        loads = {
            "without-storage": self.prep,
            "without-prep": self.storage,
            "calibrate.fetch": self.storage,
            "calibrate.prep": self.prep,
        }.get(phase.name, min(self.storage, self.prep))
        if phase.name.startswith(("calibrate.loader", "calibrate.accelerator")):
            loads = 1e9
        slow = phase.name == "measure" and phase.repetition >= self.machine.slow_after
        ranks = phase.accelerators / self.plan.accelerators
        steps = ranks * self.demand if phase.accelerator.kind != "null" else math.inf
        return (loads / self.machine.slower if slow else loads), steps

    def run(self, phase: Phase) -> Outcome:
        loads, steps = self.rates(phase)
        size = phase.batch_size * phase.accelerators
        together = max(1, phase.loading.workers)
        step_s = size / steps if steps < math.inf else 0.0
        whole = max(1, SAMPLES // size) * phase.epochs if phase.epochs else 10**9
        most = min(phase.max_steps or 10**9, whole)
        if phase.limit_s is not None:
            # No window of these runs has more steps than that.
            fast = max(step_s, size / loads, 1e-5)
            rounds = phase.min_rounds + 1
            most = min(most, int(11 * (phase.limit_s / fast + rounds * together)) + 1)
        most = max(1, min(most, 300_000))
        number = np.arange(most)
        arrived = (number // together + 1) * (together * size / loads)
        ends = np.maximum.accumulate(arrived - number * step_s) + (number + 1) * step_s
        count = most
        if phase.limit_s is not None:
            over = ends >= phase.limit_s
            if phase.whole_rounds:
                done = number + 1
                over &= (done >= phase.min_rounds * together) & (done % together == 0)
                over |= ends >= phase.limit_s + max(
                    10 * phase.limit_s, 2 * phase.min_rounds * ends[0]
                )
            if over.any():
                count = int(np.argmax(over)) + 1
        ends, ready = ends[:count], ends[:count] - step_s
        starts = np.concatenate([[0.0], ends[:-1]])
        columns = {}
        for name, like in Recorder().columns().items():
            columns[name] = np.zeros(count, like.dtype)
        for name, seconds in (
            ("start_ns", starts),
            ("wait_ns", ready - starts),
            ("busy_ns", ends - ready),
        ):
            columns[name] = (seconds * 1e9).astype(columns[name].dtype)
        columns["step"] = number[:count].astype(columns["step"].dtype)
        columns["steps"] += 1
        columns["samples"] += phase.batch_size
        for name in ("bytes_read", "sample_bytes"):
            columns[name] += int(phase.batch_size * self.plan.manifest.mean_stored_bytes)
        if count > ROWS:  # as the recorder does: later rows hold several steps
            heads = np.r_[0, np.arange(1, count, -(-count // ROWS))]
            for name, values in columns.items():
                whole = name in ("start_ns", "step", "epoch")
                columns[name] = values[heads] if whole else np.add.reduceat(values, heads)
        self.clock.passed_s += self.machine.start_s + float(ends[-1])
        read = int(columns["bytes_read"].sum())
        epoch = Epoch(
            epoch=0, residency_before=0.0, startup_s=0.0, startups_s=[0.0] * phase.accelerators
        )
        epoch.bytes_fetched, epoch.bytes_read = read * phase.accelerators, read
        return Outcome(
            columns={rank: dict(columns) for rank in range(phase.accelerators)},
            epochs=[epoch],
            cpu_s=float(ends[-1]),
            loader=LoaderFacts(round_batches=together, in_flight_batches=together),
        )

    def curve(self, bench: Any) -> RunCurve:
        self.clock.passed_s += min(curving.budget_s(bench.seconds), 8.0)
        size = int(self.plan.manifest.mean_stored_bytes)
        points = []
        for in_flight, share in ((1, 0.3), (2, 0.6), (4, 0.99), (8, 1.0), (16, 1.0)):
            rate = share * self.storage
            told = Rate(value=rate, low=0.99 * rate, high=1.01 * rate, windows=4)
            points.append(point(in_flight, told, size, latency_p50_s=in_flight / rate))
        return RunCurve(
            curve=conclude_curve(curves.curve(points, size), None), not_measured="planted"
        )


@dataclass(frozen=True)
class Ended:
    doc: TrainingRecord
    took_s: float
    simulated: Simulated

    @property
    def steps(self) -> int:
        return min(each.steps for each in self.doc.job.repetitions)


@pytest.fixture(scope="module")
def folder(make_dataset: MakeDataset) -> Path:
    _, place = make_dataset(
        samples=SAMPLES,
        sample_size={"mean": 64},
        format="tar",
        samples_per_shard=10_000,
        codec="zstd:1",
    )
    return place


@pytest.fixture
def spend(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)

    def run(
        name: str,
        machine: Machine,
        seconds: float,
        *overrides: str,
        strict: bool = True,
        usual: bool = False,
        given: frozenset[Given] = frozenset(),
        **options: Any,
    ) -> Ended:
        base = ("dataset=demo", "reader.crop=null", "reader.columns=null", "reader.mmap=false")
        workload = load_workload(name, [*base, "reader.direct=false", "epochs=100", *overrides])
        asked = load_workload(name)
        spec = load_dataset_spec(asked.dataset)
        sample_bytes = spec.sample_size.mean_bytes * share_of_columns(spec, asked.reader.columns)
        plan = make_plan(workload, str(folder), accelerators=1, repetitions=6, seed=0)
        simulated = Simulated(clock, machine, plan, sample_bytes)
        phases = {
            "run_phase": lambda phase, *more, **named: simulated.run(phase),
            "run_cached_phase": lambda plan, agent, phase, *more, **named: simulated.run(phase),
        }
        for name_of_it, fake in phases.items():
            monkeypatch.setattr(benching, name_of_it, fake)
        monkeypatch.setattr(curving, "measure", simulated.curve)
        began = clock()
        clock.passed_s += machine.begin_s
        budget = Budget(seconds=seconds, began_s=began, strict=strict, usual=usual, given=given)
        doc, _ = experiment.run(
            plan, Options(results=tmp_path / "results", budget=budget, **options)
        )
        return Ended(doc=doc, took_s=clock() - began, simulated=simulated)

    return run


def enough_s(ended_or_plan: Simulated, *, repetitions: int) -> float:
    """Seconds of so many repetitions that are just long enough."""
    workload = ended_or_plan.plan.workload
    steps = needed_steps(workload.loader.workers)
    each = workload.batch_size / min(ended_or_plan.storage, ended_or_plan.prep)
    busy = workload.batch_size / ended_or_plan.demand
    return repetitions * (ended_or_plan.machine.start_s + steps * max(each, busy))


EACH = [
    pytest.param(name, sorted(PLACES)[n % 4], marks=pytest.mark.nightly if n >= 4 else ())
    for n, name in enumerate(WORKLOADS)
]


def test_windows_of_requests_are_as_short_as_the_budget_needs() -> None:
    spent = Budget(seconds=100.0)
    each = spent.window_s(30.0, 10, least=2)
    assert 2 < each < 100 / 10
    assert 2.5 < Budget(seconds=60.0).window_s(30.0, 12, least=4) < 3  # no whole number
    assert spent.window_s(3.0, 10, least=2) == 3
    assert spent.window_s(30.0, 10_000, least=2) == MIN_WINDOW_S  # fewer fit
    assert Budget().window_s(30.0, 10, least=2) == 30
    assert Budget(seconds=100.0, given=frozenset({"duration"})).window_s(30.0, 10, least=2) == 30
    with pytest.raises(UsageError, match="too short"):
        spent.window_s(30.0, 10, least=40)


def test_fewer_windows_are_made_rather_than_windows_of_a_few_requests() -> None:
    each = Budget(seconds=60.0).window_s(30.0, 12, least=4, fewer=6, useful_s=35.0)
    assert 6 * (each + 1) < 60 < 12 * (each + 1)
    enough = Budget(seconds=300.0).window_s(30.0, 12, least=4, fewer=6, useful_s=20.0)
    assert enough == 20
    assert Budget(seconds=300.0).window_s(30.0, 12, least=4, fewer=6, useful_s=0.1) < 20


@pytest.mark.parametrize(
    ("seconds", "kinds", "repetitions"),
    [
        (125.0, 4, 3),
        (75.0, 2, 3),
        (45.0, 1, 3),
        (25.0, 1, 2),
    ],
)
def test_three_repetitions_come_before_what_a_stage_costs(
    seconds: float, kinds: int, repetitions: int
) -> None:
    """Each window takes 10 s."""
    taken = _windows_in(seconds, [10.0])
    assert taken == dict.fromkeys(KINDS[:kinds], repetitions)


def test_a_first_window_that_takes_long_leaves_no_stage_out_for_good() -> None:
    """The first one takes 20 s, as if all windows did; each later one takes 5 s."""
    assert _windows_in(80.0, [20.0, 5.0]) == dict.fromkeys(KINDS, 3)
    assert _windows_in(60.0, [20.0, 5.0]) == {"repetition": 3, "reads": 2, "writes": 2}


def test_a_slow_storage_is_refused_by_its_curve_without_a_pilot(
    spend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repetition that can tell anything takes 40 times the budget at the rate of the curve."""
    name = "resnet50-h100"
    workload = load_workload(name)
    batch = workload.batch_size * load_dataset_spec(workload.dataset).sample_size.mean_bytes
    slow = needed_steps(workload.loader.workers) * batch / (40 * 30.0)

    def pilot(*given: Any) -> None:
        raise AssertionError("a pilot was made")

    monkeypatch.setattr(experiment, "measure_pilot", pilot)
    monkeypatch.setattr(experiment, "pilot_by_curve", pilot)
    with pytest.raises(UsageError, match="too short"):
        spend(name, Machine(storage=slow), 30.0)


KINDS = ["repetition", "reads", "writes", "lookups"]


def _windows_in(
    seconds: float, takes: list[float], *, repetitions: int = 3, kinds: list[str] = KINDS
) -> dict[str, int]:
    """How many windows of each kind fit, the first ones of which take so long."""
    number = count()
    budget = Budget(seconds=seconds, given=frozenset({"duration"}))
    return Counter(
        kind
        for kind, _ in _repeated(
            budget, kinds, repetitions, 1.0, lambda _: takes[min(next(number), len(takes) - 1)]
        )
    )


def _repeated(
    budget: Budget,
    kinds: Sequence[str],
    repetitions: int,
    usual_s: float,
    takes: Callable[[float], float],
) -> list[tuple[str, float]]:
    """The kinds of the windows, and for how long requests arrive in each.

    ``takes``: how long a window takes, by its requests.
    """
    made: list[tuple[str, float]] = []
    scenario = load_scenario("resnet50-server").model_copy(update={"duration": usual_s})
    planned = type("Planned", (RequestsPlan,), {"kinds": kinds})
    arrivals = Arrivals(scenario.arrivals)
    plan = planned(scenario=scenario, arrivals=arrivals, rate=1.0, repetitions=repetitions, seed=1)

    def window(kind: str, rate: float, seed: int) -> Any:
        took = takes(run.plan.seconds)
        made.append((kind, run.plan.seconds))
        budget.took(PART, took)
        budget.began_s -= took
        return SimpleNamespace(seconds=run.plan.seconds)

    run: Any = SimpleNamespace(
        plan=plan.fitted(budget), budget=budget, observer=Observer(), window=window, seed=int,
        whole="", besides_s=None,
    )  # fmt: skip
    run._late, run._measured = partial(RequestsRun._late, run), partial(RequestsRun._measured, run)
    RequestsRun.repeat(run, 1.0)
    return made


@pytest.mark.parametrize("besides_s", [4.0, 8.0, 9.0])
def test_later_windows_are_shorter_where_one_takes_more_than_was_planned(besides_s: float) -> None:
    """A window takes these seconds besides its requests, which are few; 90 s are six windows."""
    budget = Budget(seconds=90.0)
    made = _repeated(budget, KINDS, 3, 30.0, lambda seconds: seconds + besides_s)
    assert Counter(kind for kind, _ in made) == {"repetition": 3, "reads": 3}
    assert budget.ends_in_time(0.0)
    lengths = {kind: sorted(s for each, s in made if each == kind) for kind in KINDS[:2]}
    assert lengths["repetition"] == lengths["reads"]


def test_a_search_leaves_time_for_the_repetitions_at_the_rate_that_it_found() -> None:
    """Each window takes 4 s of 60 s; three repetitions are two windows each."""
    budget = Budget(seconds=60.0)
    seen: list[float] = []

    def window(kind: str, rate: float, seed: int) -> Any:
        seen.append(rate)
        budget.took(PART, 4.0)
        budget.began_s -= 4.0
        return SimpleNamespace(holds=True, steady=True, seconds=3.0)

    plan: Any = SimpleNamespace(repetitions=5, kinds=["repetition", "storage"], seed=1)
    plan.fitted = lambda budget, **about: SimpleNamespace(scenario=about)
    job = SimpleNamespace(found=None, rate=None, limit_s=1.0, of=lambda kind: seen)
    rates = partial(RateSearch, least=1.0, most=1e6, first=1.0)
    run: Any = SimpleNamespace(
        plan=plan, budget=budget, observer=Observer(), window=window, rates=rates,
        doc=SimpleNamespace(job=job),
    )  # fmt: skip
    run._measured = partial(RequestsRun._measured, run)
    RequestsRun._search(run)
    assert job.found.low is not None
    assert budget.fits(6 * 4.0)
    assert job.scenario == {"found": job.found.low, "besides_s": 1.0}  # as it was repeated


@pytest.mark.parametrize(("name", "place"), EACH)
def test_each_workload_has_an_answer_within_two_minutes(spend: Any, name: str, place: str) -> None:
    budget_s, machine = 120.0, PLACES[place]
    try:
        ended = spend(name, machine, budget_s)
    except UsageError:
        # Not even one repetition fits.
        workload = load_workload(name)
        spec = load_dataset_spec(workload.dataset)
        slow = min(machine.storage, machine.prep) / spec.sample_size.mean_bytes
        least_s = workload.batch_size * needed_steps(workload.loader.workers) / slow
        assert least_s > 0.5 * budget_s
        return
    assert ended.took_s <= 1.1 * budget_s
    if enough_s(ended.simulated, repetitions=1) <= 0.6 * budget_s:
        assert ended.steps >= needed_steps(ended.simulated.plan.workload.loader.workers)
        assert ended.doc.job.verdict.bottleneck != "undecided"
        one_s = enough_s(ended.simulated, repetitions=1)
        repetitions = len(ended.doc.job.repetitions)
        assert ended.took_s + 1.5 * one_s > 0.8 * budget_s or repetitions >= MAX_REPETITIONS
    if enough_s(ended.simulated, repetitions=3) <= 0.35 * budget_s:
        assert len(ended.doc.job.repetitions) >= MIN_REPETITIONS
    if enough_s(ended.simulated, repetitions=6) <= 0.35 * budget_s:
        assert any(each.rounds for each in ended.doc.job.ablations if each.stage == "storage")


def test_a_limit_that_nobody_asked_for_is_not_filled(spend: Any) -> None:
    """A short run takes no longer than its parts, and a long one ends with the limit."""
    asked = spend("resnet50-h100", DISK, 300.0, "max_steps=20")
    usual = spend("resnet50-h100", DISK, 300.0, "max_steps=20", usual=True, strict=False)
    assert len(usual.doc.job.repetitions) == 6 < len(asked.doc.job.repetitions)
    assert usual.took_s < 0.7 * asked.took_s
    long = spend("resnet50-h100", CPU, 300.0, usual=True, strict=False)
    assert 200 < long.took_s <= 305
    assert long.doc.job.verdict.bottleneck == "prep"


@pytest.mark.parametrize(
    ("name", "machine", "answer"),
    [
        ("unet3d-h100", DISK, "prep"),  # 8 steps take 14 s, and the curve alone says "storage"
        ("unet3d-a100", DISK, "prep"),
        ("resnet50-h100", S3, "storage"),
        ("resnet50-h100", CPU, "prep"),
    ],
)
def test_what_decides_comes_before_further_repetitions(
    spend: Any, name: str, machine: Machine, answer: str
) -> None:
    """A minute has no time for a round of all stages: the likeliest one is left out alone."""
    ended = spend(name, machine, 60.0)
    verdict = ended.doc.job.verdict
    assert (verdict.bottleneck, verdict.basis) == (answer, "tested")
    assert ended.took_s <= 65.0


def test_a_repetition_has_several_epochs_of_a_small_dataset(spend: Any) -> None:
    """An epoch has 5 steps, and 8 workers need 16 to tell their start from the rest."""
    small = ("epochs=1", f"batch_size={SAMPLES // 5}", "accelerator.step_time=400ms")
    fast = Machine(storage=60.0 * GB, prep=60.0 * GB)
    ended = spend("flux-b200", fast, 120.0, *small)
    job = ended.doc.job
    assert ended.steps >= needed_steps(8)
    assert (job.verdict.bottleneck, job.fitted.asked_epochs) != ("undecided", None)
    assert settings_of(ended.doc)["epochs"] == "1"  # no difference to a run with another budget
    told = spend("flux-b200", fast, 120.0, *small, given=frozenset({"steps"}))
    assert told.steps <= 5  # what the user gave stays as it is


def test_the_largest_number_is_searched_while_there_is_time(spend: Any) -> None:
    """The storage feeds 3 of these accelerators at 90 %, and preparation 12."""
    machine = Machine(storage=0.6 * GB, prep=2.2 * GB, start_s=0.5)
    changes = ("loader.workers=2", "accelerator.step_time=50ms", "batch_size=89")
    ended = spend("resnet50-h100", machine, 120.0, *changes, find_max=True)
    found = ended.doc.job.find_max
    assert ended.took_s <= 132.0
    assert (found.accelerators, found.bound) == (3, "")
    assert ended.doc.job.repetitions
    short = spend("resnet50-h100", machine, 40.0, *changes, find_max=True)
    assert short.took_s <= 45.0
    assert "budget" in short.doc.job.find_max.bound
    assert short.doc.job.verdict.bottleneck


def test_the_trial_of_advice_ends_with_the_budget(spend: Any) -> None:
    machine = Machine(storage=0.1 * GB, start_s=0.5)
    ended = spend("resnet50-h100", machine, 120.0, confirm=Confirm())
    assert ended.took_s <= 132.0
    doc = ended.doc
    assert doc.job.confirmations or doc.job.no_confirmations


def test_the_search_for_the_largest_number_leaves_time_for_the_trial_of_advice(spend: Any) -> None:
    machine = Machine(storage=0.6 * GB, prep=2.2 * GB, start_s=0.5)
    changes = ("loader.workers=2", "accelerator.step_time=50ms", "batch_size=89")
    advice = Advice(
        id="concurrency",
        change="more reads in flight",
        basis="planted",
        settings=["reader.concurrency=16"],
        predicted_gain=2.0,
    )
    confirm = Confirm(advice=(advice,))
    ended = spend("resnet50-h100", machine, 120.0, *changes, find_max=True, confirm=confirm)
    assert ended.took_s <= 132.0
    assert len(ended.doc.job.confirmations[0].rounds) >= 3
    assert ended.doc.job.find_max.accelerators == 3


def test_the_fill_of_what_a_budget_cut_is_no_cause(spend: Any) -> None:
    """It is shown, but the verdict and the advice do not rest on it."""
    doc = spend("resnet50-h100", CPU, 120.0).doc
    shown = next(each for each in doc.job.ablations if each.stage == "fill")
    assert shown.gain.value > 1.2
    assert (doc.job.verdict.bottleneck, "fill" in judge(doc).evidence.gains) == ("prep", False)
    whole = doc.with_job(fitted=None)
    assert "fill" in judge(whole).evidence.gains
    checked = whole.storage.model_copy(update={"url": "/mnt/iobench-check-1"})
    assert "fill" not in judge(whole.model_copy(update={"storage": checked})).evidence.gains


@pytest.mark.parametrize(("prep", "answer"), [(0.17, "prep"), (0.24, "accelerator")])
def test_batches_of_the_fill_make_no_accelerator_fed(spend: Any, prep: float, answer: str) -> None:
    """A repetition of 16 steps, of which 8 were made during the fill: 97 % busy after it.

    The accelerator takes 0.205 GB/s, so what preparation yields decides.
    """
    machine = Machine(storage=2.0 * GB, prep=prep * GB, start_s=3.0)
    doc = spend("resnet50-h100", machine, 120.0).doc
    spent = {"wall_s": 7.75, "fill_s": 4.19, "busy_s": 3.47, "wait_s": 0.09, "startup_s": 0.0}
    ranks = [each.model_copy(update=spent) for each in doc.job.repetitions[0].ranks]
    repetitions = [
        each.model_copy(update={"steps": 16, "ranks": ranks}) for each in doc.job.repetitions
    ]
    name = "accelerator_utilization_sustained"
    busy = doc.metrics[name].model_copy(update={"median": 0.452, "min": 0.44, "max": 0.46})
    doc = doc.with_job(repetitions=repetitions, ablations=[], verdict=None)
    doc = doc.model_copy(update={"metrics": {**doc.metrics, name: busy}})
    found = verdict(judge(doc))
    assert found.bottleneck == answer
    assert found.starved is None
    assert found.not_measured["starved"]
