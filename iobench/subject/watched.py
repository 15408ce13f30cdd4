"""The user's loader in the user's own training: its batches, as they are, with stamps.

The training goes on whatever happens here: an error of the counters is logged once, in one line,
and from then on the batches are passed on without counting.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from operator import length_hint
from typing import Any
from weakref import ReferenceType, ref

from ..host.timeline import Recorder, StepEvent
from ..record.training import WatchedEpoch
from .factory import one_line
from .meter import Meter

log = logging.getLogger(__name__)

MAX_EPOCHS = 60_000
"""Iterations that are told apart; the steps of further ones are added to the last."""


class EpochHooks:
    """What is done around the iterations of one rank, off the clock or between two steps.

    This one does nothing: another rank of this host does it.
    """

    def prepare(self, epoch: int) -> tuple[float | None, str]:
        """An iteration is about to begin: look at the page cache.

        Returns the residency of the data, and how it was measured, or why it was not.
        """
        return None, "measured by another rank of this host"

    def begin(self, epoch: int, start_ns: int) -> None:
        """It begins."""

    def tick(self) -> None:
        """Between two steps."""

    def end(self) -> None:
        """It is over."""


class WatchedSteps:
    """The steps of one rank. A step is a wait for a batch, and the time until the next request.

    An iteration that begins while another one is still held belongs to that one.
    """

    def __init__(self, meter: Meter, hooks: EpochHooks, *, stored_bytes: float) -> None:
        self.meter, self.hooks, self.stored_bytes = meter, hooks, stored_bytes
        self.recorder = Recorder()
        self.epochs: list[WatchedEpoch] = []
        self.lost = ""
        self.between_ns = self.cpu_ns = 0  # cpu_ns: of this process, in its epochs
        self._cpu_before_ns = 0
        self._owner: ReferenceType[Batches] | None = None  # the iteration of the open epoch
        self._residency: tuple[float | None, str] = (None, "")
        self._start_ns = self._asked_ns = self._ready_ns = self._step = 0
        # For how long the last iteration took to end, after its last batch; of that, for how long
        # its workers still looked for one.
        self._ending_ns = self._seeking_ns = 0
        self._workers_ns = 0  # when the workers of the iteration before began to end
        self._before = (0, 0)
        self._pending: StepEvent | None = None  # a step whose busy time is not known yet
        self._first = True  # no batch of the open epoch has come
        self._ended_ns = time.monotonic_ns()

    @property
    def open(self) -> bool:
        """Whether an epoch has begun and has not ended."""
        return self._owner is not None

    def prepare(self) -> None:
        """An iteration is about to be made: look at the page cache, off the clock."""
        if not self.open and not self.lost:
            with self.guarded(), self.meter.unheard():
                self._residency = self.hooks.prepare(len(self.epochs))
                self.meter.begin()
            self._cpu_before_ns = time.process_time_ns()

    def making(self) -> AbstractContextManager[None]:
        """An iteration is made meanwhile."""
        return nullcontext() if self.open or self.lost else self.meter.making()

    def made(self, iterator: Iterator[Any]) -> None:
        """The iteration was made, but for the first batch."""
        if not self.open and not self.lost:
            with self.guarded():
                self.meter.made(iterator)

    def ask(self, batches: Batches) -> None:
        """The training asks for a batch."""
        if self.lost:
            return
        with self.guarded():
            if self._pending is not None:
                self.meter.synchronize()
                self._record(time.monotonic_ns())
            if self._owner is not None:
                if self._owner() is not batches:
                    self.meter.mixed()
                with self.meter.unheard():
                    self.hooks.tick()
            self._before = self.meter.now_used()
            if self.open:
                self._asked_ns = time.monotonic_ns()
            else:
                self._begin(batches)

    def got(self, value: Any) -> None:
        """A batch has come."""
        ready = time.monotonic_ns()
        if self.lost:
            return
        with self.guarded():
            waited, worked = self.meter.took(self._asked_ns, ready, self._before)
            samples = self.meter.count(value)
            if self._first:
                self._begun()
            self._pending = StepEvent(
                epoch=len(self.epochs) - 1,
                step=self._step,
                start_ns=self._asked_ns - self._start_ns,
                wait_ns=ready - self._asked_ns,
                samples=samples,
                sample_bytes=round(samples * self.stored_bytes),
                read_ns=waited,
                prep_ns=worked,
            )
            self._step += 1
            self._ready_ns = time.monotonic_ns()  # without the time that counting took

    def over(self, batches: Batches, *, early: bool = True) -> None:
        """An iteration has ended, was given up, or has failed."""
        if self.lost or self._owner is None:
            return
        if self._owner() is batches or self._owner() is None:
            with self.guarded():
                if not early and not self._first:
                    self._ending_ns = time.monotonic_ns() - self._asked_ns
                    self._seeking_ns = max(0, self.meter.last_made_ns() - self._asked_ns)
                self.end(early=early)

    def let_go(self, took_ns: int) -> None:
        """The iterator of an iteration that was given up is gone, with its workers."""
        if not self.open:
            self._ending_ns += took_ns

    def end(self, *, early: bool = True) -> None:
        """End the open epoch, if there is one; ``early``: the loader may have more batches."""
        if self._pending is not None:
            self.meter.synchronize()
            self._record(time.monotonic_ns())
        if self.open:
            self._owner = None
            self.cpu_ns += time.process_time_ns() - self._cpu_before_ns
            self.meter.ended(self._workers_ns, early=early)
            self._ended_ns = time.monotonic_ns() - self._ending_ns
            with self.meter.unheard():
                self.hooks.end()

    def broke(self, error: Exception) -> None:
        """Give up counting, and say so once."""
        self.lost = self.lost or one_line(error)
        self._pending = self._owner = None
        log.warning("iobench.watch counts no more batches, the training goes on: %s", self.lost)

    def guarded(self) -> _Guard:
        """A context out of which no error of the counters comes."""
        return _Guard(self)

    def _begin(self, batches: Batches) -> None:
        self._owner = ref(batches)
        self._step = 0 if len(self.epochs) < MAX_EPOCHS else self._step
        self._first = True
        # Making the iterator is part of the wait for its first batch: it starts workers. So is the
        # end of those of the iteration before.
        now = time.monotonic_ns()
        self._start_ns = self._asked_ns = now - batches.made_ns - self._ending_ns
        self._workers_ns = self._start_ns + min(self._seeking_ns, self._ending_ns)
        self.between_ns += max(0, self._start_ns - self._ended_ns)
        self._ending_ns = self._seeking_ns = 0
        self.hooks.begin(len(self.epochs), self._start_ns)

    def _begun(self) -> None:
        self._first = False
        if len(self.epochs) >= MAX_EPOCHS:
            return
        self.epochs.append(
            WatchedEpoch(
                epoch=len(self.epochs),
                residency_before=self._residency[0],
                residency_how=self._residency[1],
            )
        )

    def _record(self, now_ns: int) -> None:
        assert self._pending is not None
        self.recorder.record(self._pending._replace(busy_ns=now_ns - self._ready_ns))
        self._pending = None


class _Guard:
    """No error of the counters reaches the training."""

    __slots__ = ("steps",)

    def __init__(self, steps: WatchedSteps) -> None:
        self.steps = steps

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self.steps.broke(error)
            return True
        return False


class Batches(Iterator[Any]):
    """An iterator of the user's loader. What it yields and raises is passed on untouched."""

    __slots__ = ("__weakref__", "_steps", "iterator", "made_ns")

    def __init__(self, steps: WatchedSteps, iterable: Iterable[Any]) -> None:
        steps.prepare()
        began = time.monotonic_ns()
        self._steps = steps
        with steps.making():
            self.iterator = iter(iterable)
        self.made_ns = time.monotonic_ns() - began
        steps.made(self.iterator)

    def __next__(self) -> Any:
        self._steps.ask(self)
        try:
            value = next(self.iterator)
        except BaseException as error:
            self._steps.over(self, early=not isinstance(error, StopIteration))
            raise
        self._steps.got(value)
        return value

    def __len__(self) -> int:
        return len(self.iterator)  # type: ignore[arg-type]

    def __length_hint__(self) -> int:
        return length_hint(self.iterator)

    def __bool__(self) -> bool:
        return bool(self.iterator)

    def __getattr__(self, name: str) -> Any:
        if name in ("_steps", "iterator"):  # the loader raised while this was made
            raise AttributeError(name)
        return getattr(self.iterator, name)

    def __del__(self) -> None:
        with suppress(Exception):
            self._steps.over(self)
            began = time.monotonic_ns()
            del self.iterator
            self._steps.let_go(time.monotonic_ns() - began)


class Watched:
    """What ``iobench.watch`` gives in place of a loader: all but ``iter`` is the loader's."""

    def __init__(self, loader: Iterable[Any], steps: WatchedSteps) -> None:
        self._loader, self._steps = loader, steps

    def __iter__(self) -> Iterator[Any]:
        return Batches(self._steps, self._loader)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __bool__(self) -> bool:
        return bool(self._loader)

    def __getitem__(self, key: Any) -> Any:
        return self._loader[key]  # type: ignore[index]

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_steps"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_loader", "_steps"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._loader, name, value)

    def __repr__(self) -> str:
        return f"<watched {self._loader!r}>"


class WatchedIterator(Watched):
    """In place of a loader that is an iterator itself."""

    _running: Batches | None = None

    def __next__(self) -> Any:
        running = self._running
        if running is None:
            running = Batches(self._steps, self._loader)
            object.__setattr__(self, "_running", running)
        return next(running)


def watched(loader: Iterable[Any], steps: WatchedSteps) -> Watched:
    """The loader with stamps, as an iterator if it is one."""
    return (WatchedIterator if hasattr(loader, "__next__") else Watched)(loader, steps)
