"""Asynchronous saves: training stands still for a copy alone, and a thread writes that copy.

A mixin for writers of files: ``class StreamBehind(Behind, Stream)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from .base import Pending, Saved, State
from .catalog import CheckpointTarget
from .leaves import state_checksums
from .saving import Clock, FileWriter


class Behind(FileWriter):
    """The asynchronous version of a writer. The memory of the copy is kept for the next save.

    A save waits for the one before, and counts that. The thread competes with training for the
    interpreter, as it does in a training that saves in this way.
    """

    asynchronous = True
    _copy: State | None = None
    _before: Future[Saved] | None = None
    _thread: ThreadPoolExecutor | None = None

    def save(
        self,
        state: State,
        target: CheckpointTarget,
        *,
        fsync: bool = True,
        checksums: Mapping[str, str] | None = None,
    ) -> Pending:
        known = dict(checksums) if checksums is not None else state_checksums(state)
        self.check(state, target)
        target.prepare()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="iobench-save")
        clock = Clock()
        if self._before is not None:
            self._before.exception()  # until it has ended, however it did; its own ``wait`` tells
        backpressure = clock.wall()
        copy = self._copy = copied(state, self._copy or {})
        blocked = clock.wall()

        def write() -> Saved:
            accepted = self.write(copy, target, fsync=fsync, clock=clock)
            durable = clock.wall()
            size = self.size(target)
            return Saved(
                started_s=clock.started_s,
                blocked_s=blocked,
                backpressure_s=backpressure,
                staged_s=blocked - backpressure,
                accepted_s=accepted,
                durable_s=durable if fsync else None,
                bytes=size,
                files={self.file(): size},
                cpu_s=None,  # the training uses the same process meanwhile
                checksums=known,
            )

        self._before = self._thread.submit(write)
        return _Running(self._before)

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._before = self._copy = None
        super().close()


class _Running:
    """A save that a thread writes."""

    def __init__(self, saved: Future[Saved]) -> None:
        self._saved = saved

    def done(self) -> bool:
        return self._saved.done()

    def wait(self) -> Saved:
        return self._saved.result()


def copied(state: State, memory: State) -> State:
    """``state`` in memory of its own on this host, in that of ``memory`` where a tensor fits."""
    copy: State = {}
    for name, leaf in state.items():
        there = memory.get(name)
        if isinstance(leaf, dict):
            copy[name] = copied(leaf, there if isinstance(there, dict) else {})
        elif isinstance(leaf, torch.Tensor):
            if not isinstance(there, torch.Tensor) or _kind(there) != _kind(leaf):
                there = torch.empty_like(leaf, device="cpu")
            copy[name] = there.copy_(leaf)
        else:
            copy[name] = leaf
    return copy


def _kind(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.stride()
