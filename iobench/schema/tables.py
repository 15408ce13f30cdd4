"""Whether a manifest's tables make sense: every number in its range, and all of them in agreement.

Tables are data of others, and what reads samples by them takes its memory and its offsets from
them. The rows are looked at some ten thousand at a time, so that no whole column is ever copied.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..beneath import key_problem

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

MAX_SHARD_BYTES = 1 << 46
"""64 TiB, more than a file of ext4 (16 TiB) or an object of S3 (50 TB) can have. The sizes of the
rows that are looked at together then have a sum below 2^63."""

MAX_SAMPLE_BYTES = 1 << 40
"""1 TiB. A sample is held in memory as a whole."""

_ROWS = 1 << 16


class Problem(NamedTuple):
    """What is wrong, and where. ``row`` is None where it is about the whole column."""

    row: int | None
    column: str
    what: str

    def __str__(self) -> str:
        where = "" if self.row is None else f"row {self.row}, "
        return f"{where}column '{self.column}' {self.what}"


def shard_problem(shards: dict[str, Array], *, samples: int) -> Problem | None:
    """Of the columns of shards.arrow, for a dataset of ``samples`` samples; None where all is well.

    Shards have sizes, hold one sample at least, and follow one another in ``first``.
    """
    size, first, count = shards["size"], shards["first"], shards["samples"]
    before = 0
    for rows in _parts(len(size)):
        found = _first(
            rows.start,
            _Check("size", size[rows], _outside(size[rows], 0, MAX_SHARD_BYTES)),
            _Check("samples", count[rows], _outside(count[rows], 1, samples)),
        )
        if found:
            return found
        starts = np.cumsum(count[rows]) - count[rows] + before
        if found := _first(rows.start, _Check("first", first[rows], first[rows] != starts)):
            return found
        before += int(count[rows].sum())
    if before != samples:
        return Problem(None, "samples", f"adds up to {before}, not to {samples}")
    return None


def sample_problem(
    samples: dict[str, Array], shards: dict[str, Array], *, plain: bool
) -> Problem | None:
    """Of the columns of samples.arrow, beside shards that are in order; None where all is well.

    ``plain``: what is stored is the content itself, byte for byte.
    """
    if found := _order_problem(samples["shard"], shards):
        return found
    for rows in _parts(len(samples["shard"])):
        shard, offset, stored, size = (
            samples[name][rows] for name in ("shard", "offset", "stored", "size")
        )
        room = shards["size"][shard]
        changed = size != stored if plain else np.zeros(1, np.bool_)
        for check in (
            _Check("offset", offset, _outside(offset, 0, room)),
            _Check("stored", stored, _outside(stored, 0, room - offset)),
            _Check("size", size, _outside(size, 0, MAX_SAMPLE_BYTES)),
            _Check("size", size, changed),
        ):
            if found := _first(rows.start, check):
                return found
    return None


def name_problem(names: Sequence[str]) -> Problem | None:
    """Of the shards' own names: keys below the root, each of them once. None where all is well."""
    for rows in _parts(len(names)):
        # One look at all of them together; which one it is, is asked only where there is one.
        try:
            together = "/".join(["", *names[rows], ""])
        except TypeError:  # a null among them, or another type
            row = next(row for row in range(len(names)) if not isinstance(names[row], str))
            return Problem(row, "key", "is no text")
        if any(bad in together for bad in ("//", "/./", "/../", "\0")):
            for row in range(rows.start, rows.stop):
                if problem := key_problem(names[row]):
                    return Problem(row, "key", f"names no object below the root: {problem}")
    ascending = all(map(operator.lt, names, itertools.islice(names, 1, None)))
    if not ascending and len(set(names)) != len(names):
        seen: set[str] = set()
        for row, name in enumerate(names):
            if name in seen:
                return Problem(row, "key", "is the name of an earlier row, too")
            seen.add(name)
    return None


def column_sum(column: Array) -> int:
    """The sum of a column whose values have been checked."""
    return sum(int(column[rows].sum()) for rows in _parts(len(column)))


def _order_problem(shard: Array, shards: dict[str, Array]) -> Problem | None:
    """Samples lie in their shards' order: each shard's first and last do, and none goes back."""
    last = len(shards["first"]) - 1
    for rows in _parts(len(shard), overlap=1):
        part = shard[rows]
        found = _first(
            rows.start,
            _Check("shard", part, part > last),
            _Check("shard", part[1:], part[1:] < part[:-1], 1),
        )
        if found:
            return found
    for rows in _parts(len(shards["first"])):
        first, count = shards["first"][rows], shards["samples"][rows]
        numbers = np.arange(rows.start, rows.start + len(first))
        wrong = (shard[first] != numbers) | (shard[first + count - 1] != numbers)
        if wrong.any():
            row = int(first[int(np.argmax(wrong))])
            return Problem(row, "shard", "does not agree with the shards' 'first' and 'samples'")
    return None


def _parts(rows: int, *, overlap: int = 0) -> Iterator[slice]:
    for start in range(0, rows, _ROWS):
        yield slice(start, min(rows, start + _ROWS) + overlap)


def _outside(values: Array, low: int, high: int | Array) -> Mask:
    if len(values) and values.min() >= low and values.max() <= np.min(high):
        return np.zeros(1, np.bool_)  # at a glance
    return np.asarray((values < low) | (values > high))


class _Check(NamedTuple):
    """Where a column's values can't be. ``skipped``: rows of the part before these values."""

    column: str
    values: Array
    wrong: Mask
    skipped: int = 0


def _first(start: int, *checks: _Check) -> Problem | None:
    """The first row that fails the first check that fails, of a part that begins at ``start``."""
    for column, values, wrong, skipped in checks:
        if wrong.any():
            at = int(np.argmax(wrong))
            return Problem(start + skipped + at, column, f"is {int(values[at])}, which can't be")
    return None
