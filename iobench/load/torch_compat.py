"""The parts of torch's DataLoader that are not public. Checked with torch 2.13.0."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader, _DatasetKind
from torch.utils.data._utils import signal_handling
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..base.errors import IobenchError

HAS_IN_ORDER = "in_order" in inspect.signature(DataLoader.__init__).parameters
"""Whether batches may arrive as they are ready: torch 2.6."""


def worker_error(error: BaseException) -> str | None:
    """The message of an error that torch has passed on from a worker, with the worker's traceback.

    None for any other error. An IobenchError escapes the ends of lines, which are here again.
    """
    text = str(error)
    if not text.startswith("Caught "):
        return None
    return text.replace("\\n", "\n") if isinstance(error, IobenchError) else text


def has_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the loader has workers that outlast an epoch (``persistent_workers``)."""
    return getattr(loader, "_iterator", None) is not None


def inner_loader(made: object) -> DataLoader[Any] | None:
    """The DataLoader that makes an object's batches: itself, or the only one that it holds.

    webdataset's WebLoader, timm's PrefetchLoader and Lightning's CombinedLoader hold one, as an
    attribute or in a list or dict. None if there is none, or several.
    """
    if isinstance(made, DataLoader):
        return made
    found: dict[int, DataLoader[Any]] = {}
    for value in getattr(made, "__dict__", {}).values():
        parts = value.values() if isinstance(value, dict) else value
        for each in parts if isinstance(value, list | tuple | dict) else (value,):
            if isinstance(each, DataLoader):
                found[id(each)] = each
    return next(iter(found.values())) if len(found) == 1 else None


def end_workers(loader: DataLoader[Any]) -> None:
    """End the loader's worker processes now, and not only when it is garbage-collected."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
        loader._iterator = None


def end_iterator(replies: Iterator[Any]) -> None:
    """End the worker processes of a DataLoader's iterator, or close a generator."""
    end = getattr(replies, "_shutdown_workers", None) or getattr(replies, "close", None)
    if end is not None:
        end()


def kill_iterator(replies: Iterator[Any]) -> None:
    """End the worker processes of a DataLoader's iterator at once, in the middle of their batches.

    torch waits up to 5 s for each of them. Use it only where nobody needs what they work on, and
    where they share no lock: only the order of torch's own ``_shutdown_workers`` is kept, in which
    the event that a killed worker may hold is set before.
    """
    workers = getattr(replies, "_workers", None)
    if workers is None or getattr(replies, "_shutdown", True):
        end_iterator(replies)
        return
    made: Any = replies
    made._shutdown = True
    made._workers_done_event.set()
    if made._worker_pids_set:  # torch's handler of SIGCHLD takes a killed worker for an error
        signal_handling._remove_worker_pids(id(made))  # type: ignore[attr-defined]
        made._worker_pids_set = False
    for worker in workers:
        worker.kill()
    for worker in workers:
        worker.join()
    for queue in made._index_queues:
        queue.cancel_join_thread()
        queue.close()


def wrap_fetches(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Wrap the method with which this process's DataLoader workers make a batch, ``fetch``.

    The iterators of a DataLoader look it up in its class for each batch.
    """
    for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
        fetcher.fetch = wrap(fetcher.fetch)  # type: ignore[method-assign]


def fetcher_of(batches: Iterator[Any]) -> Any | None:
    """What makes the batches of a DataLoader's iterator in this process; None if workers do."""
    return getattr(batches, "_dataset_fetcher", None)


class TimedIndices(Iterator[Any]):
    """What a sampler chooses, where ``count`` gets the nanoseconds that each choice takes."""

    __slots__ = ("count", "indices")

    def __init__(self, indices: Iterator[Any], count: Callable[[int], None]) -> None:
        self.indices, self.count = indices, count

    def __next__(self) -> Any:
        began = time.monotonic_ns()
        try:
            return next(self.indices)
        finally:
            self.count(time.monotonic_ns() - began)


class TimedSampler:
    """A sampler whose iterations are timed, from their beginning on; all else is its own."""

    def __init__(self, sampler: Any, count: Callable[[int], None]) -> None:
        self.sampler, self.count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        began = time.monotonic_ns()
        try:
            return TimedIndices(iter(self.sampler), self.count)
        finally:
            self.count(time.monotonic_ns() - began)

    def __len__(self) -> int:
        return len(self.sampler)


@contextmanager
def timed_sampler(loader: DataLoader[Any], count: Callable[[int], None]) -> Iterator[None]:
    """Time the sampler of the iterator that is made meanwhile.

    torch then asks it for the first batches of all workers. A loader that makes iterators of its
    own is left as it is, since it may look at its sampler.
    """
    kind = type(loader)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    theirs = vars(loader).get(name)
    plain = kind.__iter__ is DataLoader.__iter__ and kind._get_iterator is DataLoader._get_iterator
    if theirs is None or not plain:
        yield
        return
    timed = vars(loader)[name] = TimedSampler(theirs, count)
    if has_workers(loader):
        loader._iterator._index_sampler = timed  # type: ignore[union-attr]
    try:
        yield
    finally:
        vars(loader)[name] = theirs


def time_sampler(batches: Iterator[Any], count: Callable[[int], None]) -> None:
    """Time what a DataLoader's iterator asks which samples are next, if it is one of torch's own.

    One of another library may save the state of its sampler, and is left as it is.
    """
    if type(batches).__module__ != _BaseDataLoaderIter.__module__:
        return
    chosen = batches._sampler_iter  # type: ignore[attr-defined]
    if not isinstance(chosen, TimedIndices):
        batches._sampler_iter = TimedIndices(chosen, count)  # type: ignore[attr-defined]


def is_map_style(loader: DataLoader[Any]) -> bool:
    """Whether the loader asks its dataset for samples by their index."""
    return getattr(loader, "_dataset_kind", None) == _DatasetKind.Map
