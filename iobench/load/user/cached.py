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
    """The samples of one batch, in place of any other: no reading, no preparing."""

    def __init__(self, samples: Sequence[Any], length: int) -> None:
        self.samples, self.length = samples, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Any:
        return self.samples[hash(index) % len(self.samples)]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        return [self.samples[place % len(self.samples)] for place in range(len(indices))]


def cached(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader (workers, collate function, pinned memory) over the samples of one batch.

    Its epochs are long, so that the start of workers is no part of its rate.
    """
    batches: Any = loader.batch_sampler
    indices = next(iter(batches))
    dataset: Any = loader.dataset
    get = getattr(dataset, "__getitems__", None)
    samples = list(get(indices)) if get else [dataset[index] for index in indices]
    return DataLoader(
        Kept(samples, len(dataset)),
        batch_sampler=[indices] * BATCHES,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
