"""The parts of torch's DataLoader that are not public. Checked with torch 2.13.0."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader


def has_workers(loader: DataLoader[Any]) -> bool:
    """Return whether the loader has workers that outlast an epoch (``persistent_workers``)."""
    return getattr(loader, "_iterator", None) is not None


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
