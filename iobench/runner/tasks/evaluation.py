"""A rank's passes over the samples that are held out, whose steps are recorded apart."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from ...accelerate import ACCELERATORS
from ...host.timeline import Recorder, StepEvent
from ...load.build import build_loader
from ...load.reader import BatchReader
from ...settings.workload import EvaluationSpec
from ..messages import Flag
from ..phase import Phase


class Evaluation:
    """The passes of one rank over the shards that are held out, in the order of their samples."""

    def __init__(self, phase: Phase, spec: EvaluationSpec, reader: BatchReader, rank: int) -> None:
        self.spec = spec
        self.batch_size = spec.batch_size or phase.batch_size
        change = {"step_time": spec.step_time or phase.accelerator.step_time}
        self.accelerator = phase.accelerator.model_copy(update=change)
        self.recorder = Recorder()
        self.loader = build_loader(
            reader.clone(),
            phase.loading,
            phase.reading.model_copy(update={"shuffle": False, "tail": "keep"}),
            batch_size=self.batch_size,
            rank=rank,
            world=phase.accelerators,
            shards=phase.held_out,
        )

    def after(
        self,
        epochs: int,
        stopped: Flag,
        in_storage: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Make the pass that is due after so many epochs, if one is.

        ``in_storage``: is entered while a batch is waited for.
        """
        passes, rest = divmod(epochs, self.spec.epochs_between)
        if rest:
            return
        accelerator = ACCELERATORS.load(self.accelerator.kind)(self.accelerator)
        accelerator.start()
        now = time.monotonic_ns
        start = asked = now()
        batches = iter(self.loader)
        step = 0
        while not stopped.value:
            with in_storage():
                batch = next(batches, None)
            if batch is None:
                break
            ready, stats = now(), batch.stats
            busy, late = accelerator.step(batch, ready, stats.samples / self.batch_size)
            self.recorder.record(
                StepEvent(
                    epoch=passes - 1,
                    step=step,
                    start_ns=asked - start,
                    wait_ns=ready - asked,
                    busy_ns=busy,
                    late_ns=late,
                    **stats.columns(),
                )
            )
            del batch
            asked = now()
            step += 1
