"""A user's DataLoader with its dataset replaced by the samples of one batch, read once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from ..torch_compat import is_map_style

BATCHES = 100_000
"""Batches of an epoch, which a limit of time ends earlier."""


def why_not(loader: Iterable[Any]) -> str:
    """Why the dataset of a user's loader can't be replaced; empty if it can."""
    if not isinstance(loader, DataLoader):
        return f"a {type(loader).__name__} has no dataset that could be replaced"
    if not is_map_style(loader):
        return "the dataset of an iterable-style DataLoader is its reader, too"
    if loader.batch_sampler is None:
        return "a DataLoader with batch_size=None gets whole batches from its dataset"
    return ""


class Kept(Dataset[Any]):
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


def cached(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader (workers, collate function, pinned memory) over the samples of one batch.

    Its epochs are long, so that the start of workers is no part of its rate.
    """
    batches: Any = loader.batch_sampler
    indices = list(next(iter(batches)))
    return DataLoader(
        Kept(loader.dataset, indices),
        batch_sampler=[indices] * BATCHES,
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
