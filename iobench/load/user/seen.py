"""What was seen of a loader of the user's own, from the counts of its processes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader

from ...schema.job import UserFacts
from . import opened, worker
from .repeats import Repeats


class Counted(Protocol):
    """A loader whose batches are counted.

    ``board`` has a row for each worker process, or one for this process if there is none.
    ``rank_board`` has one row, for this process. ``unseen``: why the workers are not counted; empty
    if they are. ``inner``: the DataLoader that makes its batches, if one does. ``ready_s``: of each
    iteration that started workers, the time until the last one was ready. ``wait_ns``: of all waits
    for batches; in ``held_back_ns`` of it a later batch was ready, and in ``handed_over_ns`` the
    batch was made, but not here yet. ``no_turns``: why these two are not known; empty if they are.
    ``repeats``: what is known of samples that several workers delivered.
    """

    board: worker.Board
    rank_board: worker.Board
    workers: int
    unseen: str
    iterable: Iterable[Any]
    inner: DataLoader[Any] | None
    type: type
    batches: int
    samples: int
    delivered: int
    ready_s: list[float]
    wait_ns: int
    held_back_ns: int
    handed_over_ns: int
    no_turns: str
    repeats: Repeats


def seen(loader: Counted) -> UserFacts:
    """All figures of a loader so far, without the factory that made it."""
    opened.tell()
    counts = loader.board.counts()
    every = counts if not loader.workers else np.concatenate([counts, loader.rank_board.counts()])
    total = counts.sum(axis=0)
    fetches = int(total[worker.FETCHES])
    io_known = bool(counts[:, worker.IO_KNOWN].all()) and not loader.unseen and fetches > 0
    collates = isinstance(loader.iterable, DataLoader)
    method = getattr(loader.inner, "multiprocessing_context", None)
    return UserFacts(
        type=f"{loader.type.__module__}.{loader.type.__qualname__}",
        workers=loader.workers,
        start_method=(method.get_start_method() if method is not None else "fork")
        if loader.workers
        else None,
        batches=loader.batches,
        samples=loader.samples,
        delivered_bytes=loader.delivered,
        process_bytes=int(total[worker.READ_CALLS_BYTES]) if io_known else None,
        device_bytes=int(total[worker.DEVICE_BYTES]) if io_known else None,
        fetches=fetches,
        fetch_wall_s=float(total[worker.WALL_NS]) / 1e9 if fetches else None,
        fetch_cpu_s=float(total[worker.CPU_NS]) / 1e9 if fetches else None,
        fetch_queued_s=float(total[worker.QUEUED_NS]) / 1e9 if fetches else None,
        collate_s=float(total[worker.COLLATE_NS]) / 1e9 if collates and fetches else None,
        wait_s=loader.wait_ns / 1e9,
        out_of_order_s=None if loader.no_turns else loader.held_back_ns / 1e9,
        hand_over_s=None if loader.no_turns else loader.handed_over_ns / 1e9,
        fetch_s_by_worker=_means(counts) if loader.workers else [],
        not_measured=_not_measured(loader, fetches, io_known),
        files_inside=int(every[:, worker.INSIDE].sum()),
        files_outside=int(every[:, worker.OUTSIDE].sum()),
        outside=named(loader)[:10],
        worker_ready_s=max(loader.ready_s) if loader.ready_s else None,
        worker_starts=len(loader.ready_s) if loader.workers and not loader.unseen else None,
        private_growth_bytes=int(total[worker.PRIVATE_GROWN]) or None,
        **loader.repeats.facts(),
    )


def named(loader: Counted) -> list[str]:
    """Files outside of the dataset that the loader opened, as far as there was room for names."""
    boards = [(loader.board, number) for number in range(loader.board.workers)]
    if loader.workers:
        boards.append((loader.rank_board, 0))
    return sorted({name for board, number in boards for name in board.names(number)})


def _not_measured(loader: Counted, fetches: int, io_known: bool) -> dict[str, str]:
    found = {}
    if not fetches:
        found["fetch_wall_s"] = loader.unseen or "no batch was fetched"
    if loader.no_turns:
        found["out_of_order_s"] = found["hand_over_s"] = loader.no_turns
    if why := loader.repeats.why:
        found["worker_shared_samples"] = why
    if not io_known:
        found["process_bytes"] = loader.unseen or "the kernel does not tell /proc/PID/io"
        found["device_bytes"] = found["process_bytes"]
    if not loader.workers:
        found["private_growth_bytes"] = "the loader has no worker processes"
    elif not loader.board.counts()[:, worker.PRIVATE_GROWN].any():
        found["private_growth_bytes"] = "the workers had too few page faults for a look at it"
    return found


def _means(counts: worker.Counts) -> list[float]:
    """Seconds that each worker takes for a batch, on average; workers without one are left out."""
    return [
        int(row[worker.WALL_NS]) / 1e9 / int(row[worker.FETCHES])
        for row in counts
        if row[worker.FETCHES]
    ]
