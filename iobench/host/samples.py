"""What the host did over time, while a phase ran: a sample every half second, limited in number.

When the rows are used up, neighbours are merged in pairs, and from then on a sample is twice as
long. There is no thread: the process that waits for the ranks samples between their messages. On
disk the samples are one Parquet file (``record.host.SAMPLE_COLUMNS``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..record.arrow import number_column, numbers, text_column
from ..record.host import GAUGES, SAMPLE_COLUMNS
from ..record.run import FileDigest
from .nvml import GpuWatch
from .resources import HostCounters, minus
from .tables import damage, read_table, write_table
from .timeline import Columns

MAX_SAMPLES = 600
INTERVAL_S = 0.5

_CONSTANT = ("phase", "repetition")
_TIMES = ("epoch", "start_ns", "wall_ns")
_VALUES = tuple(name for name in SAMPLE_COLUMNS if name not in (*_CONSTANT, *_TIMES))
_COUNTED = tuple(name for name in _VALUES if name not in GAUGES)
_TYPES = {
    name: np.dtype(text.split(",")[0]) for name, text in SAMPLE_COLUMNS.items() if name != "phase"
}
_SHORTEST = 0.2
"""A last sample of an epoch that is shorter than this share of an interval is left out, unless it
is the only one."""

Read = Callable[[], Mapping[str, float | None]]


class Sampler:
    """Samples of one phase. ``prepare``, ``begin`` and ``end`` frame each epoch.

    ``path`` is any path on the device that holds the data. ``gpus``: those of the job, which are
    watched in the same time. ``read`` returns the counters.
    """

    def __init__(
        self,
        path: Path | str | None,
        *,
        gpus: GpuWatch | None = None,
        interval_s: float = INTERVAL_S,
        capacity: int = MAX_SAMPLES,
        read: Read | None = None,
    ) -> None:
        self._opened = _OpenedSamples(path)
        self.gpus = gpus
        self._read = read or self._opened.read
        self._interval_ns, self._capacity = round(interval_s * 1e9), capacity
        self._rows: list[dict[str, float]] = []
        self._epoch: int | None = None
        self._began_ns = self._last_ns = 0
        self._last: Mapping[str, float | None] = {}

    def prepare(self) -> None:
        """An epoch is about to begin: read the counters, which takes longer than ``begin`` may."""
        self._last = self._read()
        if self.gpus is not None:
            self.gpus.begin()

    def begin(self, epoch: int, start_ns: int) -> None:
        """An epoch begins at this instant of the monotonic clock."""
        self._epoch, self._began_ns, self._last_ns = epoch, start_ns, start_ns

    def tick(self) -> None:
        """Take a sample if it is time for one."""
        if self.gpus is not None:
            self.gpus.tick()
        if self._epoch is not None and time.monotonic_ns() - self._last_ns >= self._interval_ns:
            self._take()

    def end(self) -> None:
        """The epoch is over."""
        if self.gpus is not None:
            self.gpus.end()
        passed = time.monotonic_ns() - self._last_ns
        only = self._last_ns == self._began_ns and passed > 0
        if self._epoch is not None and (only or passed >= _SHORTEST * self._interval_ns):
            self._take()
        self._epoch = None

    def close(self) -> Columns:
        """All samples as columns, without phase and repetition; nothing is sampled any more."""
        self._epoch = None
        self._opened.close()
        if self.gpus is not None:
            self.gpus.close()
        return {
            name: np.array([row[name] for row in self._rows], dtype=_TYPES[name])
            for name in (*_TIMES, *_VALUES)
        }

    def _take(self) -> None:
        now_ns, now = time.monotonic_ns(), self._read()
        assert self._epoch is not None
        row: dict[str, float] = {
            "epoch": self._epoch,
            "start_ns": self._last_ns - self._began_ns,
            "wall_ns": now_ns - self._last_ns,
        }
        row |= {name: _number(minus(now.get(name), self._last.get(name))) for name in _COUNTED}
        row |= {name: _number(now.get(name)) for name in GAUGES}
        self._rows.append(row)
        self._last_ns, self._last = now_ns, now
        if len(self._rows) >= self._capacity:
            self._rows = merged(self._rows)
            self._interval_ns *= 2


class _OpenedSamples:
    """The counters, opened with the first sample: after all ranks have been forked."""

    def __init__(self, path: Path | str | None) -> None:
        self._path = path
        self._counters: HostCounters | None = None

    def read(self) -> Mapping[str, float | None]:
        if self._counters is None:
            self._counters = HostCounters(self._path)
        return self._counters.read()

    def close(self) -> None:
        if self._counters is not None:
            self._counters.close()


def merged(rows: Sequence[dict[str, float]]) -> list[dict[str, float]]:
    """Neighbours of the same epoch in pairs: sums of counters, the larger one of two states."""
    found: list[dict[str, float]] = []
    open_ = False
    for row in rows:
        if open_ and found[-1]["epoch"] == row["epoch"]:
            before = found[-1]
            for name in ("wall_ns", *_COUNTED):
                before[name] += row[name]
            for name in GAUGES:
                before[name] = float(np.fmax(before[name], row[name]))
            open_ = False
        else:
            found.append(dict(row))
            open_ = True
    return found


def write_samples(path: Path, parts: Sequence[tuple[str, int, Columns]]) -> FileDigest:
    """Write (phase, repetition, columns) parts as one file, as ``write_events`` does."""
    import pyarrow as pa

    tables = []
    for phase, repetition, columns in parts:
        count = len(columns["epoch"])
        arrays = [text_column([phase.encode()] * count, pa.string())]
        for name, kind in _TYPES.items():
            values = np.full(count, repetition, kind) if name == "repetition" else columns[name]
            # A counter that the host lacks is NaN here, and null on disk.
            arrays.append(number_column(np.asarray(values, kind), nan_is_null=True))
        tables.append(pa.Table.from_arrays(arrays, names=list(SAMPLE_COLUMNS)))
    return write_table(pa.concat_tables(tables), path, "samples")


def read_samples(path: Path) -> Columns:
    """The columns of ``SAMPLE_COLUMNS`` as arrays of equal length; NaN: not measured.

    Columns that a file lacks are left out. Raises IobenchError for a damaged file.
    """
    table = read_table(path, "samples", row_bytes=8 * len(SAMPLE_COLUMNS))
    with damage(path, "samples"):
        missing = [name for name in (*_CONSTANT, *_TIMES) if name not in table.column_names]
        if missing:
            raise ValueError(f"it lacks the columns {', '.join(missing)}")
        found: Columns = {
            name: numbers(table[name].combine_chunks()).astype(kind)
            for name, kind in _TYPES.items()
            if name in table.column_names
        }
        found["phase"] = np.array(table["phase"].to_pylist(), dtype=object)
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)
