"""The user's loader with the interface of BatchLoader: its batches, with stamps and counts.

What the user's loader yields is passed on as it is, and nothing but ``Stamped`` stands between it
and the rank.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from ..accelerate.base import Indices, RankPlace, Samples
from ..base.errors import IobenchError, UsageError, WorkerError
from ..load.loader import worker_death, worker_start
from ..load.requests import Stats
from ..load.torch_compat import end_iterator, end_workers, is_map_style, worker_error
from ..record.job import UserFacts
from ..record.manifest import Manifest
from ..settings.workload import USER_LOADER, LoaderSpec
from ..storage.base import Storage, innermost, local_root
from .batches import as_bytes, first_array, rows_of
from .board import Board, Gauge
from .factory import MEND, contain, make, one_line, place_of, take_place
from .meter import Meter
from .process import listen

KEPT_BATCHES = 10
"""Batches that ``replay: batches`` keeps, as SPDL's CacheDataLoader does by default."""

_KEPT_PASS = 100_000
"""Batches of an epoch over samples that are kept, which a limit of time ends earlier."""

_MAX_PASSES = 4
"""A loader that delivers more than this many times the dataset in an epoch may never end."""


@lru_cache(maxsize=8)
def _even(count: int, each: int) -> tuple[Indices, Indices]:
    """Offsets and lengths of samples of equal length, which most batches have in common."""
    return np.arange(count, dtype=np.int64) * each, np.full(count, each, np.int64)


class UserBatch(Samples):
    """A batch of the user's loader. ``value``: exactly what the loader yielded.

    ``data``: the bytes of its first tensor or array, as ``as_bytes`` gives them. ``stats``: what
    the batch cost.
    """

    __slots__ = ("stats", "value")

    def __init__(self, value: Any, stats: Stats) -> None:
        array = first_array(value)
        data = as_bytes(array) if array is not None else None
        # An array of another length is one of the samples, and not all of them.
        whole = array is not None and rows_of(array) == stats.samples
        count = 0 if data is None else stats.samples if whole else 1
        each = len(data) // count if data is not None else 0
        super().__init__(data, *_even(count, each))
        self.value = value
        self.stats = stats


class UserLoader:
    """The loader that the user's factory returns, for one rank.

    ``data``: the dataset's directory or URL. ``stored_bytes``: of a sample in storage, on average.
    ``max_samples``: an epoch that delivers more than this is refused, since it may never end; None:
    the rank ends by itself. ``compares``: whether the samples of several workers are compared.
    Raises UsageError if the factory does not return a loader.
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
        max_samples: int | None = None,
        compares: bool = False,
    ) -> None:
        self.loading, self.stored_bytes, self.max_samples = loading, stored_bytes, max_samples
        self.epoch = 0
        gauge = Gauge(Board(1), 0, root)
        listen(gauge)
        made = make(loading, data=data, batch_size=batch_size)
        self.not_replaced = why_not_replaced(made)
        self.iterable = _over_kept(made, self.not_replaced) if loading.replay == "samples" else made
        self.meter = meter = Meter(
            self.iterable,
            of=made,
            gauge=gauge,
            stated=loading.samples_per_batch,
            strict=True,
            compares=compares,
            prepare=worker_start,
        )
        self.cpu_ns = meter.cpu_ns
        self.in_flight = max(1, meter.workers * (meter.prefetch_factor or 1))
        self.round_batches = max(1, meter.workers)
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
            return Stamped(self, _Again(self.kept))
        self.meter.begin()
        began = time.monotonic_ns()
        try:
            with self.meter.making():
                batches = iter(self.iterable)
        except BaseException as error:
            raise failed(error) from error
        self.meter.made(batches, waited=False)
        return Stamped(self, batches, began_ns=began)

    def _keep(self) -> None:
        batches = iter(self)
        try:
            self.kept = [batch.value for batch in islice(batches, KEPT_BATCHES)]
        finally:
            if isinstance(batches, Stamped):
                batches.close()
            self.shutdown()
        self.meter.forget()
        self.meter.alone = True

    def release_maps(self) -> None:
        """Do nothing: the maps of a user's loader are its own."""

    def shutdown(self) -> None:
        """End the loader's worker processes."""
        self.meter.close()
        if self.meter.inner is not None:
            end_workers(self.meter.inner)

    def facts(self) -> UserFacts:
        """What was seen of the loader so far."""
        return self.meter.facts().model_copy(
            update={
                "factory": self.loading.factory or "",
                "arguments": {key: str(value) for key, value in self.loading.args.items()},
            }
        )

    def stored(self, samples: int) -> int:
        """Bytes that this many samples of the dataset have in storage, on average."""
        return round(samples * self.stored_bytes)


def open_user_loader(
    manifest: Manifest,
    storage: Storage,
    loading: LoaderSpec,
    place: RankPlace,
    *,
    bounded: bool = True,
    silent: bool = True,
    compares: bool = False,
) -> UserLoader:
    """Call the user's factory in this process, which must be that of the rank at this ``place``.

    ``bounded``: it is read for a number of steps or a time, so that it need not end by itself.
    ``silent``: what the user's code prints was seen before, and is dropped.
    Raises UsageError for everything that the factory does wrong.
    """
    contain(silent=silent)
    take_place(place)
    root = local_root(innermost(storage))
    return UserLoader(
        loading,
        data=str(root) if root is not None else storage.url,
        root=str(root) if root is not None else "",
        batch_size=place.batch_size,
        stored_bytes=manifest.mean_stored_bytes,
        max_samples=None if bounded else _MAX_PASSES * manifest.sample_count + 1000,
        compares=compares,
    )


class _Again(Iterator[Any]):
    """Yields the same batches again and again, without end."""

    __slots__ = ("kept", "place")

    def __init__(self, kept: list[Any]) -> None:
        self.kept, self.place = kept, 0

    def __next__(self) -> Any:
        value = self.kept[self.place % len(self.kept)]
        self.place += 1
        return value


class Stamped(Iterator[UserBatch]):
    """Asks the user's iterator for each batch, and stamps when it was asked and when it came."""

    __slots__ = ("began", "began_ns", "iterator", "loader", "meter", "samples")

    def __init__(self, loader: UserLoader, iterator: Iterator[Any], *, began_ns: int = 0) -> None:
        self.loader, self.meter, self.iterator = loader, loader.meter, iterator
        self.began_ns, self.began, self.samples = began_ns, False, 0

    def __next__(self) -> UserBatch:
        meter = self.meter
        before = meter.now_used()
        asked = time.monotonic_ns()
        try:
            value = next(self.iterator)
        except StopIteration:
            self._ended()
            raise
        except BaseException as error:  # a generator may call sys.exit
            raise failed(error) from error
        arrived = time.monotonic_ns()
        waited, worked = meter.took(asked, arrived, before)
        samples = meter.count(value)
        started = arrived if self.began else meter.first_fetch_ns(asked)
        self.began = True
        self.samples += samples
        self._check_end()
        stored = self.loader.stored(samples)
        stats = Stats(samples, stored, stored, started, waited, worked, 0, os.getpid())
        return UserBatch(value, stats)

    def close(self) -> None:
        """End workers that last for one epoch only, and close a generator."""
        if self.began_ns:
            # Not early: a phase that a limit ends has no further epoch.
            self.meter.ended(self.began_ns, early=False)
        self.began_ns = 0
        if not getattr(self.loader.iterable, "persistent_workers", False):
            end_iterator(self.iterator)

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
                if self.meter.batches
                else "check what the factory returns"
            )
            raise UsageError(
                f"the loader delivered no batch in epoch {self.loader.epoch}", remedy=again
            )


def _over_kept(made: Iterable[Any], not_replaced: str) -> DataLoader[Any]:
    if not_replaced or not isinstance(made, DataLoader):
        raise UsageError(f"the loader can't run over kept samples: {not_replaced}")
    try:
        return over_kept_samples(made)
    except Exception as error:
        raise failed(error) from error


def failed(error: BaseException) -> IobenchError:
    """The error of one line for an exception of the user's loader."""
    if isinstance(error, IobenchError) and worker_error(error) is None:
        return error
    death = worker_death(error)
    if death is not None:
        return death
    return WorkerError(
        f"loader '{USER_LOADER}' failed: {one_line(error)}{place_of(error)}", remedy=MEND
    )


def why_not_replaced(loader: Iterable[Any]) -> str:
    """Why the dataset of a user's loader can't be replaced; empty if it can."""
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__} has no dataset that could be replaced"
    if not is_map_style(loader):
        return "the dataset of an iterable-style DataLoader is its reader, too"
    if loader.batch_sampler is None:
        return "a DataLoader with batch_size=None gets whole batches from its dataset"
    return ""


class KeptSamples(Dataset[Any]):
    """The samples of one batch, in place of any other: no reading, no preparing.

    Each process takes them from the user's dataset once, when it is asked for its first batch.
    """

    def __init__(self, dataset: Any, indices: Sequence[Any]) -> None:
        self.dataset, self.indices = dataset, indices
        self.samples: list[Any] = []

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """What the user's collate function or ``worker_init_fn`` looks for in its dataset."""
        if name.startswith("__") or "dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.__dict__["dataset"], name)

    def __getitem__(self, index: Any) -> Any:
        return self._kept()[hash(index) % len(self.samples)]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        samples = self._kept()
        return [samples[place % len(samples)] for place in range(len(indices))]

    def _kept(self) -> list[Any]:
        if not self.samples:
            get = getattr(self.dataset, "__getitems__", None)
            self.samples = (
                list(get(self.indices)) if get else [self.dataset[each] for each in self.indices]
            )
        return self.samples


def over_kept_samples(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader (workers, collate function, pinned memory) over the samples of one batch.

    Its epochs are long, so that the start of workers is no part of its rate.
    """
    batches: Any = loader.batch_sampler
    indices = list(next(iter(batches)))
    return DataLoader(
        KeptSamples(loader.dataset, indices),
        batch_sampler=[indices] * _KEPT_PASS,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
        in_order=loader.in_order,
    )
