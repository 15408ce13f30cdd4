"""Check a manifest's tables: every number is in its range, and they agree with each other.

Tables may come from others, and readers take memory sizes and offsets from them. 65,536 rows are
checked at a time, so that no whole column is ever copied.

A reader allocates as much memory as the tables claim for a decompressed sample. So the claim must
be plausible for the stored bytes (see ``limits``).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..base.beneath import key_problem
from ..base.errors import DatasetError
from ..base.limits import ALWAYS_FITS, MAX_DECODED_EXPANSION, MAX_EXPANSION

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

MAX_SHARD_BYTES = 1 << 46
"""64 TiB, more than a file of ext4 (16 TiB) or an object of S3 (50 TB) can have.

With this limit, the sum of the sizes of the rows that are checked together is below 2^63.
"""

MAX_SAMPLE_BYTES = 1 << 40
"""1 TiB. A sample is held in memory as a whole."""

_ROWS = 1 << 16


class Problem(NamedTuple):
    """A problem and its place. ``row`` is None if it concerns the whole column."""

    row: int | None
    column: str
    what: str

    def __str__(self) -> str:
        where = "" if self.row is None else f"row {self.row}, "
        return f"{where}column '{self.column}' {self.what}"


def shard_problem(shards: dict[str, Array], *, samples: int) -> Problem | None:
    """Return the first problem of shards.arrow in a dataset of ``samples`` samples, or None.

    Each shard has a valid size and at least one sample, and its ``first`` follows the last sample
    of the shard before.
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
    """Return the first problem of samples.arrow, or None; the shards must have been checked.

    ``plain``: the stored bytes are the content itself.
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
    """Return the first problem of the shards' names, or None.

    The names must be keys below the root, and each must be unique.
    """
    for rows in _parts(len(names)):
        # All names are checked in one string. Only if that has a problem, each one is checked.
        try:
            together = "/".join(["", *names[rows], ""])
        except TypeError:  # a null among them, or another type
            row = next(row for row in range(len(names)) if not isinstance(names[row], str))
            return Problem(row, "key", "is not text")
        if any(bad in together for bad in ("//", "/./", "/../", "\0")):
            for row in range(rows.start, rows.stop):
                if problem := key_problem(names[row]):
                    return Problem(row, "key", f"does not name an object below the root: {problem}")
    ascending = all(map(operator.lt, names, itertools.islice(names, 1, None)))
    if not ascending and len(set(names)) != len(names):
        seen: set[str] = set()
        for row, name in enumerate(names):
            if name in seen:
                return Problem(row, "key", "has the same name as an earlier row")
            seen.add(name)
    return None


def column_sum(column: Array) -> int:
    """Return the sum of a column whose values have been checked."""
    return sum(int(column[rows].sum()) for rows in _parts(len(column)))


def _order_problem(shard: Array, shards: dict[str, Array]) -> Problem | None:
    """Return a problem if the samples are not in the order of their shards.

    The shard numbers must not decrease, and each shard's first and last sample must have its
    number.
    """
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
            return Problem(row, "shard", "contradicts 'first' and 'samples' of the shards")
    return None


def _parts(rows: int, *, overlap: int = 0) -> Iterator[slice]:
    for start in range(0, rows, _ROWS):
        yield slice(start, min(rows, start + _ROWS) + overlap)


def _outside(values: Array, low: int, high: int | Array) -> Mask:
    if len(values) and values.min() >= low and values.max() <= np.min(high):
        return np.zeros(1, np.bool_)  # the fast path: all values are inside
    return np.asarray((values < low) | (values > high))


class _Check(NamedTuple):
    """A column's values, and which are wrong. ``skipped``: rows of the part before ``values``."""

    column: str
    values: Array
    wrong: Mask
    skipped: int = 0


def _first(start: int, *checks: _Check) -> Problem | None:
    """Return the first wrong row of the first failing check; the part begins at ``start``."""
    for column, values, wrong, skipped in checks:
        if wrong.any():
            at = int(np.argmax(wrong))
            return Problem(
                start + skipped + at, column, f"is {int(values[at])}, which is impossible"
            )
    return None


_CLAIMED_ROWS = 1 << 20
"""Rows of the table that are checked together: a dataset may have a billion rows."""

_REMEDY = "the manifest is damaged or was changed: generate or scan the dataset again"


def check_claims(
    expansion: float | None,
    samples: Mapping[str, Array],
    key: Callable[[int], str],
    *,
    blocks: bool,
    plain: bool,
) -> None:
    """Raise DatasetError that names the first sample with an impossible size.

    ``samples`` has the columns shard, offset, stored and size of the table; ``key`` returns the
    name of a shard. ``blocks``: several samples share their stored bytes, as in Parquet.
    ``plain``: there is no codec.
    """
    if expansion is not None and not 0 < expansion <= MAX_DECODED_EXPANSION:
        raise DatasetError(
            f"the manifest says that decoded samples are {expansion:g} times as large as stored "
            f"ones; the limit is {MAX_DECODED_EXPANSION:g}",
            remedy=_REMEDY,
        )
    if plain and not blocks:
        return  # the stored bytes are the sample: ``tables`` checks that both sizes are equal
    for start in range(0, len(samples["size"]), _CLAIMED_ROWS):
        part = {name: samples[name][start : start + _CLAIMED_ROWS] for name in ("stored", "size")}
        if blocks:
            place = {
                name: samples[name][start : start + _CLAIMED_ROWS] for name in ("shard", "offset")
            }
            first, stored, size = _of_blocks(place, part)
        else:
            first, stored, size = np.arange(len(part["size"])), part["stored"], part["size"]
        wrong = size > np.maximum(ALWAYS_FITS, MAX_EXPANSION * stored.astype(np.float64))
        if wrong.any():
            row = int(np.argmax(wrong))
            index = start + int(first[row])
            raise DatasetError(
                f"sample {index} in shard {key(int(samples['shard'][index]))} claims "
                f"{int(size[row])} bytes in {int(stored[row])} stored ones: "
                f"the limit is {MAX_EXPANSION} times as many, or {ALWAYS_FITS}",
                remedy=_REMEDY,
            )


def _of_blocks(
    place: Mapping[str, Array], part: Mapping[str, Array]
) -> tuple[npt.NDArray[np.int64], Array, npt.NDArray[np.float64]]:
    """Return the first row, the stored bytes and the sum of the samples' bytes of each block."""
    new = np.flatnonzero((np.diff(place["shard"]) != 0) | (np.diff(place["offset"]) != 0)) + 1
    first = np.concatenate(([0], new))
    return first, part["stored"][first], np.add.reduceat(part["size"].astype(np.float64), first)
