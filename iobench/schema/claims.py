"""Check the sizes that a manifest claims for decompressed and decoded samples.

A reader allocates as much memory as the tables claim for a decompressed sample. So the claim is
checked first: it must be plausible for the stored bytes (see ``limits``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..limits import ALWAYS_FITS, MAX_DECODED_EXPANSION, MAX_EXPANSION
from .tables import Array

_ROWS = 1 << 20
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
    for start in range(0, len(samples["size"]), _ROWS):
        part = {name: samples[name][start : start + _ROWS] for name in ("stored", "size")}
        if blocks:
            place = {name: samples[name][start : start + _ROWS] for name in ("shard", "offset")}
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
