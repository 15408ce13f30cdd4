"""Events of each step of one rank: fast to record, limited in number, exact in their sums.

Recording takes one to two microseconds. When the rows are used up, neighbours are merged in
pairs, and from then on each row takes twice as many steps: the resolution halves, and every sum
stays the same. The first step of an epoch keeps its own row, since utilization leaves it out. On
disk the events are one Parquet file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..record.arrow import number_column, numbers, text_column
from ..record.run import FileDigest
from ..record.training import EVENT_COLUMNS
from ..record.typed import ArrayText
from .tables import damage, read_table, typed_columns, write_table

Array = Annotated[npt.NDArray[Any], ArrayText()]
Columns = dict[str, Array]

_CONSTANT = ("phase", "repetition", "rank")  # the same for one recorder; added when written
_RECORDED = tuple(name for name in EVENT_COLUMNS if name not in _CONSTANT)
_TYPES = {
    name: np.dtype(text.split(",")[0]) for name, text in EVENT_COLUMNS.items() if name != "phase"
}
_ROW_BYTES = sum(kind.itemsize for kind in _TYPES.values()) + 8
_EPOCH, _STEP, _STEPS = (_RECORDED.index(name) for name in ("epoch", "step", "steps"))
_ROW = struct.Struct(f"{len(_RECORDED)}q")
_FIRST = [_RECORDED.index(name) for name in ("epoch", "step", "start_ns")]
"""Columns where a merged row keeps the value of its first row; all others are summed."""


class StepEvent(NamedTuple):
    """One step of a rank; ``record.training.EVENT_COLUMNS`` says what each column means."""

    epoch: int
    step: int
    steps: int = 1
    start_ns: int = 0
    wait_ns: int = 0
    copy_ns: int = 0
    busy_ns: int = 0
    late_ns: int = 0
    samples: int = 0
    bytes_read: int = 0
    sample_bytes: int = 0
    read_ns: int = 0
    prep_ns: int = 0
    retries: int = 0
    throttled: int = 0
    checkpoint_ns: int = 0
    sync_ns: int = 0
    lost_ns: int = 0


if StepEvent._fields != _RECORDED:
    raise TypeError("the columns of a step event and those of the events' file differ")


class Recorder:
    """The events of one (phase, repetition, rank).

    At most ``capacity`` rows, or four per epoch if that is more: steps of different epochs are
    never merged.
    """

    def __init__(self, capacity: int = 100_000) -> None:
        if capacity < 2:
            raise ValueError("a recorder needs at least 2 rows")
        self._hold(np.zeros((capacity, len(_RECORDED)), dtype=np.int64))
        self._rows.fill(0)  # fault the memory in now and not during the first steps
        self._used = 0
        self._stride = 1

    def __len__(self) -> int:
        return self._used

    def record(self, step: StepEvent) -> None:
        """Record one step."""
        if self._stride > 1 and self._joined(step):
            return
        if self._used == self._capacity:
            self._halve()
            if self._joined(step):
                return
        # Twice as fast as an assignment to a row of the array.
        _ROW.pack_into(self._memory, self._used * _ROW.size, *step)
        self._used += 1

    def columns(self) -> Columns:
        """A copy of what was recorded, with the types of ``EVENT_COLUMNS``.

        Without the columns phase, repetition and rank.
        """
        rows = self._rows[: self._used]
        return {name: rows[:, index].astype(_TYPES[name]) for index, name in enumerate(_RECORDED)}

    def _hold(self, rows: Array) -> None:
        self._rows, self._capacity = rows, len(rows)
        self._memory = rows.data.cast("B")

    def _joined(self, row: tuple[int, ...]) -> bool:
        """Add a step to the last row, if that is of the same epoch and not full."""
        last = self._rows[self._used - 1]
        if last[_EPOCH] != row[0] or last[_STEPS] >= self._stride or last[_STEP] == 0:
            return False
        first = last[_FIRST]
        last += row
        last[_FIRST] = first
        return True

    def _halve(self) -> None:
        rows = self._rows[: self._used]
        epochs = rows[:, _EPOCH]
        starts = np.flatnonzero(np.r_[True, epochs[1:] != epochs[:-1]])
        within = np.arange(len(rows)) - np.repeat(starts, np.diff(np.r_[starts, len(rows)]))
        heads = np.flatnonzero((within == 0) | (within % 2 == 1))
        merged = np.add.reduceat(rows, heads, axis=0)
        merged[:, _FIRST] = rows[heads][:, _FIRST]
        if len(merged) > 0.75 * len(self._rows):
            # Nearly every row is an epoch of its own, so merging again would free little. Merging
            # leaves at most half of the rows and one per epoch, so there were fewer than four rows
            # per epoch, and this array is larger.
            more = np.zeros((4 * len(starts) - len(self._rows), len(_RECORDED)), dtype=np.int64)
            self._hold(np.concatenate((self._rows, more)))
        self._rows[: len(merged)] = merged
        self._used = len(merged)
        self._stride *= 2


def write_events(path: Path, parts: Sequence[tuple[str, int, int, Columns]]) -> FileDigest:
    """Write (phase, repetition, rank, columns) parts as one Parquet file, atomically.

    Return its digest, for the record. Raises IobenchError, also if the file exists: it is never
    overwritten.
    """
    import pyarrow as pa

    fields = [(name, pa.from_numpy_dtype(kind)) for name, kind in _TYPES.items()]
    schema = pa.schema([("phase", pa.dictionary(pa.int32(), pa.string())), *fields])
    tables = []
    for phase, repetition, rank, columns in parts:
        count = len(columns["step"])
        constant = {
            "repetition": np.full(count, repetition, _TYPES["repetition"]),
            "rank": np.full(count, rank, _TYPES["rank"]),
        }
        phases = pa.DictionaryArray.from_arrays(
            number_column(np.zeros(count, dtype=np.int32)),
            text_column([phase.encode()], pa.string()),
        )
        given = {**columns, **constant}
        arrays = [number_column(np.asarray(given[name], kind)) for name, kind in _TYPES.items()]
        tables.append(pa.Table.from_arrays([phases, *arrays], schema=schema))
    table = pa.concat_tables(tables).unify_dictionaries() if tables else schema.empty_table()
    # Neighbouring values are similar, so differences take fewer bits.
    packed = dict.fromkeys(_TYPES, "DELTA_BINARY_PACKED")
    return write_table(table, path, "events", use_dictionary=["phase"], column_encoding=packed)


def read_events(path: Path) -> Columns:
    """The columns of ``EVENT_COLUMNS`` as arrays of equal length; ``phase`` is of objects.

    Raises IobenchError for a damaged file.
    """
    import pyarrow as pa

    what = "step events"
    table = read_table(path, what, row_bytes=_ROW_BYTES, dictionary="phase")
    with damage(path, what):
        found: Columns = typed_columns(table, path, _TYPES, "phase")
        phases = table["phase"].combine_chunks()
        if not pa.types.is_dictionary(phases.type) or phases.null_count:
            raise ValueError("its phases are not names")
        names = np.array(phases.dictionary.to_pylist(), dtype=object)
        found["phase"] = names[numbers(phases.indices)]
    return {name: found[name] for name in EVENT_COLUMNS}
