"""One trial of a point: a repetition as a run of its own, in this process or in one of its own.

A process of its own is for what can be chosen only when a process starts: the library that gives
memory (LD_PRELOAD), and whatever torch keeps for as long as its process lives: threads, pools of
memory, compiled code. The process of a trial is forked from one that has imported torch and nothing
more, its *starter*, since the imports take longer than a short trial trains. A starter gets trials
as lines of JSON on its standard input, and says on its standard output where the run of each is, or
why there is none.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from ...accelerate.bind import allocator_environment
from ...base.errors import InterruptedRun, IobenchError, UsageError
from ...base.processes import die_with_parent
from ...base.text import printable
from ...record.run import RunRecord, load_training
from ...settings.any_workload import AnyWorkload
from ...settings.base import Record, build
from ...settings.tags import Tags, tagged
from ...settings.workload import Workload
from ..experiment import run as run_plan
from ..hosts.hosts import Hosts
from ..options import Observer, Options
from ..plan import Plan
from ..repeated import Asked, plan_of, repeat_once

_START = "import sys; sys.path[:] = sys.argv[2:]; from {0} import main; main(int(sys.argv[1]))"

_STOPS = (signal.SIGINT, signal.SIGTERM)

_MAX_LINE = 300


class Trial(Record):
    """What one trial measures: one repetition of a workload, as a run of its own."""

    workload: AnyWorkload
    data: str
    accelerators: int
    seed: int
    results: str
    command: list[str]
    calibration_s: float
    prove: bool
    tags: Tags


class _Answer(Record):
    run: str = ""
    error: str = ""
    remedy: str = ""
    interrupted: bool = False
    ended: int | None = None  # the last line of a trial: its process has ended with this code


class MeasuredTrial(NamedTuple):
    document: RunRecord
    directory: Path


def measure(
    trial: Trial, observer: Observer | None = None, hosts: Hosts | None = None
) -> MeasuredTrial:
    """Make the trial in this process, and on the other hosts of a job. Raises IobenchError."""
    asked = Asked(
        workload=trial.workload,
        data=trial.data,
        accelerators=trial.accelerators,
        seed=trial.seed,
    )
    plan, hosts = plan_of(asked, repetitions=1), hosts or Hosts()
    options = Options(
        results=Path(trial.results),
        command=tuple(trial.command),
        calibration_s=trial.calibration_s,
        rules="quick",
        ablations=False,
        prove=trial.prove,
    )
    with tagged(trial.tags), ExitStack() as held:
        if not isinstance(plan, Plan):
            told = observer or Observer()
            return MeasuredTrial(*repeat_once(plan, options, told, hosts, verb="sweep"))
        return MeasuredTrial(*run_plan(plan, options, observer, hosts.of(plan, held)))


def needs_a_process(workload: AnyWorkload) -> bool:
    """Whether a trial can't be made in a process that has made others: it trains a model."""
    return isinstance(workload, Workload) and workload.accelerator.kind == "model"


class Apart:
    """Makes trials in processes of their own, as a context that ends the starters of these."""

    def __init__(self) -> None:
        self._starters: dict[tuple[tuple[str, str], ...], _Starter] = {}

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *about: object) -> None:
        while self._starters:
            self._starters.popitem()[1].close()

    def measure(self, trial: Trial) -> MeasuredTrial:
        """Make the trial in a new process, which has the allocator that its workload asks for.

        Ctrl-C reaches that process once, from here: it then saves what it has measured. Raises
        InterruptedRun, IobenchError.
        """
        assert isinstance(trial.workload, Workload)  # as others need no process
        changed = allocator_environment(trial.workload.accelerator.allocator)
        key = tuple(changed.items())
        if key not in self._starters:
            self._starters[key] = _Starter(changed)
        try:
            answer = self._starters[key].trial(trial)
        except IobenchError:
            self._starters.pop(key).close()
            raise
        if answer.interrupted:
            raise InterruptedRun(answer.error)
        if answer.error:
            raise IobenchError(answer.error, remedy=answer.remedy)
        directory = Path(trial.results) / Path(answer.run).name
        return MeasuredTrial(load_training(directory), directory)


class _Starter:
    """A process that forks a process for each trial, seen from the process of the sweep.

    It has this process's module search path, and is in a session of its own, which Ctrl-C does not
    reach. ``changed``: variables of its environment.
    """

    def __init__(self, changed: Mapping[str, str]) -> None:
        start = [sys.executable, "-P", "-c", _START.format(__name__), str(os.getpid()), *sys.path]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115, close() closes it
        self._process = subprocess.Popen(
            start,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={**os.environ, **changed},
            start_new_session=True,
        )

    def trial(self, trial: Trial) -> _Answer:
        """Have the trial made. Raises InterruptedRun, and IobenchError if its process has died."""
        self._said.seek(0)
        self._said.truncate()
        try:
            self._ask(trial)
            answer = self._answer()
        except KeyboardInterrupt:
            self._stop()
            raise InterruptedRun("interrupted while a trial ran in its own process") from None
        if not (answer.run or answer.error or answer.interrupted):
            raise IobenchError(
                f"the process of the trial has ended with {answer.ended}{_last_line(self._said)}",
                remedy="is there enough memory? Use a smaller batch_size",
            )
        return answer

    def close(self) -> None:
        """End the process, and a trial that it makes."""
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _ask(self, trial: Trial) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(trial.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died; its exit code is in the answer

    def _answer(self) -> _Answer:
        """What the trial has answered when its process has ended."""
        assert self._process.stdout is not None
        found = _Answer()
        for line in self._process.stdout:
            try:
                said = build(_Answer, json.loads(line), where="the process of the trial")
            except (ValueError, UsageError):
                continue
            if said.ended is not None:
                return found.model_copy(update={"ended": said.ended})
            found = said
        return _Answer(ended=self._process.wait())

    def _stop(self) -> None:
        """Have the trial save what it has, and wait until it has ended; end it if asked again."""
        try:
            self._process.send_signal(signal.SIGINT)
            self._answer()
        except KeyboardInterrupt:
            self._process.kill()
            self._process.wait()


def _last_line(said: object) -> str:
    """What the process has said last on its standard error, for the error's line."""
    said.seek(0)  # type: ignore[attr-defined]
    text: bytes = said.read()[-20_000:]  # type: ignore[attr-defined]
    lines = text.decode(errors="replace").strip().splitlines()
    return f": {printable(lines[-1], _MAX_LINE)}" if lines else ""


def main(parent: int) -> None:
    """A starter's process: fork a process for each trial, one after the other."""
    from ...accelerate.model import ModelAccelerator

    die_with_parent(parent)
    out = os.dup(1)
    os.dup2(2, 1)  # what the model of a user prints is no answer
    ModelAccelerator.import_early()
    context, trying = multiprocessing.get_context("fork"), 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        if trying:
            os.kill(trying, signal.SIGINT)

    for stop in _STOPS:
        signal.signal(stop, interrupt)
    for line in sys.stdin:
        process = context.Process(target=_make, args=(line, out))
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        process.start()
        trying = process.pid or 0
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        process.join()
        trying = 0
        _write(out, _Answer(ended=process.exitcode))


def _make(line: str, out: int) -> None:
    """A trial's process: make the trial, and write its answer."""
    die_with_parent()
    for stop in _STOPS:
        signal.signal(stop, signal.default_int_handler)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        found = measure(build(Trial, json.loads(line), where="the trial"))
        answer = _Answer(run=found.directory.name)
    except InterruptedRun as error:
        answer = _Answer(error=error.what, interrupted=True)
    except KeyboardInterrupt:
        answer = _Answer(error="interrupted", interrupted=True)
    except IobenchError as error:
        answer = _Answer(error=error.what, remedy=error.remedy)
    _write(out, answer)


def _write(out: int, answer: _Answer) -> None:
    os.write(out, f"{answer.model_dump_json()}\n".encode())
