"""A rank of a checkpoint study: it holds its share of the state, saves it, trains on, and restores it when told.

What the parent sends, and what comes back::

    ("prepare", step)             ("ready", None): the state has changed, and its checksums are known
    ("save", step, start_ns)      ("saved", step, RankSave, publish time) when it is durable, ("ready", overlap) after the steps
    ("drain",)                    ("saved", ...) for what was still going on, then ("ready", None)
    ("restore", step, start_ns)   ("restored", step, {...})
    ("stop",)                     nothing: the rank ends
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ..checkpoint.base import CheckpointWriter, Job, Pending, State, make_writer, options_of
from ..checkpoint.catalog import CheckpointRoot
from ..checkpoint.leaves import state_checksums
from ..measure.memory import PeakMemory
from ..schema.checkpoint import CheckpointSpec, RankSave
from .checkpoint_plan import OPTIONS
from .training import TrainingSteps


class _Going(NamedTuple):
    """A save that may still be going on."""

    step: int
    start_ns: int
    pending: Pending
    memory: PeakMemory


class CheckpointRank:
    """``build`` makes the rank's state; it is called in the rank's process."""

    def __init__(
        self,
        job: Job,
        spec: CheckpointSpec,
        root: CheckpointRoot,
        build: Callable[[], State],
        pipe: Connection,
    ) -> None:
        self.job, self.spec, self.pipe = job, spec, pipe
        self.root = root  # the parent's: what wraps a storage, a shared speed limit for one, is common to all ranks
        self.state = build()
        self.checksums = state_checksums(self.state)
        self.writer: CheckpointWriter = make_writer(spec.writer, job, writer_options(spec))
        self.training = TrainingSteps(spec.step_time, spec.host_share) if spec.steps else None
        self.going: _Going | None = None

    def run(self) -> None:
        self.pipe.send(("ready", None))
        try:
            while True:
                match self.pipe.recv():
                    case ("prepare", step):
                        self.prepare(step)
                        self.pipe.send(("ready", None))
                    case ("save", step, start_ns):
                        self.save(step, start_ns)
                        self.pipe.send(("ready", self._train()))
                    case ("drain",):
                        self._finish()
                        self.pipe.send(("ready", None))
                    case ("restore", step, start_ns):
                        self._restore(step, start_ns)
                    case _:
                        return
        finally:
            self.writer.close()

    def close(self) -> None:
        """Report what is still going on, and let go."""
        self._finish()
        self.writer.close()

    def prepare(self, step: int) -> None:
        """Off the clock: let the state change, and take its checksums, which a restore is compared with. No training does that."""
        advance(self.state, step)
        self.checksums = state_checksums(self.state)

    def save(self, step: int, start_ns: int) -> None:
        """Save the state as of ``step``, all ranks from ``start_ns`` on; an asynchronous writer goes on behind."""
        memory = PeakMemory()
        _wait_until(start_ns)
        pending = self.writer.save(
            self.state, self.root.step(step), fsync=self.spec.fsync, checksums=self.checksums
        )
        self._finish()  # the one before: this save has waited for it
        self.going = _Going(step, start_ns, pending, memory)
        if not self.writer.asynchronous:
            self._finish()

    def poll(self) -> None:
        """Report a save that went on behind, if it has ended."""
        if self.going is not None and self.going.pending.done():
            self._finish()

    def _finish(self) -> None:
        """Report the save that was going on; waits for its end."""
        if self.going is None:
            return
        step, start_ns, pending, memory = self.going
        saved = pending.wait()
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
            staged_s=None if saved.staged_s is None else saved.staged_s + late,
            waited_s=saved.backpressure_s if self.writer.asynchronous else None,
        )
        self.pipe.send(("saved", (step, record)))

    def _train(self) -> dict[str, list[float]]:
        """The steps until the next save, those behind which a save went on apart from the others; seconds of each."""
        took: dict[str, list[float]] = {"overlapped": [], "alone": []}
        for _ in range(self.spec.steps if self.training else 0):
            assert self.training is not None
            overlapped = self.going is not None and not self.going.pending.done()
            took["overlapped" if overlapped else "alone"].append(self.training.step())
            self.poll()
        return took

    def _restore(self, step: int, start_ns: int) -> None:
        wipe(self.state)
        _wait_until(start_ns)
        target = self.root.step(step)
        # A writer of a third party need not know how to leave the comparison out.
        how = {} if self.spec.verify else {"verify": False}
        restored = self.writer.restore(self.state, target, **how)
        # Looking whether the files do no harm is ours, and no part of what a training does.
        late = restored.started_s - restored.inspected_s - start_ns / 1e9
        right = self.state.get("step") == step
        self.pipe.send(
            (
                "restored",
                {
                    "wall_s": restored.wall_s + late,
                    "bytes": restored.bytes,
                    "cpu_s": restored.cpu_s,
                    # None: it was not asked for; another step is wrong in any case.
                    "verified": None if right and not restored.verified else right,
                },
            )
        )


def writer_options(spec: CheckpointSpec) -> dict[str, Any]:
    """The spec's options that its writer has."""
    return {option: getattr(spec, option) for option in OPTIONS & options_of(spec.writer)}


def advance(state: State, step: int) -> None:
    """What a training step does to the state, as cheaply as can be: each tensor and the step's number change, so that saves differ."""
    for value in state.values():
        if isinstance(value, dict):
            advance(value, step)
        elif hasattr(value, "numel") and value.numel():
            value.view(-1)[0] = step % 256
    if "step" in state:
        state["step"] = step


def wipe(state: State) -> None:
    """Forget everything: what is there after a restore came from storage."""
    for key, value in state.items():
        if isinstance(value, dict):
            wipe(value)
        elif hasattr(value, "zero_"):
            value.zero_()
        elif key == "step":
            state[key] = -1


def _wait_until(start_ns: int) -> None:
    while (left := start_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
