"""sweep, ab, check and --confirm over two hosts, which here are processes of this machine."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from iobench.record.ab import AbRecord, load_ab
from iobench.record.run import TrainingRecord, load_training
from iobench.record.sweep import Sweep, load_sweep
from tests.hosts import ended, job
from tests.processes import Command, in_process, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

SETS = ("loader.workers=1", "batch_size=4", "accelerator.step_time=2ms", "epochs=1")
QUICK = ("--quiet", *(word for each in SETS for word in ("--set", each)))


@pytest.fixture
def data(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=96, format="tar", samples_per_shard=12)[1]
    return path


def start(tmp_path: Path, *words: object, **others: Any) -> list[Command]:
    return job(tmp_path, *words, "--results", tmp_path / "r", **others)


def ok(commands: list[Command]) -> list[str]:
    """What the hosts printed, none of which has failed."""
    found = ended(commands)
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    return [each.out for each in found]


def the_only(tmp_path: Path, name: str) -> Path:
    (found,) = tmp_path.glob(f"r/{name}")
    return found


def swept(folder: Path) -> tuple[Sweep, list[TrainingRecord]]:
    """A sweep, and the records of all its trials."""
    sweep = load_sweep(folder)
    return sweep, [load_training(folder / run) for point in sweep.points for run in point.runs]


def test_a_sweep_generates_once_and_makes_each_trial_on_both_hosts(tmp_path: Path) -> None:
    to = tmp_path / "data"
    words = ("sweep", "demo", "--to", to, "--samples", 96, *QUICK, "-n", 2, "--calibration", "0s")
    first, second = ok(start(tmp_path, *words, "--sweep", "dataset.format=files,tar"))
    assert second == ""
    sweep, trials = swept(the_only(tmp_path, "sweep-demo-*"))
    assert (sweep.status, sweep.hosts, sweep.accelerators) == ("ok", 2, 2)
    assert [len(point.runs) for point in sweep.points] == [2, 2]
    for trial in trials:
        assert [host.ranks for host in trial.job.hosts] == [1, 1]
        (repetition,) = trial.job.repetitions
        assert [host.samples for host in repetition.hosts] == [48, 48]
        assert repetition.complete
    assert {trial.job.dataset.spec.format for trial in trials} == {"files", "tar"}
    assert list(to.iterdir()) == []  # removed by the host that has generated it
    assert "files" in first


def slow_sweep(tmp_path: Path, data: Path) -> list[Command]:
    words = ("sweep", "demo", "--data", data, *QUICK, "-n", 50, "--calibration", "0s")
    return start(tmp_path, *words, "--sweep", "loader.prefetch_factor=1,2")


def trials_of(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("r/sweep-*/*/run.json")))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_sweep_whose_host_is_killed_keeps_its_trials_and_is_continued(
    data: Path, tmp_path: Path, victim: int
) -> None:
    commands = slow_sweep(tmp_path, data)
    wait_until(lambda: trials_of(tmp_path) >= 3, "no three trials ended")
    commands[victim].signal(signal.SIGKILL)
    found = ended(commands)
    assert [found[victim].code, found[1 - victim].code] == [-signal.SIGKILL, 1]
    assert f"host {victim} (" in found[1 - victim].err
    folder = the_only(tmp_path, "sweep-demo-*")
    if victim == 1:
        assert "--resume" in found[0].err
    before = sum(len(point.runs) for point in load_sweep(folder).points)
    assert before >= 2
    alone = in_process("sweep", "--resume", folder, "--quiet")
    assert alone[0] == 2  # with other hosts, its trials would not be comparable
    again = start(tmp_path, "sweep", "--resume", folder, "--quiet")
    wait_until(lambda: trials_of(tmp_path) >= before + 3, "no trial was added")
    again[1].signal(signal.SIGINT)
    assert [each.code for each in ended(again)] == [130, 130]
    sweep, trials = swept(folder)
    assert sweep.status == "interrupted"
    assert len(trials) > before
    assert all(len(trial.job.hosts) == 2 for trial in trials)


def test_a_budget_ends_a_sweep_on_both_hosts(data: Path, tmp_path: Path) -> None:
    words = ("sweep", "demo", "--data", data, *QUICK, "-n", 1000, "--calibration", "0s")
    ok(start(tmp_path, *words, "--sweep", "loader.prefetch_factor=1,2", "--budget", "8s"))
    sweep, trials = swept(the_only(tmp_path, "sweep-demo-*"))
    assert sweep.status == "out of time"
    assert trials


def test_sides_that_differ_are_measured_in_turns_on_both_hosts(data: Path, tmp_path: Path) -> None:
    words = ("ab", data, "--workload", "demo", "--set-b", "batch_size=8", *QUICK)
    _, second = ok(start(tmp_path, *words, "--max-rounds", 4))
    assert second == ""
    folder = the_only(tmp_path, "demo-ab-*")
    record: AbRecord = load_ab(folder)
    assert (record.status, len(record.rounds)) == ("ok", 4)
    for side, batch in (("a", 4), ("b", 8)):
        doc = load_training(folder / side)
        assert doc.job.workload.batch_size == batch
        assert [host.ranks for host in doc.job.hosts] == [1, 1]
        assert [len(each.hosts) for each in doc.job.repetitions] == [2] * 4
        assert {each.steps for each in doc.job.repetitions} == {96 // batch}
    # A run of both hosts can be named as a side: it keeps its number of ranks.
    ok(
        start(
            tmp_path,
            "ab",
            folder / "a",
            "--set-b",
            "loader.prefetch_factor=4",
            "-q",
            "--max-rounds",
            4,
        )
    )


def test_a_side_that_a_host_does_not_see_is_named_with_the_host(
    data: Path, make_dataset: Any, tmp_path: Path
) -> None:
    found = ended(start(tmp_path, "ab", data, tmp_path / "gone", "--workload", "demo", *QUICK))
    assert [each.code for each in found] == [found[0].code] * 2 != [0, 0]
    assert all("variant B" in each.err for each in found)
    assert not list(tmp_path.glob("r/*"))


def test_a_check_generates_once_and_measures_on_both_hosts(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    words = ("check", place, "--workload", "demo", "--size", "24MiB", *QUICK)
    found = ended(start(tmp_path, *words, "--budget", "25s"))
    if [each.code for each in found] == [2, 2]:  # other work on this machine left too little time
        found = ended(start(tmp_path, *words, "--budget", "2min"))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    first = found[0].out
    assert list(place.iterdir()) == []
    doc = load_training(the_only(tmp_path, "demo-*"))
    assert [host.ranks for host in doc.job.hosts] == [1, 1]
    assert doc.job.repetitions
    assert "2 hosts" in " ".join(first.split())


def test_advice_is_tried_on_both_hosts(data: Path, tmp_path: Path) -> None:
    slow = f"throttled+{data}?latency=40ms"
    words = (*QUICK, "--set", "reader.concurrency=1")
    ok(start(tmp_path, "run", "demo", "--data", slow, *words, "-n", 2, "--calibration", "1s"))
    earlier = the_only(tmp_path, "demo-*")
    words = ("advise", earlier, "--confirm", "--budget", "10s", "--quiet")
    found = ended(job(tmp_path, *words, "--results", tmp_path / "tried"))
    assert found[0].code == found[1].code in (0, 4), [each.err for each in found]
    (folder,) = (tmp_path / "tried").iterdir()
    doc = load_training(folder)
    assert [host.ranks for host in doc.job.hosts] == [1, 1]
    assert [each.settings for each in doc.job.confirmations]
    assert (bool(found[0].out), found[1].out) == (True, "")
