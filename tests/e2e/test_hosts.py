"""Runs on several hosts: here they are processes of this machine that are told to be hosts."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from iobench.host.timeline import read_events
from iobench.judge.rebuild import rebuild
from iobench.record.run import TrainingRecord, load_run
from tests.hosts import ended, job, record_of
from tests.processes import Command, in_process, read_by_workers, wait_until

pytestmark = pytest.mark.usefixtures("nothing_left")

Start = Callable[..., list[Command]]


@pytest.fixture
def data(make_dataset: Any) -> Path:
    path: Path = make_dataset(samples=240, format="tar", samples_per_shard=20)[1]
    return path


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start ``iobench run demo`` as so many hosts; ``of``: the words of single hosts."""
    usual = "run demo --repeat 1 --calibration 0s --no-ablations --quiet --set loader.workers=1 "
    usual += "--set batch_size=4 --set accelerator.step_time=2ms --results"

    def started(hosts: int, *words: object, **others: Any) -> list[Command]:
        return job(tmp_path, *usual.split(), tmp_path / "r", *words, hosts=hosts, **others)

    return started


def test_two_hosts_with_unequal_ranks_are_one_run(data: Path, start: Start, tmp_path: Path) -> None:
    words = ("--data", data, "--set", "epochs=2")
    of: dict[int, list[object]] = {
        0: ["--accelerators-per-host", 1],
        1: ["--accelerators-per-host", 2],
    }
    found = ended(start(2, *words, of=of))
    assert [each.code for each in found] == [0, 0], [each.err for each in found]
    doc = record_of(tmp_path, TrainingRecord)
    (repetition,) = doc.job.repetitions
    assert (doc.job.accelerators, len(doc.hosts)) == (3, 2)
    assert [(each.first_rank, each.ranks) for each in doc.job.hosts] == [(0, 1), (1, 2)]
    assert repetition.samples == 2 * 240  # each sample once in an epoch, over all hosts
    assert [each.samples for each in repetition.hosts] == [2 * 80, 2 * 160]
    assert [each.rank for each in repetition.ranks] == [0, 1, 2]
    assert repetition.steps == 2 * 3 * 20
    assert [len(epoch.residencies) for epoch in repetition.epochs] == [2, 2]
    assert repetition.window_s is not None
    assert repetition.tail_s is not None
    assert doc.job.barrier_s is not None
    # One clock: the planted offset is 0, and must lie within the error.
    assert abs(doc.job.hosts[1].offset_s or 0.0) <= doc.job.hosts[1].offset_error_s
    assert "hosts.same-machine" in {finding.rule for finding in doc.findings}
    again = rebuild(doc, read_events(tmp_path / "r" / doc.run_id / "events.parquet"))
    assert again.job.repetitions[0] == repetition
    assert again.changed == ()
    assert "3 accelerators on 2 hosts" in " ".join(found[0].out.split())


@pytest.mark.parametrize("victim", ["agent", pytest.param("rank", marks=pytest.mark.nightly)])
def test_whoever_is_killed_the_run_fails_by_name_and_nobody_is_left(
    data: Path, start: Start, tmp_path: Path, victim: str
) -> None:
    commands = start(2, "--data", data, "--set", "epochs=100000")
    here, there = commands
    wait_until(lambda: bool(here.children() and there.children()), "no rank began")
    if victim == "rank":
        os.kill(there.children()[-1], signal.SIGKILL)
    else:
        os.kill(there.pid, signal.SIGKILL)
    first, second = ended(commands)
    assert first.code == 1
    assert "host 1 (" in first.err
    assert second.code == (1 if victim == "rank" else -signal.SIGKILL)
    doc = record_of(tmp_path, TrainingRecord)
    assert doc.status == "failed"
    assert "host 1 (" in doc.error


@pytest.mark.parametrize("stopped", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_a_host_that_stands_still_is_lost_by_name_and_ends_when_it_goes_on(
    data: Path, start: Start, stopped: int
) -> None:
    commands = start(2, "--data", data, "--set", "epochs=100000")
    wait_until(lambda: all(each.children() for each in commands), "no rank began")
    commands[stopped].signal(signal.SIGSTOP)
    try:
        found = commands[1 - stopped].wait()
    finally:
        commands[stopped].signal(signal.SIGCONT)
    assert found.code == 1
    assert f"host {stopped} (" in found.err
    other = commands[stopped].wait()
    assert other.code == 1
    assert f"host {1 - stopped} (" in other.err


def test_a_host_keeps_its_part_of_a_run_whose_controller_is_killed(
    data: Path, start: Start, tmp_path: Path
) -> None:
    words = ("--data", data, "--set", "epochs=100000", "--rules", "mlperf")
    here, there = start(2, *words)
    size = sum(shard.stat().st_size for shard in data.rglob("*.tar"))
    # Then its workers have read further ahead than batches are fetched.
    wait_until(lambda: read_by_workers(there.pid) >= 3 * size, "no loader reads")
    here.signal(signal.SIGKILL)
    first, found = ended([here, there])
    assert (first.code, found.code) == (-signal.SIGKILL, 1)
    assert "host 0 (" in found.err
    assert "his host's part of the run is kept" in found.err
    (part,) = tmp_path.glob("r/demo-host-1-*")
    _, out, _ = in_process("report", part)
    assert "the part of host 1 (" in out
    doc = load_run(part)
    assert isinstance(doc, TrainingRecord)
    assert (doc.status, doc.rules) == ("failed", "mlperf")
    (repetition,) = doc.job.repetitions
    assert not repetition.complete
    assert repetition.samples


@pytest.mark.parametrize("where", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_interrupt_on_any_host_ends_all_and_keeps_what_was_measured(
    data: Path, start: Start, tmp_path: Path, where: int
) -> None:
    commands = start(2, "--data", data, "--set", "epochs=100000")
    wait_until(lambda: bool(commands[1].children()), "no rank began")
    commands[where].signal(signal.SIGINT)
    assert [each.code for each in ended(commands)] == [130, 130]
    doc = record_of(tmp_path, TrainingRecord)
    assert doc.status == "interrupted"


def test_hosts_that_do_not_fit_are_refused_by_name_on_all(
    data: Path, start: Start, make_dataset: Any, tmp_path: Path
) -> None:
    other = make_dataset(samples=40, format="tar", samples_per_shard=20, seed=5)[1]
    assert other != data
    found = ended(start(2, of={0: ["--data", data], 1: ["--data", other]}))
    assert [each.code for each in found] == [2, 2]
    assert all("host 1 (" in each.err for each in found)
    found = ended(start(2, "--data", data, of={1: ["--seed", 7]}))
    assert [each.code for each in found] == [2, 2]
    assert all("was given another --seed than host 0" in each.err for each in found)
    assert not list(tmp_path.glob("r/*/run.json"))


def test_a_meeting_that_nobody_joins_ends_in_one_line(data: Path, start: Start) -> None:
    (alone,) = ended(start(3, "--data", data, "--join-within", "2s", begun=1))
    assert alone.code == 2
    assert "numbers 1, 2" in alone.err
