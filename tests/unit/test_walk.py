"""A walk: which settings it keeps, which points come next, and the table of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from iobench.accelerate.possible import why_not
from iobench.ask.tuning.walk import ALL, kept_settings, points_of, rows
from iobench.base.errors import InterruptedRun, IobenchError, SpecError
from iobench.data.generator.engine import generate
from iobench.record.run import load_training
from iobench.record.sweep import Sweep, SweepPoint
from iobench.report.walk import best_command
from iobench.runner.options import SweepOptions
from iobench.runner.sweeping import plan as walking
from iobench.runner.sweeping import run as sweeping
from iobench.runner.sweeping.plan import next_step, plan_walk
from iobench.runner.sweeping.run import run_sweep
from iobench.runner.sweeping.trial import Apart, Trial
from iobench.settings.dataset import load_dataset_spec
from iobench.settings.walk import AskedStep, WalkSpec, find_walk
from iobench.settings.workload import AcceleratorSpec, load_workload
from iobench.storage import open_storage
from tests.processes import python, wait_until
from tests.unit.conftest import build_sweep

STEPS = [
    {"name": "batch size", "key": "batch_size", "values": [64, 32]},
    {"name": "workers", "key": "loader.workers", "values": [1]},
    {"name": "old", "not_measured": "ended with 2.8"},
]


def planned(*steps: dict[str, object], **changes: object) -> Sweep:
    spec = WalkSpec.model_validate(
        {"name": "mine", "workload": "demo", "walk": list(steps or STEPS)}
    )
    return plan_walk(build_sweep(**{"repetitions": 4, **changes}), spec)


def tried(points: list[SweepPoint], *rates: list[float]) -> None:
    for point, each in zip(points, rates, strict=True):
        point.figures = each
        point.runs = [f"run{number}" for number in range(len(each))]
        point.seconds = [1.0] * len(each)


# What is kept


def test_a_walk_keeps_what_is_told_to_be_faster_and_goes_on_from_there() -> None:
    sweep = planned(overrides=["batch_size=128", "loader.workers=0"])
    first = next_step(sweep)
    assert [point.settings["batch_size"] for point in first] == [128, 64, 32]
    assert next_step(sweep) == first  # as long as trials are missing
    tried(first, [10, 10.2], [12, 12.2], [15, 15.3])
    assert kept_settings(sweep) == {"batch_size": 128, "loader.workers": 0}
    tried(first, [10, 10.2, 9.9, 10.1], [12, 12.2, 11.9, 12.1], [15, 15.3, 14.9, 15.1])
    second = next_step(sweep)
    assert [point.settings for point in second] == [
        {"batch_size": 32, "loader.workers": 0},
        {"batch_size": 32, "loader.workers": 1},
    ]
    tried(second, [15, 15.2, 14.9, 15.1], [15, 15.3, 14.8, 15.1])  # inconclusive
    assert kept_settings(sweep) == {"batch_size": 32, "loader.workers": 0}
    assert next_step(sweep) == []  # one setting was kept, and its step has told its gain
    found = {row.setting: row for row in rows(sweep)}
    assert [row.kept for row in found.values()] == [False, False, True, False, False]
    assert found["batch_size=64"].answer == "faster"
    assert found["workers=1"].answer == "inconclusive"
    ratio = found["batch_size=32"].ratio
    assert ratio.value == pytest.approx(1.5, rel=0.01)
    assert found["old"].not_measured == "ended with 2.8"


def test_several_kept_settings_are_compared_with_the_beginning() -> None:
    sweep = planned(overrides=["batch_size=128", "loader.workers=0"])
    tried(next_step(sweep), [10, 10.2, 9.9, 10.1], [8, 8.1, 8, 8.2], [15, 15.3, 14.9, 15.1])
    tried(next_step(sweep), [15, 15.2, 14.9, 15.1], [30, 30.3, 29.8, 30.1])
    last = next_step(sweep)
    assert [point.settings for point in last] == [
        {"batch_size": 128, "loader.workers": 0},
        {"batch_size": 32, "loader.workers": 1},
    ]
    tried(last, [10, 10.2, 9.9, 10.1], [30, 30.6, 29.7, 30.3])
    assert next_step(sweep) == []
    whole = rows(sweep)[-1]
    assert whole.step == ALL
    assert whole.ratio.value == pytest.approx(3.0)
    assert best_command(sweep).endswith("--set batch_size=32 --set loader.workers=1")


def test_of_many_variants_each_must_tell_more() -> None:
    """With one variant the interval excludes 1, with ten it does not: one of them may be lucky."""
    one = planned(STEPS[1], overrides=["loader.workers=0"])
    lucky, before = [10.9, 10.2, 11.0, 10.7], [10.0, 10.0, 10.0, 10.0]
    tried(next_step(one), before, lucky)
    assert rows(one)[1].answer == "faster"
    values = list(range(1, 11))
    many = planned(
        {"name": "workers", "key": "loader.workers", "values": values},
        overrides=["loader.workers=0"],
    )
    tried(next_step(many), before, lucky, *[before] * 9)
    assert rows(many)[1].answer == "inconclusive"


def test_what_this_host_cannot_do_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walking, "why_not", lambda spec: "no such thing" if spec.device else "")
    sweep = planned({"name": "device", "key": "accelerator.device", "values": ["cpu"]}, STEPS[1])
    points = next_step(sweep)
    assert [point.step for point in points] == [1, 1]
    assert points_of(sweep, 0)[1].failed == "no such thing"
    assert {row.step: row.not_measured for row in rows(sweep)}["device"] == "no such thing"
    tried(points, [10, 10.2], [12, 12.2])
    assert rows(sweep)[0].rates == [10, 10.2]  # the baseline was first measured in that step


def test_a_walk_ends_where_the_settings_that_it_kept_fail() -> None:
    sweep = planned(overrides=["batch_size=128"])
    points = next_step(sweep)
    points[0].failed = "too few samples"
    tried(points[1:], [10, 10.1, 10.2, 10.3], [10, 10.1, 10.2, 10.3])
    assert next_step(sweep) == []
    why = {row.step: row.not_measured for row in rows(sweep)}
    assert why["baseline"] == "too few samples"
    assert "failed" in why["workers"]


def test_a_walk_that_is_continued_keeps_what_its_earlier_steps_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(self: Any, point: SweepPoint, number: int) -> None:
        tried([point], [*point.figures, 15.0 + number])

    monkeypatch.setattr(sweeping._Trials, "_provide", lambda self, point: None)
    monkeypatch.setattr(sweeping._Trials, "_release", lambda self: None)
    monkeypatch.setattr(sweeping._Trials, "_trial", trial)
    sweep = planned(overrides=["batch_size=128", "loader.workers=0"])
    first = next_step(sweep)
    tried(first, [10, 10.2, 9.9, 10.1], [12, 12.2], [15, 15.3, 14.9, 15.1])
    first[1].failed = "INVALID: cache.cold"
    next_step(sweep)[1].failed = "INVALID: cache.cold"
    found = run_sweep(sweep, tmp_path, SweepOptions())
    assert (found.status, kept_settings(found)["batch_size"]) == ("ok", 32)
    assert [len(point.counted) for point in found.points] == [4, 0, 4, 4, 4]


def test_a_setting_that_failed_has_no_rate_whatever_it_measured_before() -> None:
    sweep = planned(STEPS[1], overrides=["loader.workers=0"])
    points = next_step(sweep)
    tried(points, [10, 10.2, 9.9, 10.1], [20, 20.3, 19.9, 20.1])
    assert rows(sweep)[1].answer == "faster"
    points[1].failed = "INVALID: cache.cold"
    row = rows(sweep)[1]
    assert (row.rates, row.ratio, row.answer) == ([], None, "")
    assert row.not_measured == "INVALID: cache.cold"


# Files


def test_values_by_the_cores() -> None:
    step = AskedStep(name="t", key="k", values=[1, "cores", "cores/2", "cores-1", "all"])
    assert step.on(8).values == [1, 8, 4, 7, "all"]
    assert step.on(2).values == [1, 2, "all"]
    assert AskedStep(name="t", key="k", values=["cores/2", "cores-1"]).on(1).values == []


def test_the_built_in_walk_has_the_published_order() -> None:
    spec = find_walk("cpu-training")
    assert [step.name for step in spec.walk] == [
        "batch size", "workers", "threads", "bfloat16", "channels_last", "compile", "allocator",
        "NUMA binding", "ipex.optimize",
    ]  # fmt: skip
    begun = load_workload(spec.workload)
    assert (begun.batch_size, begun.loader.workers) == (128, 0)
    assert (begun.accelerator.kind, begun.accelerator.precision) == ("model", "float32")
    assert find_walk("demo") is None


@pytest.mark.parametrize(
    "step",
    [
        "{name: a}",
        "{name: a, key: batch_size}",
        "{name: a, key: batch_size, values: [1], not_measured: x}",
        "{name: a, key: batch_siz, values: [1]}",
        "{name: a, key: batch_size, value: [1]}",
        "{name: a, key: batch_size, values: [1]}, {name: a, key: epochs, values: [1]}",
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, step: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"{{name: mine, workload: demo, walk: [{step}]}}")
    with pytest.raises(SpecError):
        plan_walk(build_sweep(), find_walk(str(path)))  # type: ignore[arg-type]


# A trial in a process of its own


@pytest.fixture(scope="module")
def trial(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    place = tmp_path_factory.mktemp("apart")
    size = ["sample_size.mean=8192", "sample_size.stdev=0", "samples=16"]
    generate(load_dataset_spec("cosmoflow", size), open_storage(str(place / "data")))
    given = ["kind=model", "model=tests.networks:Tiny", "threads=1", "warm_up=0s"]
    workload = load_workload(
        "cosmoflow-h100",
        [*(f"accelerator.{text}" for text in given), "batch_size=4", "cache=any", "max_steps=3"],
    )
    return Trial(
        workload=workload,
        data=str(place / "data"),
        accelerators=1,
        seed=1,
        results=str(place / "results"),
        command=["iobench", "sweep"],
        calibration_s=0,
        prove=False,
        tags={"box": "nfs-b"},
    )


def with_accelerator(trial: Trial, **changes: object) -> Trial:
    spec = trial.workload.accelerator.model_copy(update=changes)
    return trial.model_copy(
        update={"workload": trial.workload.model_copy(update={"accelerator": spec})}
    )


@pytest.mark.slow
def test_a_trial_apart_that_fails_says_why(trial: Trial) -> None:
    """The next trial is made all the same, also where the process of the one before has died."""
    with Apart() as apart:
        with pytest.raises(IobenchError, match="NotANumber"):
            apart.measure(with_accelerator(trial, model="tests.networks:NotANumber"))
        with pytest.raises(IobenchError):
            apart.measure(trial.model_copy(update={"data": f"{trial.data}/none"}))
        with pytest.raises(IobenchError, match="ended with -9"):
            apart.measure(with_accelerator(trial, model="tests.networks:KillsItsParent"))
        assert apart.measure(trial).document.status == "ok"


@pytest.mark.slow
def test_an_interrupted_trial_saves_what_it_has(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = tmp_path / "stepped"
    monkeypatch.setenv("IOBENCH_TEST_STEPPED", str(stepped))
    trial = with_accelerator(trial, model="tests.networks:TellsItsSteps")
    endless = trial.workload.model_copy(update={"max_steps": None, "epochs": 10**6})
    results = Path(trial.results) / "interrupted"
    asked = trial.model_copy(update={"workload": endless, "results": str(results)})

    def interrupt() -> None:
        wait_until(stepped.exists, "no run has begun")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with Apart() as apart, pytest.raises(InterruptedRun):
        apart.measure(asked)
    (run,) = results.glob("*/run.json")
    assert load_training(run.parent).status == "interrupted"


# The host


def test_why_a_host_cannot_train_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def spec(**given: object) -> AcceleratorSpec:
        asked = {"kind": "model", "model": "resnet18", **given}
        return AcceleratorSpec.model_validate(asked)

    monkeypatch.setattr("iobench.accelerate.possible.nodes", lambda: [[0, 1]])
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    assert why_not(spec()) == ""
    assert "NUMA" in why_not(spec(bind="node"))
    assert "libtcmalloc-minimal4" in why_not(spec(allocator="tcmalloc"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in why_not(spec(compile=True))
    assert why_not(spec(compile=True, device="cuda")) == ""
    assert why_not(spec(memory_format="channels_last")) == ""
    assert "vit-s16" in why_not(spec(memory_format="channels_last", model="vit-s16"))
    monkeypatch.setattr("iobench.accelerate.possible.nodes", lambda: [[0], [1]])
    assert why_not(spec(bind="node")) == ""


@pytest.mark.slow
def test_the_threads_that_a_launcher_has_set_are_replaced() -> None:
    """torchrun sets OMP_NUM_THREADS=1 where several ranks run and it is not set."""
    code = (
        "import torch; from iobench.accelerate.model import set_threads, told_by; "
        "print(torch.get_num_threads(), set_threads(3), torch.get_num_threads(), told_by())"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    assert python(code, env=environment).startswith("1 3 3 {'OMP_NUM_THREADS': '1'")
