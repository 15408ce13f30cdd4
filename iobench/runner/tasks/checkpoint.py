"""A rank that checkpoints: it holds its share of the state, saves it, trains on, and restores it.

What the parent of a study sends, and what comes back::

    Prepare         Done: the state has changed, and its checksums are known
    SaveNow         PartSaved when the part is durable, and Done after the training steps
    Drain           PartSaved for what was still going on, then Done
    PrepareRestore  Done: the tensors are wiped, and the files were checked
    RestoreNow      PartRestored
    Stop            Ended

Beside a run, ``tasks.load`` calls ``change``, ``changed``, ``save``, ``poll`` and ``close`` between
its steps instead.
"""

from __future__ import annotations

import inspect
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

from ...checkpoint import CheckpointWriter, make_writer, options_of
from ...checkpoint.base import Job, Pending, State
from ...checkpoint.catalog import CheckpointRoot
from ...checkpoint.leaves import leaves, part_of, raw, state_checksums
from ...checkpoint.sharding import Share
from ...host.resources import PeakMemory
from ...record.checkpoint import CheckpointSpec, RankSave
from ...storage.base import retried
from ..checkpoint_plan import OPTIONS
from ..messages import (
    HURRY,
    Done,
    Drain,
    Ended,
    Link,
    PartRestored,
    PartSaved,
    Prepare,
    PrepareRestore,
    RestoreNow,
    SaveNow,
)

_CALIBRATION = 200_000  # iterations of the loop in ``_compute``, about 5 ms


class TrainingSteps:
    """Steps of ``step_s`` seconds; the host computes for ``host_share`` of each, in Python.

    A background writer competes for the interpreter, the cores and the memory. If the host's part
    then takes longer than the step, the step becomes longer. A slower host part that still ends
    within the step costs nothing, as on a real accelerator whose queue is full.
    """

    def __init__(self, step_s: float, host_share: float) -> None:
        self.step_s = step_s
        started = time.perf_counter()
        _compute(_CALIBRATION)
        self._turns = round(_CALIBRATION * step_s * host_share / (time.perf_counter() - started))

    def step(self) -> float:
        """Run one step; return the seconds that it took."""
        started = time.perf_counter()
        _compute(self._turns)
        left = self.step_s - (time.perf_counter() - started)
        if left > 0:
            time.sleep(left)
        return time.perf_counter() - started


def _compute(turns: int) -> int:
    total = 0
    for turn in range(turns):
        total ^= turn
    return total


class _StoppedError(Exception):
    """The parent has ended the study instead of starting the restore."""


class _Going(NamedTuple):
    """A save that may still be in progress."""

    step: int
    start_ns: int
    pending: Pending
    memory: PeakMemory
    held_s: float = 0.0  # the training stood still beside the save itself


class Checkpoint:
    """The task of a checkpoint study. ``make`` makes a rank's part, in the rank's process."""

    def __init__(self, make: Callable[[Link], CheckpointRank]) -> None:
        self._make = make

    def run(self, link: Link) -> None:
        signal.signal(HURRY, signal.SIG_IGN)  # a save that ends soon is complete
        self._make(link).run()


class CheckpointRank:
    """A rank's state, writer and training steps.

    ``build`` makes the rank's state; it is called in the rank's process. ``changing``: the tensors
    that change from save to save; None: all of them.
    """

    def __init__(
        self,
        job: Job,
        spec: CheckpointSpec,
        root: CheckpointRoot,
        build: Callable[[], State],
        link: Link,
        changing: Share | None = None,
    ) -> None:
        self.job, self.spec, self.link = job, spec, link
        self.root = root  # the parent's object, for example so that all ranks share one speed limit
        self.state = build()
        self.changing = self.state if changing is None else part_of(self.state, changing)
        self.checksums = state_checksums(self.state)
        self.writer: CheckpointWriter = make_writer(spec.writer, job, writer_options(spec))
        # It takes its memory now: the first save would else begin later than the common start.
        self.writer.check(self.state, root.step(0))
        self._told = retried(root.storage)
        self.training = TrainingSteps(spec.step_time, spec.host_share) if spec.steps else None
        self.going: _Going | None = None
        self._changing: Future[None] | None = None

    def run(self) -> None:
        self.link.send(Done())
        try:
            while True:
                match self.link.receive():
                    case Prepare(step):
                        self.prepare(step)
                        self.link.send(Done())
                    case SaveNow(step, at_ns, whole):
                        self.save(step, at_ns, whole=whole)
                        self.link.send(self._train())
                    case Drain():
                        self._finish()
                        self.link.send(Done())
                    case PrepareRestore(step):
                        self._restore(step)
                    case _:
                        break
        except _StoppedError:
            pass
        finally:
            self.writer.close()
        self.link.send(Ended())

    def close(self) -> None:
        """Report the save in progress, if any, and release the writer."""
        self.changed()
        self._finish()
        self.writer.close()

    def prepare(self, step: int) -> None:
        """Change the state, and compute the checksums that a restore is compared with.

        This is not timed, because no training does it.
        """
        advance(self.changing, step)
        self.state["step"] = step
        self.checksums |= state_checksums(self.changing)

    def change(self, step: int) -> None:
        """Begin to ``prepare`` the save of this step in a thread, while the training goes on."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-change")
        self._changing = thread.submit(self.prepare, step)
        thread.shutdown(wait=False)

    def changed(self) -> None:
        """Wait until the change that has begun, if any, has ended."""
        if self._changing is not None:
            self._changing.result()

    def save(self, step: int, start_ns: int, *, whole: bool = False, asked_s: float = 0.0) -> None:
        """Save what changes of the state, or the ``whole`` state, as of ``step``.

        All ranks begin at ``start_ns``. An asynchronous writer continues in the background.
        ``asked_s``: for how long the training has stood still for the answer that all may begin.
        """
        state = self.state if whole else self.changing
        checksums = {name: self.checksums[name] for name in leaves(state)}
        memory = PeakMemory()
        wait_until(start_ns)
        pending = self.writer.save(
            state, self.root.step(step), fsync=self.spec.fsync, checksums=checksums
        )
        began = time.monotonic()
        self._finish()  # the previous save, which has ended by now: this save waited for it
        held_s = asked_s + time.monotonic() - began
        self.going = _Going(step, start_ns, pending, memory, held_s)
        if not self.writer.asynchronous:
            self._finish()

    def poll(self) -> None:
        """Report the background save, if it has ended."""
        if self.going is not None and self.going.pending.done():
            self._finish()

    def _finish(self) -> None:
        """Wait for the save in progress, if any, and report it."""
        if self.going is None:
            return
        step, start_ns, pending, memory, held_s = self.going
        saved = pending.wait()
        again = self._again()
        self.going = None
        late = saved.started_s - start_ns / 1e9
        self.root.step(step).publish(saved, rank=self.job.rank)
        record = RankSave(
            blocked_s=saved.blocked_s + late,
            accepted_s=saved.accepted_s + late,
            durable_s=None if saved.durable_s is None else saved.durable_s + late,
            bytes=saved.bytes,
            files=len(saved.files),
            cpu_s=saved.cpu_s,
            extra_memory_bytes=memory.extra_bytes(),
            unwritten_bytes=saved.unwritten_bytes,
            staged_s=None if saved.staged_s is None else saved.staged_s + late,
            waited_s=saved.backpressure_s if self.writer.asynchronous else None,
            held_s=held_s if self.writer.asynchronous else None,
            **again,
        )
        self.link.send(PartSaved(step, record))

    def _again(self) -> dict[str, int]:
        """How many requests were sent again since the last save or restore ended."""
        before, self._told = self._told, retried(self.root.storage)
        return self._told.since(before)._asdict()

    def _train(self) -> Done:
        """Run the steps until the next save, and return the seconds of each."""
        done = Done()
        for _ in range(self.spec.steps if self.training else 0):
            assert self.training is not None
            if self.link.stopped.value:
                break
            overlapped = self.going is not None and not self.going.pending.done()
            took = done.overlapped_s if overlapped else done.alone_s
            took.append(self.training.step())
            self.poll()
        return done

    def _restore(self, step: int) -> None:
        """Prepare a restore, and carry it out when all ranks are ready.

        What changed since another checkpoint is read over the state, which has that one by now.
        """
        target = self.root.step(step)
        state = self.state if target.manifest().base is None else self.changing
        wipe(state)
        # A third party's writer need not know the options that came after its version.
        known = inspect.signature(self.writer.restore).parameters
        start_ns = 0

        def begin() -> None:
            nonlocal start_ns
            start_ns = self._common_start()

        how: dict[str, Any] = {} if self.spec.verify else {"verify": False}
        if "begin" in known:
            how["begin"] = begin
        else:
            begin()
        restored = self.writer.restore(state, target, **how)
        late = restored.started_s - start_ns / 1e9
        if "begin" not in known:
            # The safety check of the files is iobench's own, and no part of a training's restore.
            late -= restored.inspected_s
        right = state.get("step") == step
        self.link.send(
            PartRestored(
                wall_s=restored.wall_s + late,
                late_s=late,
                bytes=restored.bytes,
                cpu_s=restored.cpu_s,
                # None: the check was not requested. A wrong step is an error in any case.
                verified=None if right and not restored.verified else right,
                threads=getattr(restored, "threads", None),  # a third party's may lack it
                **self._again(),
            )
        )

    def _common_start(self) -> int:
        """Wait until all ranks are ready and their common start has come; return it."""
        self.link.send(Done())
        command = self.link.receive()
        if not isinstance(command, RestoreNow):
            raise _StoppedError
        wait_until(command.at_ns)
        return command.at_ns


def writer_options(spec: CheckpointSpec) -> dict[str, int]:
    """The options that the spec sets and its writer supports: requests in flight, their bytes."""
    given = {option: getattr(spec, option) for option in OPTIONS & options_of(spec.writer)}
    return {option: value for option, value in given.items() if value is not None}


_BLOCK = 4096
"""Bytes of the blocks, at least, that a storage compares to store equal ones once."""


def advance(state: State, step: int) -> None:
    """Change the step number, and two bytes in each block of each tensor.

    So no two saves have a block in common, as after a training step.
    """
    for value in state.values():
        if isinstance(value, dict):
            advance(value, step)
        elif hasattr(value, "numel"):
            memory = raw(value)
            memory[::_BLOCK], memory[1::_BLOCK] = step % 256, step // 256 % 256
    if "step" in state:
        state["step"] = step


def wipe(state: State) -> None:
    """Clear the state, so that everything in it after a restore must come from storage."""
    for key, value in state.items():
        if isinstance(value, dict):
            wipe(value)
        elif hasattr(value, "zero_"):
            value.zero_()
        elif key == "step":
            state[key] = -1


def wait_until(start_ns: int) -> None:
    """Return at an instant of the monotonic clock."""
    while (left := start_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
