"""Runs that go wrong: a read that fails, a rank that dies, Ctrl-C, kill -9. Nothing hangs, nothing
is left behind, nothing is lost.
"""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from iobench.base.errors import InterruptedRun, IobenchError, StorageError
from iobench.record.run import FileDigest, load_training
from iobench.record.training import Epoch
from iobench.runner.calibration import findmax
from iobench.runner.crew import ForkedCrew
from iobench.runner.experiment import run as run_plan
from iobench.runner.loading import run_phase
from iobench.runner.options import Observer, Options
from iobench.runner.phase import Phase, PhaseInterrupted, Saving
from iobench.runner.plan import make_plan
from iobench.settings.workload import LoaderSpec, load_workload
from iobench.storage.local.storage import LocalStorage
from iobench.storage.simulated.faulty import FaultyStorage
from iobench.storage.simulated.throttled import ThrottledStorage
from tests.observers import on_steps
from tests.phases import phase
from tests.processes import (
    Command,
    Ended,
    check_ended,
    family,
    loader_workers,
    read_by_workers,
    running,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("nothing_left")


def _steps(outcome: Any) -> int:
    return sum(len(columns["epoch"]) for columns in outcome.columns.values())


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.nightly)]
)
def test_ctrl_c_at_any_instant_keeps_what_was_recorded(
    make_dataset: Any, number: signal.Signals
) -> None:
    """Epochs so short that messages between ranks and parent are all that happens; each attempt
    comes a little later.
    """
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as the verbs do
    try:
        for attempt in range(6):
            timer = threading.Timer(0.054 * attempt, os.kill, (os.getpid(), number))
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
        run_phase(running, prepare=prepare, context=on_steps(seen.append))
    timer.join()
    outcome = caught.value.outcome
    assert set(outcome.columns) == {0, 1}
    assert _steps(outcome) >= max(seen, default=0)


def test_ctrl_c_in_the_search_for_the_maximum_keeps_what_was_tried(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(findmax, "MIN_STEPS", 10)
    monkeypatch.setattr(findmax, "IN_FLIGHT", 2)
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
        "accelerator.step_time=5ms",
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
    assert [f"trying {point.accelerators} accelerator" for point in found.points] == [
        title.removesuffix("s") for title in tried[:2]
    ]
    assert found.accelerators == max(
        (point.accelerators for point in found.points if point.passed), default=None
    )
    assert found.bound  # why no larger number was tried


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("iobench.host.timeline.write_events", IobenchError("No space left on device")),
        ("iobench.runner.experiment.add_changes", OSError(errno.ENOSPC, "No space left on device")),
        ("iobench.runner.results.conclude", TypeError("No space left on device")),
    ],
    ids=["its events", "anything else", "what it means"],
)
def test_a_record_is_left_where_its_events_have_no_room(
    make_dataset: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: Exception,
) -> None:
    """Nor is it lost where something fails that should not."""

    def failing(*given: object, **more: object) -> FileDigest:
        raise error

    monkeypatch.setattr(place, failing)
    _, path = make_dataset(format="tar", samples_per_shard=20)
    settings = ["batch_size=2", "reader.crop=null", "loader.workers=1", "accelerator.step_time=1ms"]
    plan = make_plan(
        load_workload("demo", settings), str(path), accelerators=1, repetitions=1, seed=1
    )
    with pytest.raises(type(error), match="No space left"):
        run_plan(plan, Options(results=tmp_path / "r", calibration_s=0, ablations=False))
    (directory,) = (tmp_path / "r").iterdir()
    doc = load_training(directory)
    assert (doc.status, len(doc.job.repetitions)) == ("failed", 1)
    assert "No space left" in doc.error


def test_ctrl_c_keeps_what_the_others_recorded_where_a_rank_is_dead(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    before = {child.pid for child in psutil.Process().children()}

    def prepare(epoch: int) -> Epoch:
        if epoch == 2:
            victim = next(child for child in psutil.Process().children() if child.pid not in before)
            victim.kill()
            wait_until(lambda: victim.status() == psutil.STATUS_ZOMBIE, "it does not die")
            raise KeyboardInterrupt
        return Epoch(epoch=epoch)

    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(phase(manifest, LocalStorage(path), epochs=100), prepare=prepare)
    outcome = caught.value.outcome
    assert [len(set(columns["epoch"])) for columns in outcome.columns.values()] == [2]
    assert not outcome.complete


@pytest.mark.parametrize(
    "transport",
    [
        "ring",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("tensor", "thread", "null")),
    ],
)
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
            context=on_steps(press),
        )
    outcome = caught.value.outcome
    assert set(outcome.columns) == {0, 1}
    assert _steps(outcome) >= done > 0


class EndlessSave:
    """Saves into storage that hangs; stands for a rank's saver and for the job's records."""

    begun = False

    def make_room(self) -> None:
        return

    def begin(self, step: int) -> int:
        self.begun = True
        return time.monotonic_ns()

    def save(self, number: int, start_ns: int, *, asked_s: float) -> None:
        time.sleep(3600)

    def poll(self) -> None:
        return

    def change(self, step: int) -> None:
        return

    def changed(self) -> None:
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
            phase(manifest, LocalStorage(path), epochs=100, saving=saving), context=on_steps(press)
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

    def interrupted_end(crew: ForkedCrew, *_: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        end(crew, 1.0)

    monkeypatch.setattr(ForkedCrew, "end", interrupted_end)
    with pytest.raises(PhaseInterrupted) as caught:
        run_phase(phase(manifest, HangsAndFails(path)))
    assert not caught.value.outcome.complete
    pressed = caught.value.__cause__
    assert "this rank fails" in str(pressed.__context__)


def test_a_signal_to_a_worker_does_not_speak_for_its_rank(make_dataset: Any) -> None:
    manifest, path = make_dataset(format="tar", samples_per_shard=20)
    told: set[int] = set()

    def tell(steps: int) -> None:
        for worker in loader_workers():
            with suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGUSR1)
                told.add(worker.pid)

    outcome = run_phase(
        phase(manifest, ThrottledStorage(LocalStorage(path), latency_s=0.1), epochs=5),
        context=on_steps(tell),
    )
    assert told
    assert sum(int(columns["samples"].sum()) for columns in outcome.columns.values()) == 5 * 60


# A whole run


Start = Callable[..., Command]


@pytest.fixture
def start(make_dataset: Any, tmp_path: Path) -> Iterator[Start]:
    """``start(words, begun)``: ``iobench run`` in a process group of its own, in the middle of its
    first repetition. Its workers have read further ahead than batches are fetched, or ``begun`` is
    true of the command.
    """
    _, path = make_dataset(format="tar", samples_per_shard=20)
    size = sum(shard.stat().st_size for shard in path.rglob("*.tar"))
    usual = f"run demo --results {tmp_path}/r --calibration 0 --quiet --set batch_size=2"
    usual += " --set epochs=1000 --set reader.crop=null"
    usual += f" --data throttled+{path}?latency=20ms"
    started: list[psutil.Process] = []

    def run(words: str = "", begun: Callable[[Command], bool] | None = None) -> Command:
        given = f"{usual} {words}".replace("LOCAL", str(path))
        process = stack.enter_context(running(given, folder=tmp_path, before=os.setsid))
        seen = begun or (lambda command: read_by_workers(command.pid) >= 3 * size)
        wait_until(lambda: process.ended() or seen(process), "the run does not read")
        assert not process.ended(), process.wait()
        started.extend(family(process.pid))
        return process

    with ExitStack() as stack:
        yield run
    for each in started:  # where a test has failed
        with suppress(psutil.NoSuchProcess):
            each.kill()


def interrupted(
    process: Command, folder: Path, *, number: int = signal.SIGINT, times: int = 1
) -> tuple[dict[str, Any], Ended]:
    """The record of a run that was interrupted as a terminal does it, in its whole group."""
    processes = family(process.pid)
    for _ in range(times):
        os.killpg(process.pid, number)
    ended = process.wait()
    check_ended(processes)
    (run,) = (folder / "r").iterdir()
    document = json.loads((run / "run.json").read_text())
    assert document["status"] == "interrupted"
    if times == 1:  # a second one may find Python on its way out
        assert (ended.code, ended.out, ended.err.count("\n")) == (130, "", 1), ended
        assert ended.err.startswith("iobench: interrupted")
        assert str(run) in ended.err
        assert (run / "events.parquet").stat().st_size > 0
    return document, ended


def test_ctrl_c_saves_what_was_measured(start: Start, tmp_path: Path) -> None:
    """Of two ranks. The first repetition is complete, the second is interrupted; both are in
    run.json, and each says which it is.
    """
    seen: set[int] = set()

    def second_repetition(command: Command) -> bool:
        seen.update(worker.pid for worker in loader_workers(command.pid))
        return len(seen) >= 4  # ranks and their workers live for one repetition

    words = "--accelerators 2 --repeat 50 --no-ablations --set max_steps=20 --set loader.workers=1"
    document, _ = interrupted(start(words, second_repetition), tmp_path)
    repetitions = document["job"]["repetitions"]
    assert repetitions[0]["complete"] is True
    assert repetitions[0]["samples"] == 2 * 20 * 2
    assert 2 <= len(repetitions) < 50
    assert repetitions[-1]["complete"] is False


def test_sigterm_saves_what_was_measured(start: Start, tmp_path: Path) -> None:
    """A batch scheduler sends it to the program alone."""
    process = start()
    processes = family(process.pid)
    process.signal(signal.SIGTERM)
    assert process.wait().code == 130
    check_ended(processes)
    (run,) = (tmp_path / "r").iterdir()
    document = json.loads((run / "run.json").read_text())
    assert document["status"] == "interrupted"
    assert document["job"]["repetitions"][0]["steps"] > 0


def test_ctrl_c_twice_loses_nothing(start: Start, tmp_path: Path) -> None:
    """An impatient user: no hang, no process left, and the document is whole."""
    interrupted(start(), tmp_path, times=2)


@pytest.mark.parametrize(("transport", "victim"), [("ring", "main"), ("tensor", "rank")])
def test_kill_9_leaves_neither_process_nor_memory(
    start: Start, transport: str, victim: str
) -> None:
    process = start(f"--set loader.transport={transport} --set loader.workers=2")
    processes = family(process.pid)
    assert len(processes) >= 3  # the rank and its workers
    os.kill(process.pid if victim == "main" else process.children()[0], signal.SIGKILL)
    ended = process.wait()
    if victim == "rank":
        assert (ended.code, ended.err.count("\n")) == (1, 1)
        assert "rank 0 died (killed by SIGKILL)" in ended.err
    check_ended(processes)


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
