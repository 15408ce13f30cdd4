"""A sweep's own record: which points it has, and a file that cannot be written or read."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iobench.ask.tuning.points import payback
from iobench.ask.tuning.sweepfolder import read_sweep
from iobench.ask.tuning.walk import compared
from iobench.base.errors import (
    InterruptedRun,
    IobenchError,
    SpecError,
    StorageError,
    UsageError,
)
from iobench.record.sweep import (
    SWEEP_FILE,
    Sweep,
    SweepPoint,
    combinations,
    load_sweep,
    parse_axis,
    save_sweep,
)
from iobench.report.render_text import render_text
from iobench.report.sections import FirstScreen, first_screen
from iobench.report.sweep import sections
from iobench.runner.budget import Budget
from iobench.runner.hosts.hosts import Hosts
from iobench.runner.options import Observer, SweepOptions
from iobench.runner.sweeping import run as sweeping
from iobench.runner.sweeping.plan import OVER_BUDGET, groups_within
from iobench.runner.sweeping.trial import Apart
from iobench.settings.workload import load_workload
from tests.processes import in_process, printed
from tests.unit.conftest import build_run, build_sweep

AXES = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True),
    min_size=1,
)


@given(axes=AXES, data=st.data())
def test_every_point_once(axes: dict[str, list[Any]], data: st.DataObject) -> None:
    base = {key: data.draw(st.sampled_from(values)) for key, values in axes.items()}
    whole = combinations(axes, one_at_a_time=False, base=base)
    assert len({tuple(point.items()) for point in whole}) == len(whole)
    assert base in whole
    few = combinations(axes, one_at_a_time=True, base=base)
    assert few[0] == base
    assert len(few) == 1 + sum(len(values) - 1 for values in axes.values())
    for point in few:
        assert point in whole
        assert sum(point[key] != base[key] for key in base) == (point != base)


def test_true_is_not_one() -> None:
    key, values = parse_axis("storage.x=true,1")
    assert (key, values) == ("storage.x", [True, 1])
    assert len(combinations({key: values}, one_at_a_time=True, base={key: 1})) == 2
    with pytest.raises(SpecError, match="twice"):
        parse_axis("storage.x=1,1.0")


def test_a_record_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    sweep = build_sweep()
    (tmp_path / SWEEP_FILE).mkdir()
    with pytest.raises(IobenchError, match=SWEEP_FILE):
        save_sweep(tmp_path, sweep)
    assert [path.name for path in tmp_path.iterdir()] == [SWEEP_FILE]
    with pytest.raises(IobenchError):
        save_sweep(tmp_path / "nowhere", sweep)


def _point(number: int, data: str, dataset_bytes: int = 40) -> SweepPoint:
    return SweepPoint(settings={"a": number}, data=data, dataset_bytes=dataset_bytes)


def test_groups_begin_with_todays_settings() -> None:
    """A time budget leaves out the last groups, and never the settings that others are compared
    with. Points of one dataset stay together, so that it is generated once.
    """
    points = (_point(1, "z"), _point(2, "a"), _point(3, "z"), _point(4, "m", 90))
    points = (*points, _point(5, "b", 101))
    sweep = build_sweep(axes={"a": [1, 2]}, points=[*points])
    groups = groups_within(sweep, 100)
    assert [[point.settings["a"] for point in group] for group in groups] == [[1, 3, 2], [4]]
    assert sweep.points[-1].failed == OVER_BUDGET
    assert groups_within(sweep, None) == [sweep.points]
    with pytest.raises(UsageError, match="--data-budget"):
        groups_within(sweep, 39)


def test_a_rate_that_was_not_measured_is_no_rate_of_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repetition that was shorter than its start-up has no rate."""
    doc = build_run(repetition={"samples_per_s": None})
    assert doc.job.repetitions[0].samples_per_s is None
    monkeypatch.setattr(sweeping, "resolve", lambda *_: (load_workload("demo"), None))
    monkeypatch.setattr(sweeping, "measure", lambda *_: (doc, tmp_path / "r"))
    point = _point(1, "z")
    sweep = build_sweep(axes={"a": [1, 2]}, points=[point])
    lease: Any = None  # it is looked at before a trial
    trials = sweeping._Trials(sweep, tmp_path, SweepOptions(), lease, Apart(), Observer(), Hosts())
    with pytest.raises(IobenchError, match="not measured"):
        trials._trial(point, 0)
    assert (point.figures, point.runs, point.seconds) == ([], [], [])


def test_a_sweep_makes_the_trials_that_its_budget_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each trial takes 10 s on a planted clock, so that 45 s are enough for four of ten."""
    now = [100.0]

    def trial(self: Any, point: SweepPoint, number: int) -> None:
        now[0] += 10.0
        point.runs.append(f"run-{number}")
        point.figures.append(1.0)
        point.seconds.append(10.0)

    def provide(self: Any, point: SweepPoint) -> None:
        self.held[point.data] = ExitStack()

    monkeypatch.setattr("iobench.runner.budget.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sweeping._Trials, "_trial", trial)
    monkeypatch.setattr(sweeping._Trials, "_provide", provide)
    monkeypatch.setattr(sweeping._Trials, "_release", lambda self: None)
    points = [SweepPoint(settings={"batch_size": each}, data="d") for each in (1, 2)]
    sweep = build_sweep(axes={"a": [1, 2]}, points=[*points]).model_copy(update={"repetitions": 5})
    found = sweeping.run_sweep(sweep, tmp_path, SweepOptions(budget=Budget(seconds=45.0)))
    assert [len(point.runs) for point in found.points] == [2, 2]
    assert found.status == "out of time"
    assert sum("2 of 5 repetitions" in text for text in found.left_out) == 2
    assert "--resume" in found.left_out[-1]
    assert "--budget 72s" in found.left_out[-1]  # six trials, and a fifth more
    with pytest.raises(UsageError, match="the sweep is 'out of time'") as caught:
        read_sweep(tmp_path)  # these trials left no runs
    assert "--resume" in caught.value.remedy
    more = sweeping.run_sweep(found, tmp_path, SweepOptions())
    assert [len(point.runs) for point in more.points] == [5, 5]
    assert (more.status, more.left_out) == ("ok", [])


def test_a_group_whose_trials_take_long_costs_no_other_group_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(self: Any, point: SweepPoint, number: int) -> None:
        point.runs.append("run")
        point.seconds.append(1.0)

    monkeypatch.setattr(sweeping._Trials, "_trial", trial)
    monkeypatch.setattr(sweeping._Trials, "_provide", lambda self, point: None)
    points = [
        _point(number, data).model_copy(update={"runs": ["run"], "seconds": [took_s]})
        for number, data, took_s in ((1, "z", 3600.0), (2, "y", 1.0))
    ]
    sweep = build_sweep(axes={"a": [1, 2]}, points=points)
    options = SweepOptions(data_bytes=40, budget=Budget(seconds=600.0))
    found = sweeping.run_sweep(sweep, tmp_path, options)
    assert [len(point.runs) for point in found.points] == [1, 2]


def test_an_invalid_trial_is_made_again_in_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage becomes twice as fast with each round, which no pair of one round can see."""
    tried: list[tuple[object, int]] = []

    def trial(self: Any, point: SweepPoint, number: int) -> None:
        tried.append((point.settings["a"], number))
        if tried.count((2, 1)) == 1 and tried[-1] == (2, 1):
            raise sweeping._InvalidError("INVALID: cache.cold")
        point.runs.append(f"run-{number}")
        point.figures.append(2.0**number * (1.1 if point.settings["a"] == 2 else 1.0))
        point.seconds.append(1.0)

    monkeypatch.setattr(sweeping._Trials, "_trial", trial)
    monkeypatch.setattr(sweeping._Trials, "_provide", lambda self, point: None)
    points = [_point(number, "z").model_copy(update={"step": 0}) for number in (1, 2)]
    sweep = build_sweep(axes={"a": [1, 2]}, points=points, data="z", repetitions=4)
    monkeypatch.setattr(sweeping._Trials, "_release", lambda self: None)
    found = sweeping.run_sweep(sweep, tmp_path, SweepOptions(drop=False))
    assert tried == [(1, 0), (2, 0), (2, 1), (1, 1), (2, 1), (1, 2), (2, 2), (2, 3), (1, 3)]
    ((ratio, _),) = compared(found.points)
    assert ratio is not None
    assert (ratio.n, ratio.low, ratio.high) == (4, pytest.approx(1.1), pytest.approx(1.1))


def test_data_that_points_share_is_generated_once_more_at_most(tmp_path: Path) -> None:
    """Of two points that lack a trial of 2 s each, and read the same 40 bytes, made in 40 s."""
    points = [_point(number, "z").model_copy(update={"seconds": [2.0]}) for number in (1, 2)]
    asked = build_sweep(axes={"a": [1, 2]}, points=[*points], data="")
    asked = asked.model_copy(update={"repetitions": 1})
    lease: Any = None  # it is looked at before a trial
    trials = sweeping._Trials(asked, tmp_path, SweepOptions(), lease, Apart(), Observer(), Hosts())
    trials.pace_s = 1.0
    assert trials._needed_s(points) == 2 * 2.0 + 40.0


def test_a_sweep_goes_on_where_a_dataset_can_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trial(self: Any, point: SweepPoint, number: int) -> None:
        point.runs.append(f"run-{number}")
        point.figures.append(1.0)
        point.seconds.append(1.0)

    def provide(self: Any, point: SweepPoint) -> None:
        self.held[point.data] = ExitStack()

    def fails(data: str, **how: object) -> None:
        raise StorageError("the server is busy")

    class Hearing(Observer):
        def note(self, line: str) -> None:
            notes.append(line)

    notes: list[str] = []
    monkeypatch.setattr(sweeping._Trials, "_trial", trial)
    monkeypatch.setattr(sweeping._Trials, "_provide", provide)
    monkeypatch.setattr(sweeping, "discard", fails)
    sweep = build_sweep(axes={"a": [1, 2]}, points=[_point(1, "z"), _point(2, "y")], data="")
    options = SweepOptions(data_bytes=40, drop=False)
    found = sweeping.run_sweep(sweep, tmp_path, options, observer=Hearing())
    assert [bool(point.runs) for point in found.points] == [True, True]
    assert (found.status, notes) == ("ok", 2 * ["not removed: the server is busy"])


def test_a_sweep_that_lost_its_data_does_not_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Any, point: SweepPoint) -> None:
        raise StorageError("the data is gone")

    monkeypatch.setattr(sweeping._Trials, "_provide", fails)
    made = build_sweep(axes={"a": [1]}, points=[_point(1, "z")], data="z")
    with pytest.raises(StorageError, match="gone"):
        sweeping.run_sweep(made, tmp_path, SweepOptions())
    assert load_sweep(tmp_path).status == "interrupted"


def test_the_command_that_continues_a_sweep_is_one_to_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(self: Any, point: SweepPoint) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweeping._Trials, "_provide", stops)
    (place := tmp_path / "my results").mkdir()
    made = build_sweep(axes={"a": [1]}, points=[_point(1, "z")], data="z")
    with pytest.raises(InterruptedRun) as told:
        sweeping.run_sweep(made, place, SweepOptions())
    assert shlex.split(told.value.what)[-2:] == ["--resume", str(place)]


# After how many epochs a conversion has paid, of sweeps whose figures are planted

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


def test_what_a_point_measured_before_it_failed_counts_nowhere(tmp_path: Path) -> None:
    files, tar = point([90, 101], 3.0), point([500, 510], 6.0, **TAR)
    made = sweep(files, tar).model_copy(update={"status": "ok"})
    save_sweep(tmp_path, made)
    assert payback(made, tar) is not None
    assert "iobench advise" in printed("report", tmp_path)
    files.failed = "INVALID: cache.cold"
    save_sweep(tmp_path, made)
    assert payback(made, tar) is None
    assert "iobench advise" not in printed("report", tmp_path)
    tar.failed = "INVALID: cache.cold"
    save_sweep(tmp_path, made)
    code, out, _ = in_process("report", tmp_path)
    assert (code, "0 points measured, 2 failed" in out) == (1, True)
    assert "format=files workers=4: INVALID: cache.cold" in out


@pytest.mark.parametrize(
    ("slower", "told"), [([90.0, 101.0], True), ([50.0, 52.0], False), ([100.0], True)]
)
def test_points_that_the_trials_do_not_tell_apart_are_named(
    slower: list[float], told: bool
) -> None:
    screen = first_screen(sections(sweep(point(slower), point([100.0, 104.0], **TAR))))
    assert ("do not tell it from" in " ".join(render_text(screen).split())) == told


@pytest.mark.parametrize(("points", "trials", "known"), [(2, 3, True), (12, 3, False)])
def test_the_best_of_many_points_has_no_interval_of_few_trials(
    points: int, trials: int, known: bool
) -> None:
    """Three trials each make an interval for one pair of points, and none for eleven pairs."""
    rates = [100.0 + number for number in range(trials)]
    others = [
        point([rate + 50 for rate in rates], loader__workers=5 + n) for n in range(points - 1)
    ]
    shown = sections(sweep(point(rates), *others))
    (screen,) = (each for each in shown if isinstance(each, FirstScreen))
    (over,) = (each.value for each in screen.gauges if each.label.startswith("over"))
    assert ("[" in over) == known
