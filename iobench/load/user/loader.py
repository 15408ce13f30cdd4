"""The user's loader with the interface of BatchLoader: its batches, with stamps and counts.

What the user's loader yields is passed on as it is, and nothing but ``_Stamped`` stands between it
and the rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from ...accelerate.base import Indices, Samples
from ...errors import IobenchError, UsageError, WorkerError
from ...schema.job import UserFacts
from ...schema.workload import USER_LOADER, LoaderSpec
from ..delivered import Stats
from ..loader import worker_death
from ..torch_compat import (
    end_iterator,
    end_workers,
    fetcher_of,
    has_workers,
    inner_loader,
)
from . import opened, worker
from .cached import cached, why_not
from .factory import make, one_line
from .repeats import Repeats
from .seen import seen
from .tree import Size, as_bytes, first_array, measure
from .turns import Turns, why_no_turns

KEPT_BATCHES = 10
"""Batches that ``replay: batches`` keeps, as SPDL's CacheDataLoader does by default."""

_NO_WORKERS = "the loader had begun before it was returned, so its workers are not seen"


@lru_cache(maxsize=8)
def _even(count: int, each: int) -> tuple[Indices, Indices]:
    """Offsets and lengths of samples of equal length, which most batches have in common."""
    return np.arange(count, dtype=np.int64) * each, np.full(count, each, np.int64)


class UserBatch(Samples):
    """A batch of the user's loader. ``value``: exactly what the loader yielded.

    ``data``: the bytes of its first tensor or array, uint8 [bytes], without a copy; None if it has
    none, or if its memory has gaps. ``stats``: what the batch cost.
    """

    __slots__ = ("stats", "value")

    def __init__(self, value: Any, stats: Stats) -> None:
        array = first_array(value)
        data = as_bytes(array) if array is not None and array.nbytes else None
        # An array of another length is one of the samples, and not all of them.
        whole = array is not None and len(array) == stats.samples
        count = 0 if data is None else stats.samples if whole else 1
        each = len(data) // count if data is not None else 0
        super().__init__(data, *_even(count, each))
        self.value = value
        self.stats = stats


class UserLoader:
    """The loader that the user's factory returns, for one rank.

    ``data``: the dataset's directory or URL. ``stored_bytes``: of a sample in storage, on average.
    ``max_samples``: an epoch that delivers more than this is refused, since it may never end; None:
    the rank ends by itself. Raises UsageError if the factory does not return a loader.
    """

    ring = None  # the loader's batches are in memory of their own

    def __init__(
        self,
        loading: LoaderSpec,
        *,
        data: str,
        root: str,
        batch_size: int,
        stored_bytes: float,
        rank: int = 0,
        world: int = 1,
        max_samples: int | None = None,
    ) -> None:
        self.loading, self.stored_bytes, self.max_samples = loading, stored_bytes, max_samples
        self.epoch = 0
        self.cpu_ns: dict[int, int] = {}
        self.delivered = self.batches = self.samples = 0
        self.ready_s: list[float] = []  # from the beginning of an iteration to its last worker
        first = worker.Board(1)
        gauge = worker.Gauge(first, 0, root)
        opened.listen(gauge)
        made = make(loading, data=data, batch_size=batch_size, rank=rank, world=world)
        self.type = type(made)
        self.not_cached = why_not(made)
        sampler = getattr(made, "batch_sampler", None)
        self.asked_size: int | None = getattr(sampler, "batch_size", None)
        if loading.replay == "samples":
            made = _cached(made, self.not_cached)
        self.iterable = made
        self.inner = inner = inner_loader(made)
        self.workers = inner.num_workers if inner is not None else 0
        self.unseen = ""
        if inner is not None and self.workers and has_workers(inner):
            self.unseen = _NO_WORKERS
        self.board = worker.Board(self.workers) if self.workers else first
        self.rank_board, self.gauge = first, gauge
        if inner is not None and self.workers and not self.unseen:
            method = inner.multiprocessing_context
            name = method.get_start_method() if method is not None else "fork"
            inner.worker_init_fn = worker.Begin(self.board, root, inner.worker_init_fn, name)
        factor = inner.prefetch_factor if inner is not None else None
        self.in_flight = max(1, self.workers * (factor or 1))
        self.round_batches = max(1, self.workers)
        self.wait_ns = self.held_back_ns = self.handed_over_ns = 0
        self.no_turns = why_no_turns(made, workers=self.workers, unseen=self.unseen)
        self.repeats = Repeats(made, inner, self.workers)
        self.yields_lists = False
        self.kept: list[Any] = []
        if loading.replay == "batches":
            self._keep()

    def set_epoch(self, epoch: int) -> None:
        """Tell the user's sampler or loader which epoch comes, as a training script does."""
        self.epoch = epoch
        if epoch and self.loading.replay == "batches":
            return
        for each in (
            getattr(self.iterable, "sampler", None),
            getattr(self.iterable, "batch_sampler", None),
            self.iterable,
        ):
            call = getattr(each, "set_epoch", None)
            if callable(call):
                call(epoch)
                return

    def __iter__(self) -> Iterator[UserBatch]:
        if self.kept:
            return _Stamped(self, _Again(self.kept), alone=True)
        self.board.counts()[:, worker.FIRST_FETCH_NS] = 0
        self.board.counts()[:, worker.READY_NS] = 0
        turns = Turns(self.board) if not self.no_turns else None
        began = time.monotonic_ns()
        try:
            batches = iter(self.iterable)
        except BaseException as error:
            raise failed(error) from error
        if not self.workers and (fetcher := fetcher_of(batches)) is not None:
            self.gauge.watch_collate(fetcher)
        return _Stamped(self, batches, alone=not self.workers, began_ns=began, turns=turns)

    def _keep(self) -> None:
        batches = iter(self)
        try:
            self.kept = [batch.value for batch in islice(batches, KEPT_BATCHES)]
        finally:
            if isinstance(batches, _Stamped):
                batches.close()
            self.shutdown()
        self.delivered = self.batches = self.samples = 0
        self.wait_ns = self.held_back_ns = self.handed_over_ns = 0

    def release_maps(self) -> None:
        """Do nothing: the maps of a user's loader are its own."""

    def shutdown(self) -> None:
        """End the loader's worker processes."""
        self.gauge.close()
        if self.inner is not None:
            end_workers(self.inner)

    def facts(self) -> UserFacts:
        """What was seen of the loader so far."""
        found = seen(self)
        return found.model_copy(
            update={
                "factory": self.loading.factory or "",
                "arguments": {key: str(value) for key, value in self.loading.args.items()},
            }
        )

    def stored(self, samples: int) -> int:
        """Bytes that this many samples of the dataset have in storage, on average."""
        return round(samples * self.stored_bytes)


class _Again(Iterator[Any]):
    """Yields the same batches again and again, without end."""

    __slots__ = ("kept", "place")

    def __init__(self, kept: list[Any]) -> None:
        self.kept, self.place = kept, 0

    def __next__(self) -> Any:
        value = self.kept[self.place % len(self.kept)]
        self.place += 1
        return value


class _Stamped(Iterator[UserBatch]):
    """Asks the user's iterator for each batch, and stamps when it was asked and when it came.

    ``alone``: the iterator works in this process, so that its own CPU time is counted here.
    """

    __slots__ = (
        *("alone", "began", "began_ns", "counts", "cpu", "iterator", "loader", "rows"),
        *("samples", "turns"),
    )

    def __init__(
        self,
        loader: UserLoader,
        iterator: Iterator[Any],
        *,
        alone: bool,
        began_ns: int = 0,
        turns: Turns | None = None,
    ) -> None:
        self.loader, self.iterator, self.alone, self.turns = loader, iterator, alone, turns
        self.began_ns, self.began, self.samples = began_ns, False, 0
        self.counts = loader.board.counts()
        self.rows = [counts for counts, _ in loader.board.rows()]
        self.cpu = worker.walls_and_work(self.rows)

    def __next__(self) -> UserBatch:
        loader = self.loader
        kernel = loader.gauge.kernel
        cpu, queued = (time.process_time_ns(), kernel.queued_ns()) if self.alone else (0, 0)
        asked = time.monotonic_ns()
        try:
            value = next(self.iterator)
        except StopIteration:
            self._ended()
            raise
        except BaseException as error:  # a generator may call sys.exit
            raise failed(error) from error
        arrived = time.monotonic_ns()
        if self.alone:
            cpu, queued = time.process_time_ns() - cpu, kernel.queued_ns() - queued
            loader.gauge.fetched(asked, arrived - asked, cpu, queued)
        loader.wait_ns += arrived - asked
        if self.turns is not None:
            held_back, handed_over = self.turns.arrived(asked, arrived)
            loader.held_back_ns += held_back
            loader.handed_over_ns += handed_over
        size = self._size(value)
        wall, used = self.cpu
        self.cpu = worker.walls_and_work(self.rows)
        prep = self.cpu[1] - used
        started = arrived if self.began else self._first_fetch(asked)
        if not self.alone:
            worker.add_cpu_times(self.rows, loader.cpu_ns)
        self.began = True
        self.samples += size.samples
        loader.batches += 1
        loader.samples += size.samples
        loader.delivered += size.nbytes
        self._check_end()
        stored = loader.stored(size.samples)
        stats = Stats(
            size.samples,
            stored,
            stored,
            started,
            max(0, self.cpu[0] - wall - prep),
            prep,
            0,
            os.getpid(),
        )
        return UserBatch(value, stats)

    def close(self) -> None:
        """End workers that last for one epoch only, and close a generator."""
        ready = self.counts[:, worker.READY_NS]
        if self.began_ns and ready.all():  # the last worker may be ready long after the first batch
            self.loader.ready_s.append(max(0, int(ready.max()) - self.began_ns) / 1e9)
        self.began_ns = 0
        if not getattr(self.loader.iterable, "persistent_workers", False):
            end_iterator(self.iterator)

    def _size(self, value: Any) -> Size:
        """The size of a batch, with the samples that the user says. Raises UsageError."""
        size, asked = measure(value), self.loader.loading.samples_per_batch
        where = f"batch {self.loader.batches} of the loader"
        if not size.samples or not size.nbytes:
            raise UsageError(
                f"{where} is empty: a {type(value).__name__} without data",
                remedy="yield tensors, arrays or bytes, alone or in a dict, list or tuple",
            )
        if asked is not None:
            return size._replace(samples=asked)
        if self._is_list(value, size):
            return size._replace(samples=len(value))
        if size.ragged:
            leading = ", ".join(map(str, size.leading[:6]))
            raise UsageError(
                f"{where} is ragged: its parts have {leading} entries, so its number of samples is "
                "not known",
                remedy="state it: --set batch_size=N",
            )
        return size

    def _is_list(self, value: Any, size: Size) -> bool:
        """Whether the batches of a DataLoader are lists of samples, which nobody has stacked."""
        wanted = self.loader.asked_size
        if not wanted or not isinstance(value, list | tuple):
            return False
        if len(value) == wanted and (size.ragged or size.leading[:1] != (wanted,)):
            self.loader.yields_lists = True  # the last batch may have fewer samples
        return self.loader.yields_lists

    def _first_fetch(self, asked: int) -> int:
        """When the first fetch of this iteration began. The workers' start-up lies before it."""
        if self.alone:
            return asked
        firsts = self.counts[:, worker.FIRST_FETCH_NS]
        known = firsts[firsts > 0]
        return int(known.min()) if len(known) else asked

    def _check_end(self) -> None:
        limit = self.loader.max_samples
        if limit is not None and self.samples > limit:
            raise UsageError(
                f"the loader has delivered {self.samples} samples in one epoch and goes on: it may "
                "never end",
                remedy="limit the run: --set max_steps=N",
            )

    def _ended(self) -> None:
        """Check an iteration that has ended. Raises UsageError if it was empty or too short."""
        if not self.began and self.loader.max_samples is not None:
            again = (
                "it can be iterated over only once: return a DataLoader, or an iterable that "
                "begins again"
                if self.loader.batches
                else "check what the factory returns"
            )
            raise UsageError(
                f"the loader delivered no batch in epoch {self.loader.epoch}", remedy=again
            )


def _cached(made: Iterable[Any], not_cached: str) -> DataLoader[Any]:
    if not_cached or not isinstance(made, DataLoader):
        raise UsageError(f"the loader can't run over cached samples: {not_cached}")
    try:
        return cached(made)
    except Exception as error:
        raise failed(error) from error


def failed(error: BaseException) -> IobenchError:
    """The error of one line for an exception of the user's loader."""
    if isinstance(error, IobenchError) and "\n" not in str(error):
        return error
    death = worker_death(error)
    if death is not None:
        return death
    return WorkerError(
        f"loader '{USER_LOADER}' failed: {one_line(error)}",
        remedy="use --debug to see its traceback",
    )
