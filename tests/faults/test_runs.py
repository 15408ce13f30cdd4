"""Runs that go wrong: a read that fails, a rank that dies, Ctrl-C, kill -9. Nothing hangs, nothing
is left behind, nothing is lost.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.errors import InterruptedRun, StorageError, WorkerError
from iobench.load.reader import BatchReader
from iobench.runner.crew import ForkedCrew
from iobench.runner.experiment import Options
from iobench.runner.experiment import run as run_plan
from iobench.runner.loading import run_phase
from iobench.runner.phase import Phase, PhaseInterrupted, Saving
from iobench.runner.plan import make_plan
from iobench.runner.progress import Observer
from iobench.schema.record import load_training
from iobench.schema.training import Epoch
from iobench.schema.workload import (
    AcceleratorSpec,
    LoaderSpec,
    ReaderSpec,
    load_workload,
)
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.faulty import FaultyStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.observers import OnSteps
from tests.processes import PATIENCE_S

pytestmark = pytest.mark.usefixtures("nothing_left")


def phase(manifest: Any, storage: Any, **more: Any) -> Phase:
    reading = ReaderSpec(direct=False, concurrency=2)
    given: dict[str, Any] = {"loading": LoaderSpec(workers=1), **more}
    return Phase(
        name="measure",
        reader=BatchReader(manifest, storage, reading),
        reading=reading,
        accelerator=AcceleratorSpec(kind="null"),
        accelerators=2,
        batch_size=8,
        seed=1,
        **given,
    )


def test_every_read_may_fail_and_says_so(make_dataset: Any) -> None:
    """Fail the Nth read for N = 1, 2, ... until an epoch passes: each failure is one StorageError
    that names the shard.
    """
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    failures = []
    delivered = 0
    while not delivered and len(failures) < 60:
        try:
            outcome = run_phase(
                phase(manifest, FaultyStorage(LocalStorage(path), fail_at=len(failures) + 1))
            )
        except StorageError as error:
            failures.append(str(error))
        else:
            delivered = sum(int(columns["samples"].sum()) for columns in outcome.columns.values())
    assert delivered == 60
    assert len(failures) >= 3  # each of the three shards was read at least once
    assert all(
        "simulated input/output error" in text and "demo-00000" in text and "\n" not in text
        for text in failures
    )


def test_an_object_that_ends_early_is_named(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    with pytest.raises(StorageError, match=r"ends at byte \d+"):
        run_phase(phase(manifest, FaultyStorage(LocalStorage(path), short_every=2)))


@pytest.mark.parametrize("when", ["as it is told to go", "before it is told to go"])
def test_a_rank_that_dies_ends_the_phase(make_dataset: Any, when: str) -> None:
    others = {child.pid for child in psutil.Process().children()}  # servers of other tests
    manifest, path = make_dataset(format="tar", samples_per_shard=20)

    def kill_one(epoch: int) -> Epoch:
        ranks = [child for child in psutil.Process().children() if child.pid not in others]
        victim = next(
            child for child in ranks if "resource_tracker" not in " ".join(child.cmdline())
        )
        victim.kill()
        while when.startswith("before") and victim.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        return Epoch(epoch=epoch)

    with pytest.raises(WorkerError, match=r"rank \d died \(killed by SIGKILL\)"):
        run_phase(phase(manifest, LocalStorage(path)), prepare=kill_one)


def test_workers_of_a_dead_rank_die_too(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    killed = False

    def kill_later(steps: int) -> None:
        nonlocal killed
        if steps and not killed:
            killed = True
            max(psutil.Process().children(), key=psutil.Process.create_time).kill()

    storage = ThrottledStorage(LocalStorage(path), latency_s=0.2)
    with pytest.raises(WorkerError):
        run_phase(phase(manifest, storage, epochs=100), observer=OnSteps(kill_later))


def test_a_killed_worker_of_a_rank_is_one_line(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)

    def kill_workers(steps: int) -> None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name() == "pt_data_worker":
                    child.kill()

    with pytest.raises(WorkerError, match="a loader worker died") as caught:
        run_phase(
            phase(manifest, ThrottledStorage(LocalStorage(path), latency_s=0.1), epochs=100),
            observer=OnSteps(kill_workers),
        )
    assert "\n" not in str(caught.value)


def _steps(outcome: Any) -> int:
    return sum(len(columns["epoch"]) for columns in outcome.columns.values())


def test_ctrl_c_while_the_cache_is_prepared_keeps_the_epochs_before(make_dataset: Any) -> None:
    """All ranks wait for an answer then, and must get one."""
    manifest, path = make_dataset(format="tar", samples_per_shard=20)

    def prepare(epoch: int) -> Epoch:
        if epoch == 2:
            raise KeyboardInterrupt
        return Epoch(epoch=epoch)

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(phase(manifest, LocalStorage(path), epochs=100), prepare=prepare)
    outcome = caught.value.outcome
    assert [sum(columns["samples"].sum() for columns in outcome.columns.values())] == [2 * 60]
    assert [epoch.epoch for epoch in outcome.epochs] == [0, 1]
    assert not outcome.complete


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_at_any_instant_keeps_what_was_recorded(
    make_dataset: Any, number: signal.Signals
) -> None:
    """Epochs so short that messages between ranks and parent are all that happens; each attempt
    comes a little later.
    """
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the verbs do
    try:
        for attempt in range(12):
            timer = threading.Timer(0.027 * attempt, os.kill, (os.getpid(), number))
            _interrupted(phase(manifest, LocalStorage(path), epochs=100_000), timer)
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupted(running: Phase, timer: threading.Timer) -> None:
    seen: list[int] = []

    def prepare(epoch: int) -> Epoch:
        if not epoch:
            timer.start()
        return Epoch(epoch=epoch)

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(running, prepare=prepare, observer=OnSteps(seen.append))
    timer.join()
    outcome = caught.value.outcome
    assert set(outcome.columns) == {0, 1}
    assert _steps(outcome) >= max(seen, default=0)


def test_ctrl_c_in_the_search_for_the_maximum_keeps_what_was_tried(
    make_dataset: Any, tmp_path: Path
) -> None:
    _, path = make_dataset(format="tar", samples=400, samples_per_shard=20)  # several accelerators
    tried: list[str] = []

    class Impatient(Observer):
        def phase(self, title: str) -> None:
            if title.startswith("trying"):
                tried.append(title)
            if len(tried) == 3:
                raise KeyboardInterrupt

    settings = [
        "required_accelerator_utilization=0.01",
        "batch_size=2",
        "reader.crop=null",
        "loader.workers=1",
        "reader.direct=false",
    ]
    plan = make_plan(
        load_workload("demo", settings), str(path), accelerators=1, repetitions=1, seed=1
    )
    with pytest.raises(InterruptedRun) as caught:
        run_plan(plan, Options(results=tmp_path / "r", calibration_s=0, find_max=True), Impatient())
    (directory,) = (tmp_path / "r").iterdir()
    assert str(directory) in str(caught.value)
    found = load_training(directory).job.find_max
    assert found is not None
    assert [f"trying {point.accelerators} accelerator" for point in found.points] == [
        title.removesuffix("s") for title in tried[:2]
    ]
    assert found.accelerators == max(
        (point.accelerators for point in found.points if point.passed), default=None
    )
    assert found.bound  # why no larger number was tried


def test_ctrl_c_keeps_what_the_others_recorded_where_a_rank_is_dead(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    before = {child.pid for child in psutil.Process().children()}

    def prepare(epoch: int) -> Epoch:
        if epoch == 2:
            victim = next(child for child in psutil.Process().children() if child.pid not in before)
            victim.kill()
            while victim.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
            raise KeyboardInterrupt
        return Epoch(epoch=epoch)

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(phase(manifest, LocalStorage(path), epochs=100), prepare=prepare)
    outcome = caught.value.outcome
    assert [len(set(columns["epoch"])) for columns in outcome.columns.values()] == [2]
    assert not outcome.complete


@pytest.mark.parametrize("transport", ["ring", "tensor", "thread", "null"])
def test_ctrl_c_does_not_wait_for_storage_that_hangs(make_dataset: Any, transport: str) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    storage = FaultyStorage(LocalStorage(path), stall_every=40, stall_s=3600)
    done, since = 0, 0.0

    def press(steps: int) -> None:
        nonlocal done, since
        if steps != done:
            done, since = steps, time.monotonic()
        elif done and time.monotonic() - since > 1.5:  # nothing comes any more
            raise KeyboardInterrupt

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(
            phase(
                manifest,
                storage,
                epochs=100_000,
                loading=LoaderSpec(workers=1, transport=transport),
            ),
            observer=OnSteps(press),
        )
    outcome = caught.value.outcome
    assert set(outcome.columns) == {0, 1}
    assert _steps(outcome) >= done > 0


def _read_by_workers(pid: int) -> int:
    """Bytes that the loader workers of this process have read."""
    count = 0
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                count += child.io_counters().read_chars if child.name() == "pt_data_worker" else 0
    return count


class EndlessSave:
    """Saves into storage that hangs; stands for a rank's saver and for the job's records."""

    begun = False

    def make_room(self) -> None:
        return

    def begin(self, step: int) -> int:
        self.begun = True
        return time.monotonic_ns()

    def save(self, number: int, start_ns: int) -> None:
        time.sleep(3600)

    def poll(self) -> None:
        return

    def close(self) -> None:
        return


def test_ctrl_c_in_a_save_that_does_not_end_keeps_the_steps_before(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    records = EndlessSave()
    saving: Any = Saving(every=3, first=0, records=records, saver=lambda link: EndlessSave())  # type: ignore[arg-type, return-value]

    def press(steps: int) -> None:
        if records.begun:
            raise KeyboardInterrupt

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(
            phase(manifest, LocalStorage(path), epochs=100, saving=saving), observer=OnSteps(press)
        )
    outcome = caught.value.outcome
    assert [len(columns["step"]) for columns in outcome.columns.values()] == [
        2,
        2,
    ]  # the third of each rank is the one that saves


def test_ctrl_c_while_a_failed_phase_ends_is_not_lost(
    make_dataset: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank has failed, and the other one hangs: a sweep must not go on to its next point."""
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    hanging = multiprocessing.get_context("fork").Value("q", 0)

    class HangsAndFails(LocalStorage):
        def read_into(self, *arguments: Any, **more: Any) -> int:
            with hanging.get_lock():
                hanging.value = hanging.value or os.getpid()
            if hanging.value == os.getpid():
                time.sleep(3600)
            raise StorageError("this rank fails")

    end = ForkedCrew.end

    def interrupted_end(crew: ForkedCrew, *arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end(crew, *arguments)

    monkeypatch.setattr(ForkedCrew, "end", interrupted_end)
    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(phase(manifest, HangsAndFails(path)))
    assert not caught.value.outcome.complete
    pressed = caught.value.__cause__
    assert pressed is not None
    assert "this rank fails" in str(pressed.__context__)


def test_a_signal_to_a_worker_does_not_speak_for_its_rank(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    told: set[int] = set()

    def tell(steps: int) -> None:
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if child.name() == "pt_data_worker":
                    child.send_signal(signal.SIGUSR1)
                    told.add(child.pid)

    outcome = run_phase(
        phase(manifest, ThrottledStorage(LocalStorage(path), latency_s=0.1), epochs=5), tick=tell
    )
    assert told
    assert sum(int(columns["samples"].sum()) for columns in outcome.columns.values()) == 5 * 60


@pytest.fixture
def running(make_dataset: Any, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A real run in a process of its own, in the middle of its first repetition."""
    _, path = make_dataset(format="tar", samples_per_shard=20)
    arguments = [
        "run",
        "demo",
        "--data",
        f"throttled+{path}?latency=20ms",
        "--results",
        str(tmp_path),
        "--calibration",
        "0",
    ]
    arguments += [
        "--quiet",
        "--repeat",
        "1",
        "--set",
        "batch_size=2",
        "--set",
        "epochs=500",
        "--set",
        "reader.crop=null",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "iobench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    data = sum(shard.stat().st_size for shard in path.rglob("*.tar"))
    assert data
    deadline = time.monotonic() + 240
    while _read_by_workers(process.pid) < 3 * data:  # further ahead than batches are fetched
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield process, tmp_path
    if process.poll() is None:
        process.kill()
        process.wait()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def test_ctrl_c_saves_what_was_measured(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, results = running
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    assert len(stderr.strip().splitlines()) == 1
    assert stderr.startswith("iobench: interrupted")
    run = next(results.iterdir())
    document = json.loads((run / "run.json").read_text())
    assert document["status"] == "interrupted"
    assert document["job"]["repetitions"][0]["complete"] is False
    assert document["job"]["repetitions"][0]["steps"] > 0
    assert (run / "events.parquet").stat().st_size > 0
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]


def test_sigterm_saves_what_was_measured(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, results = running
    process.terminate()  # as a batch scheduler does
    _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, stderr
    document = json.loads((next(results.iterdir()) / "run.json").read_text())
    assert document["status"] == "interrupted"
    assert document["job"]["repetitions"][0]["steps"] > 0


def test_kill_9_leaves_no_process(running: tuple[subprocess.Popen[str], Path]) -> None:
    process, _ = running
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # the rank and its workers
    process.kill()
    process.wait()
    assert not psutil.wait_procs(family, timeout=PATIENCE_S)[1]


def test_a_long_path_for_temporary_files(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors come through a socket, whose path has 107 bytes at most (unix(7))."""
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    place = tmp_path / ("long-" * 20)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    loading = LoaderSpec(workers=1, transport="tensor")
    outcome = run_phase(phase(manifest, LocalStorage(path), loading=loading))
    assert outcome.complete
    assert list(place.iterdir()) == []
