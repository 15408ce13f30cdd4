"""What one host reads of a storage curve that several hosts measure together, and their sum."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ...base.errors import WorkerError
from ...host.fio_depth import Depth, busy_time, of_readers
from ...record.curve import MeasuredWith
from ...record.typed import ArrayText
from ...storage.base import Storage
from ..curve.places import Place
from ..curve.reader import HostReader


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadNow:
    """Read these places from the instant ``at_ns`` of your clock on.

    ``rows``: of each place the number of its key in ``keys``, its offset, its length, and how many
    of its bytes are needed. ``curve``: which curve this point is of; ``max_bytes`` and ``once`` as
    in ``curve.reader``.
    """

    curve: str
    keys: tuple[str, ...]
    rows: Annotated[npt.NDArray[np.int64], ArrayText()]
    in_flight: int
    seconds: float
    most: int
    at_ns: int
    max_bytes: int
    once: bool

    def __post_init__(self) -> None:
        """Raises ValueError for rows that are no places."""
        rows, count = self.rows, len(self.keys)
        if rows.ndim != 2 or rows.shape[1] != 4 or (rows < 0).any() or (rows[:, 0] >= count).any():
            raise ValueError("they are no places")

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple(Place(self.keys[key], *rest) for key, *rest in self.rows.tolist())


def rows_of(places: Sequence[Place]) -> tuple[tuple[str, ...], npt.NDArray[np.int64]]:
    """The ``keys`` and ``rows`` of ``ReadNow``."""
    numbers: dict[str, int] = {}
    rows = [(numbers.setdefault(key, len(numbers)), *rest) for key, *rest in places]
    return tuple(numbers), np.array(rows, dtype=np.int64).reshape(-1, 4)


@dataclass(frozen=True, slots=True)
class HaveRead:
    """What was read, and with what program."""

    depth: Depth
    by: MeasuredWith
    program: str
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Raises ValueError for cycles that are none: another host may have sent them."""
        cycles = self.depth.cycles
        if cycles is None:
            return
        if cycles.ndim != 2 or cycles.shape[1] != 4 or not len(cycles):
            raise ValueError("they are no cycles of reads")
        if not np.isfinite(cycles).all() or (cycles[:, 2:] < 0).any():
            raise ValueError("a cycle of a read has no length")


class LocalReads:
    """The reads of this host, which may be a part of those of all. ``run_dir``: for fio's files."""

    def __init__(self, storage: Storage, run_dir: Path) -> None:
        self.storage, self.run_dir = storage, run_dir
        self._readers: dict[tuple[str, int, bool], HostReader] = {}

    def read(self, order: ReadNow) -> HaveRead:
        """Do what is ordered, from its instant on. Raises StorageError, NoMemoryError."""
        known = (order.curve, order.max_bytes, order.once)
        if known not in self._readers:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._readers[known] = HostReader(
                self.storage, max_bytes=order.max_bytes, once=order.once, run_dir=self.run_dir
            )
        reader = self._readers[known]
        time.sleep(max(0.0, (order.at_ns - time.monotonic_ns()) / 1e9))
        depth = reader.read(
            order.places, in_flight=order.in_flight, seconds=order.seconds, most=order.most
        )
        if depth.cycles is not None:  # by the clock of all hosts, whose zero is the instant
            depth = replace(
                depth, cycles=depth.cycles - np.array((0.0, order.at_ns / 1e9, 0.0, 0.0))
            )
        return HaveRead(depth, reader.by, reader.program, tuple(reader.notes))


def together(depths: Sequence[Depth]) -> list[Depth]:
    """The same with the rates of the time in which all readers of all hosts were busy.

    A host that reads on alone gets what the others no longer take. The rates stay as they are where
    it is not known when each read ended.
    """
    tables = [each.cycles for each in depths if each.cycles is not None]
    if not tables or len(tables) < len(depths):
        return list(depths)
    readers = sum(each.in_flight for each in depths)
    apart = [table + np.array((at * readers, 0, 0, 0)) for at, table in enumerate(tables)]
    begin, end = busy_time(np.concatenate(apart), readers)
    if begin >= end:  # one host had ended when another began
        return list(depths)
    found = []
    for depth, table in zip(depths, tables, strict=True):
        reads_per_s, bytes_per_s, windows, there = of_readers(table, (begin, end))
        found.append(
            replace(
                depth,
                reads_per_s=reads_per_s,
                bytes_per_s=bytes_per_s,
                window_reads_per_s=windows,
                window_bytes_per_s=there,
            )
        )
    return found


def summed(depths: Sequence[Depth], *, in_flight: int, given: int) -> Depth:
    """What several hosts read at the same time, as one. ``given``: places of all of them.

    Rates are sums, also in each window. Percentiles can't be put together: each is the largest of
    the hosts'. Raises WorkerError without any host.
    """
    if not depths:
        raise WorkerError("no host has read anything")
    reads = sum(each.reads for each in depths)
    means = [each.latency_mean_s for each in depths]
    known = [mean * each.reads for mean, each in zip(means, depths, strict=True) if mean]
    windows = min(len(each.window_reads_per_s) for each in depths)
    return Depth(
        in_flight=in_flight,
        reads=reads,
        bytes=sum(each.bytes for each in depths),
        seconds=max(each.seconds for each in depths),
        reads_per_s=sum(each.reads_per_s for each in depths),
        bytes_per_s=sum(each.bytes_per_s for each in depths),
        window_reads_per_s=[
            sum(each.window_reads_per_s[at] for each in depths) for at in range(windows)
        ],
        window_bytes_per_s=[
            sum(each.window_bytes_per_s[at] for each in depths) for at in range(windows)
        ],
        latency_mean_s=sum(known) / reads if len(known) == len(depths) and reads else None,
        latency_p50_s=_largest([each.latency_p50_s for each in depths]),
        latency_p99_s=_largest([each.latency_p99_s for each in depths]),
        latency_p999_s=_largest([each.latency_p999_s for each in depths]),
        client_cpu_share=_largest([each.client_cpu_share for each in depths]),
        used=min(given, max(each.used for each in depths) * len(depths)),
        again=any(each.again for each in depths),
        retries=sum(each.retries for each in depths),
        throttled=sum(each.throttled for each in depths),
    )


def _largest(values: Sequence[float | None]) -> float | None:
    """None if one of them is not known: then the largest is not known either."""
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None
