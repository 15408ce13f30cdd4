"""Advice that was tried: which is chosen, whether the promise was kept, and what stays recorded."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from iobench.base.errors import InterruptedRun, IobenchError
from iobench.judge.figures.ablations import How
from iobench.judge.promise import answer, gain_of, told_again, with_found
from iobench.record.run import TrainingRecord, load_training
from iobench.record.training import Epoch, Repetition
from iobench.record.verdict import Advice, Confirmation, ConfirmationRound, Estimate
from iobench.runner import budget, confirm, experiment
from iobench.runner.budget import Budget
from iobench.runner.experiment import Options
from iobench.runner.hosts.hosts import Hosts
from iobench.runner.options import Confirm, Observer
from iobench.runner.plan import Plan, make_plan
from iobench.settings.base import build
from iobench.settings.workload import Workload
from tests.conftest import MakeDataset
from tests.processes import in_process, refused
from tests.unit.conftest import build_run


def estimate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=3)


@pytest.mark.parametrize(
    ("promised", "found", "told"),
    [
        (estimate(2.0, 1.9, 2.1), estimate(1.85, 1.8, 1.92), "kept"),  # the intervals overlap
        (estimate(2.0), estimate(1.95, 1.94, 1.96), "kept"),  # within the noise threshold
        (estimate(2.0, 1.9, 2.1), estimate(3.0, 2.9, 3.1), "kept"),  # more than was promised
        (estimate(2.0, 1.9, 2.1), estimate(1.5, 1.4, 1.6), "not kept"),
        (estimate(2.0, 1.9, 2.1), estimate(1.5, 0.8, 2.2), "inconclusive"),
        (estimate(2.0, 1.9, 2.1), estimate(2.0), "inconclusive"),  # one turn has no interval
        (estimate(2.0), None, "inconclusive"),
        (estimate(1.2, 1.0, 1.4), estimate(1.0, 0.99, 1.01), "not kept"),  # no gain at all
        (estimate(1.0), estimate(1.0, 0.97, 1.03), "kept"),  # smaller settings, no slower
        (estimate(1.0), estimate(1.0, 0.7, 1.4), "inconclusive"),
    ],
)
def test_a_promise_is_kept_where_the_intervals_overlap(
    promised: Estimate, found: Estimate | None, told: str
) -> None:
    assert answer(promised, found) == told


def line(id: Any, gain: float | None, *settings: str) -> Advice:
    return Advice(id=id, change=id, predicted_gain=gain, basis="", settings=list(settings))


def tried(*rates: tuple[float, float], settings: str = "reader.concurrency=8") -> Confirmation:
    rounds = [
        ConfirmationRound(round=number, samples_per_s=rate, base_samples_per_s=base, seconds=1.0)
        for number, (rate, base) in enumerate(rates)
    ]
    return Confirmation(change="c", settings=[settings], promised=estimate(2.0), rounds=rounds)


def test_what_was_found_comes_before_what_is_predicted() -> None:
    doc = build_run(rates={"storage_raw": 5000, "fetch": 600, "prep": 700}, measured=580, au=0.29)
    first = doc.job.verdict.advice[0]
    assert first.settings
    other = line("direct", 1.1, "reader.direct=true")
    verdict = doc.job.verdict.model_copy(update={"advice": [first, other]})
    useless = told_again(
        tried((101, 100), (100, 101), (100, 100)).model_copy(update={"settings": first.settings})
    )
    again = with_found(verdict, [useless], None)
    assert [each.id for each in again.advice] == ["direct", first.id]
    assert again.advice[1].found == useless.found
    assert again.advice[1].predicted_gain == first.predicted_gain
    assert gain_of(again.advice[1]) == useless.found
    assert gain_of(again.advice[0]) == Estimate(value=1.1)
    assert gain_of(line("pack", None)) is None
    assert with_found(verdict, [], None) == verdict


# Real runs: small files, each read delayed.


@pytest.fixture(scope="module")
def data(make_dataset: MakeDataset) -> Path:
    return make_dataset(samples=24, format="files")[1]


def plan_for(data: Path, latency: str = "100us", **settings: Any) -> Plan:
    spec: dict[str, Any] = {
        "name": "tried",
        "dataset": "demo",
        "batch_size": 2,
        "accelerator": {"kind": "null"},
        "reader": {"concurrency": 1},
        "loader": {"workers": 0},
        **settings,
    }
    url = f"throttled+{data}?latency={latency}"
    workload = build(Workload, spec, where="here")
    return make_plan(workload, url, accelerators=1, repetitions=1, seed=3)


ADVICE = (line("concurrency", 2.0, "reader.concurrency=4"),)


def options(results: Path, *advice: Advice, budget_s: float | None = None) -> Options:
    return Options(
        results=results,
        calibration_s=0.0,
        ablations=False,
        confirm=Confirm(advice=advice, by="earlier", budget_s=budget_s),
    )


def test_turns_are_recorded_with_their_events(data: Path, tmp_path: Path) -> None:
    wrong = line("direct", 9.0, "reader.direct=perhaps")
    doc, directory = experiment.run(plan_for(data), options(tmp_path, *ADVICE, wrong))
    found, untried = doc.job.confirmations
    assert (untried.rounds, untried.answer) == ([], "inconclusive")
    assert untried.not_measured
    assert found.promised_by == "earlier"
    assert len(found.rounds) >= confirm.MIN_ROUNDS
    assert found.found is not None
    assert len(doc.job.repetitions) == 1  # the turns are none
    from iobench.host.timeline import read_events

    events = read_events(directory / "events.parquet")
    for turn in found.rounds:
        for phase in ("confirm.0", "confirm.1"):
            rows = (events["phase"] == phase) & (events["repetition"] == turn.round)
            assert int(np.asarray(events["samples"])[rows].sum()) == 24
    assert load_training(directory).job.confirmations == doc.job.confirmations


def interrupting(monkeypatch: pytest.MonkeyPatch, at: int, error: BaseException) -> None:
    """Raise ``error`` where the phase of the ``at``-th repetition in turns begins."""
    begun = []
    original = confirm.Bench.run

    def run(self: Any, phase: Any, **more: Any) -> Any:
        if phase.name.startswith("confirm."):
            begun.append(phase.name)
            if len(begun) == at:
                raise error
        return original(self, phase, **more)

    monkeypatch.setattr(confirm.Bench, "run", run)


@pytest.mark.slow
def test_complete_turns_count_after_an_interrupt(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, 6, KeyboardInterrupt())
    with pytest.raises(InterruptedRun):
        experiment.run(plan_for(data), options(tmp_path, *ADVICE))
    [directory] = tmp_path.iterdir()
    doc = load_training(directory)
    assert doc.status == "interrupted"
    [found] = doc.job.confirmations
    assert len(found.rounds) == 2
    assert found.found.n == 2


def test_a_change_that_fails_is_left_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupting(monkeypatch, 3, IobenchError("no memory"))  # the second turn begins with it
    same = line("concurrency", 8.0, "reader.concurrency=1")
    doc, _ = experiment.run(plan_for(data), options(tmp_path, same, *ADVICE))
    unchanged, found = doc.job.confirmations
    assert (unchanged.rounds, bool(unchanged.not_measured)) == ([], True)
    assert len(found.rounds) == 1
    assert found.not_measured == "no memory"
    assert {each.answer for each in (unchanged, found)} == {"inconclusive"}


def test_a_run_without_ceilings_is_refused(data: Path) -> None:
    assert refused("run demo --confirm --calibration 0s --data", data)


# The advice of an earlier run


@pytest.fixture(scope="module")
def recorded(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run whose advice is to keep more reads in flight."""
    place = tmp_path_factory.mktemp("earlier")
    doc, directory = experiment.run(plan_for(data, "5ms"), options(place))
    path = directory / "run.json"
    record = json.loads(path.read_text())
    rate = doc.job.repetitions[0].samples_per_s
    assert rate is not None
    record["job"]["ceilings"] = {
        "storage_raw": {"by": "fio", "samples_per_s": rate * 3, "bytes_per_s": rate * 60_000},
        "fetch": {"by": "reader", "samples_per_s": rate, "bytes_per_s": rate * 20_000},
        "prep": {"by": "reader", "samples_per_s": rate * 50},
        "loader": {"by": "loader", "samples_per_s": rate * 90},
    }
    record["job"]["no_confirmations"] = ""
    path.write_text(json.dumps(record))
    return directory


@pytest.fixture
def earlier(recorded: Path, tmp_path: Path) -> Path:
    """A copy of that run, to be changed."""
    return Path(shutil.copytree(recorded, tmp_path / "first" / recorded.name))


@pytest.mark.slow
def test_an_earlier_run_is_repeated_with_its_advice(earlier: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in earlier.iterdir()}
    new = tmp_path / "new"
    code, out, _ = in_process("advise", earlier, "--confirm", "--results", new, "--json")
    assert {path.name: path.read_bytes() for path in earlier.iterdir()} == before
    doc = TrainingRecord.model_validate(json.loads(out))
    [found] = doc.job.confirmations
    assert (found.id, found.promised_by) == ("concurrency", earlier.name)
    # Three times the rate of the reads; what else the run did takes its time as before.
    assert 1 < found.promised.value < 3.03
    assert code == (0 if found.answer == "kept" else 4)
    [directory] = new.iterdir()
    assert load_training(directory).job.confirmations == doc.job.confirmations


def test_a_dataset_that_is_gone_or_another_one_is_refused(
    earlier: Path, tmp_path: Path, make_dataset: MakeDataset
) -> None:
    words = ("advise", earlier, "--confirm", "--results", tmp_path / "new", "--data")
    assert refused(*words, make_dataset(samples=12, format="files")[1], code=1)
    assert refused(*words, tmp_path / "gone")
    assert not (tmp_path / "new").exists()


def test_an_address_in_a_record_is_not_contacted(earlier: Path, tmp_path: Path) -> None:
    path = earlier / "run.json"
    record = json.loads(path.read_text())
    record["job"]["dataset"]["location"] = "s3://bucket/data?endpoint=http://127.0.0.1:1"
    record["job"]["workload"]["storage"] = {"endpoint": "http://127.0.0.1:1"}
    path.write_text(json.dumps(record))
    words = ("advise", earlier, "--confirm", "--results", tmp_path / "new")
    assert refused(*words)
    # The user names the data, and the record alone names the endpoint.
    assert refused(*words, "--data", "s3://bucket/data")
    record["job"]["dataset"]["location"] = None
    path.write_text(json.dumps(record))
    assert refused(*words)


# What is kept by chance


class Clock:
    """A clock that only measuring moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@dataclass
class Planted:
    """A place where each repetition takes a second, and its rate is planted."""

    plan: Plan
    clock: Clock
    rates: Callable[[], float]
    hosts: Any = None
    agent: Any = None
    held: Any = None
    observer: Any = field(default_factory=Observer)

    def run(self, *_: Any, **__: Any) -> Planted:
        self.clock.now_s += 1.0
        return self

    def keep(self, *_: Any) -> None: ...

    def look(self) -> None: ...

    complete = True
    epochs: tuple[Epoch, ...] = ()

    def events(self) -> Callable[[], float]:
        return self.rates


class Anywhere(Hosts):
    """Nothing is asked of its agent."""

    def agent(self, *_: Any, **__: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("rounds", "spread"),
    [(3, 0.03), *(pytest.param(rounds, 0.07, marks=pytest.mark.slow) for rounds in (6, 12))],
)
def test_a_change_that_brings_nothing_is_rarely_kept(
    rounds: int, spread: float, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The promise is 1.08 x [1.00, 1.16], and both variants have the same rate and noise. The
    interval misses the truth on this side in 2.5 % of cases, however many rounds there is time for.
    """
    clock, rng = Clock(), np.random.default_rng(rounds)
    plan = plan_for(data)
    other = replace(plan, workload=plan.workload.model_copy(update={"epochs": 2}))
    monkeypatch.setattr(budget, "time", clock)
    monkeypatch.setattr(confirm, "with_settings", lambda *_: other)
    monkeypatch.setattr(
        confirm,
        "repetition_metrics",
        lambda rate, _: Repetition(seed=0, accelerators=1, samples_per_s=100.0 * math.exp(rate())),
    )
    advice = line("concurrency", 1.08, "reader.concurrency=4").model_copy(
        update={"low": 1.0, "high": 1.16}
    )
    series, kept, made = 400, 0, set()
    for _ in range(series):
        into: list[Confirmation] = []
        confirm.Trying(
            bench=cast(
                Any,
                Planted(
                    plan, clock, lambda: rng.normal(0, spread / math.sqrt(2)), hosts=Anywhere()
                ),
            ),
            into=into,
            repetition_s=1.0,
            budget=Budget(seconds=2.0 * rounds, end_s=0.0),
        ).run([advice])
        [found] = into
        kept += found.answer == "kept"
        made.add(len(found.rounds))
    assert made == {rounds}
    assert kept / series <= 0.048  # 2.5 % and three standard deviations


@pytest.mark.parametrize(("max_steps", "made"), [(3, 8), (10, 10), (None, None)])
def test_each_trial_has_whole_rounds_of_the_workers_that_are_advised(
    max_steps: int | None, made: int | None, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget left 3 steps. 4 workers make as many at once as the pipeline fills, and then 4."""
    seen: list[int | None] = []
    steady: list[int] = []

    class Watched(Planted):
        def run(self, phase: Any, **_: Any) -> Planted:
            seen.append(phase.max_steps)
            return self

    def left_out(_: Any, how: How) -> float:
        steady.append(how.round_steps)
        return 50.0 * how.round_steps

    monkeypatch.setattr(confirm, "steady_rate", left_out)
    whole = Repetition(seed=0, accelerators=1, samples_per_s=70.0)
    monkeypatch.setattr(confirm, "repetition_metrics", lambda *_: whole)
    plan = plan_for(data, max_steps=max_steps, loader={"workers": 1})
    into: list[Confirmation] = []
    trying = confirm.Trying(
        bench=cast(Any, Watched(plan, Clock(), lambda: 1.0, hosts=Anywhere())),
        into=into,
        repetition_s=1.0,
        budget=Budget(seconds=6.0, end_s=0.0),
    )
    trying.run([line("workers", 4.0, "loader.workers=4")])
    assert set(seen) == {made}
    assert set(steady) == ({1, 4} if made == 8 else set())
    assert into[0].settings == ["loader.workers=4"]
    assert into[0].found is not None
    assert into[0].found.value == pytest.approx(4.0 if made == 8 else 1.0)
