"""A visit in a process of its own: what can be chosen only when a process starts is then free.

That is the library that gives memory (LD_PRELOAD), and whatever torch keeps for as long as its
process lives: threads, pools of memory, compiled code. The visit is told what to do by JSON on its
standard input, and says on its standard output where its run is, or why there is none.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from ...accelerate.bind import allocator_environment
from ...errors import InterruptedRun, IobenchError, UsageError
from ...processes import die_with_parent
from ...schema.base import Record, build
from ...schema.record import TrainingRecord, load_training
from ...schema.workload import Workload
from ...text import printable
from ..experiment import Options
from ..experiment import run as run_plan
from ..plan import make_plan
from ..progress import Progress

_START = "import sys; sys.path[:] = sys.argv[1:]; from {0} import main; main()"

_MAX_LINE = 300


class Visit(Record):
    """What one visit measures: one repetition of a workload, as a run of its own."""

    workload: Workload
    data: str
    accelerators: int
    seed: int
    results: str
    command: list[str]
    calibration_s: float
    prove: bool


class _Answer(Record):
    run: str = ""
    error: str = ""
    remedy: str = ""
    interrupted: bool = False


class Measured(NamedTuple):
    document: TrainingRecord
    directory: Path


def measure(visit: Visit, progress: Progress | None = None) -> Measured:
    """Make the visit in this process. Raises IobenchError."""
    plan = make_plan(
        visit.workload,
        visit.data,
        accelerators=visit.accelerators,
        repetitions=1,
        seed=visit.seed,
    )
    options = Options(
        results=Path(visit.results),
        command=tuple(visit.command),
        calibration_s=visit.calibration_s,
        rules="quick",
        knock_outs=False,
        prove=visit.prove,
    )
    return Measured(*run_plan(plan, options, progress))


def needs_a_process(workload: Workload) -> bool:
    """Whether a visit can't be made in a process that has made others: it trains a model."""
    return workload.accelerator.kind == "model"


def measure_apart(visit: Visit) -> Measured:
    """Make the visit in a process of its own, which has the allocator that its workload asks for.

    The process has this one's module search path. It is in a session of its own, so that Ctrl-C
    reaches it once, from here: it then saves what it has measured. Raises InterruptedRun,
    IobenchError.
    """
    changed = allocator_environment(visit.workload.accelerator.allocator)
    start = [sys.executable, "-P", "-c", _START.format(__name__), *sys.path]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            start,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **changed},
            start_new_session=True,
        )
        asked = json.dumps({"parent": os.getpid(), "visit": visit.model_dump(mode="json")})
        try:
            out, _ = process.communicate(asked.encode())
        except KeyboardInterrupt:
            _stop(process)
            raise InterruptedRun("interrupted while a visit ran in its own process") from None
        except BaseException:
            process.kill()
            process.wait()
            raise
        answer = _answer_of(out)
        if answer is None:
            raise IobenchError(
                f"the process of the visit has ended with {process.returncode}{_last_line(said)}",
                remedy="is there enough memory? Use a smaller batch_size",
            )
    if answer.interrupted:
        raise InterruptedRun(answer.error)
    if answer.error:
        raise IobenchError(answer.error, remedy=answer.remedy)
    directory = Path(visit.results) / Path(answer.run).name
    return Measured(load_training(directory), directory)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Have the process save what it has, and wait until it has ended; end it if asked again."""
    try:
        process.send_signal(signal.SIGINT)
        process.communicate()
    except KeyboardInterrupt:
        process.kill()
        process.wait()


def _answer_of(out: bytes) -> _Answer | None:
    """The last line that the process has written, if it is an answer."""
    try:
        return build(_Answer, json.loads(out.splitlines()[-1]), where="the process of the visit")
    except (IndexError, ValueError, UsageError):
        return None


def _last_line(said: object) -> str:
    """What the process has said last on its standard error, for the error's line."""
    said.seek(0)  # type: ignore[attr-defined]
    text: bytes = said.read()[-20_000:]  # type: ignore[attr-defined]
    lines = text.decode(errors="replace").strip().splitlines()
    return f": {printable(lines[-1], _MAX_LINE)}" if lines else ""


def main() -> None:
    """The visit's process."""
    asked = json.load(sys.stdin)
    die_with_parent(asked["parent"])
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = os.dup(1)
    os.dup2(2, 1)  # what the model of a user prints is no answer
    try:
        found = measure(build(Visit, asked["visit"], where="the visit"))
        answer = _Answer(run=found.directory.name)
    except InterruptedRun as error:
        answer = _Answer(error=error.what, interrupted=True)
    except KeyboardInterrupt:
        answer = _Answer(error="interrupted", interrupted=True)
    except IobenchError as error:
        answer = _Answer(error=error.what, remedy=error.remedy)
    os.write(out, f"\n{answer.model_dump_json()}\n".encode())
